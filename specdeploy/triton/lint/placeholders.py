"""Placeholders of NVIDIA's templates that nobody filled in: where they stop Triton, and where they are "not set".

Works on the text: what is left in a number keeps the configuration from being parsed. Which parameters matter is from
the templates' own code and the backend's: a string that still begins with ``${`` counts as not given.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import ENGINE_BACKEND, PLACEHOLDER, Model, Repository, error, info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding

# What the text consists of, as far as it matters here; each alternative takes at least one character.
_TOKEN: Final = re.compile(
    r"(?P<comment>#[^\n]*)"
    r"|(?P<string>\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?)"
    r"|(?P<open>\$\{\w*\}?)"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<deeper>[{<])"
    r"|(?P<higher>[}>])"
    r"|(?P<line>\n)"
)
_PLACEHOLDER: Final = re.compile(r"\$\{\w*\}?")
# Fields whose text Triton looks up; that of a tensor called so is any text.
_LOOKED_UP: Final = frozenset({"backend", "platform", "model_name", "default_model_filename"})
# Without these an engine does not load.
_OF_ENGINES: Final = frozenset({"gpt_model_path", "gpt_model_type"})
# Without these a python template does not load, or its requests fail: it looks a model of this very name up.
_OF_TEMPLATES: Final = frozenset({"tokenizer_dir", "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"})
# Speculation needs it in both engines, and releases differ in what they do without it.
_OF_SPECULATION: Final = frozenset({"enable_kv_cache_reuse"})
_DRAFT: Final = "tensorrt_llm_draft_model_name"
# What else the python templates read; each has a default.
_OPTIONAL: Final = frozenset(
    {
        "accumulate_tokens",
        "add_special_tokens",
        "engine_dir",
        "gpt_model_path",
        "max_num_images",
        "multimodal_encoders_name",
        "multimodal_model_path",
        "skip_special_tokens",
        "tokenizer_type",
        "visual_model_path",
    }
)
_CURE: Final = 'give it a value; in a string, "" is not set'


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Left:
    """One placeholder: its text, its line, and the field and parameter that it stands in."""

    text: str
    line: int
    field: str
    key: str
    quoted: bool
    whole: bool
    depth: int


def placeholders(repository: Repository) -> Iterator[Finding]:
    """``${...}`` in a number stops Triton; in a string it is silently taken for "not set"."""
    found = {model.directory: tuple(_left(model.text or "")) for model in repository.models.values()}
    drafts = any(config.parameters.get(_DRAFT, "").strip() for config in repository.configs().values()) or any(
        left.key == _DRAFT for lefts in found.values() for left in lefts
    )
    for model in repository.models.values():
        yield from _of(model, found[model.directory], drafts=drafts)


def _of(model: Model, lefts: tuple[_Left, ...], *, drafts: bool) -> Iterator[Finding]:
    engine = _is_engine(model, lefts)
    unset: list[_Left] = []
    for left in lefts:
        if _stops(left, engine=engine, drafts=drafts):
            yield error(
                "repo.placeholder",
                f"{left.text} was not filled in",
                where=f"{model.where}:{left.line}",
                hint=_CURE,
            )
        elif left.field == "string_value" and left.whole and (engine or left.key in _OPTIONAL | _OF_TEMPLATES):
            unset.append(left)
    if unset:
        listed = ", ".join(dict.fromkeys(left.text for left in unset))
        yield info(
            "repo.placeholder",
            f"{len(unset)} parameters are left as they are in the template, and count as not set: {listed}",
            where=f"{model.where}:{unset[0].line}",
            hint="fill in those whose default is not what you want",
        )


def _stops(left: _Left, *, engine: bool, drafts: bool) -> bool:
    """Say whether Triton refuses the placeholder, a request fails on it, or speculation."""
    if not left.quoted:
        return True
    if left.field in _LOOKED_UP or (left.field == "name" and left.depth == 0):
        return True
    if left.field != "string_value" or not left.whole:
        return False
    if engine:
        return left.key in _OF_ENGINES or (drafts and left.key in _OF_SPECULATION)
    return left.key in _OF_TEMPLATES


def _is_engine(model: Model, lefts: tuple[_Left, ...]) -> bool:
    """Say whether NVIDIA's backend reads the parameters, as far as an unfinished text tells."""
    if model.config is not None:
        return model.config.backend == ENGINE_BACKEND or PLACEHOLDER in model.config.backend
    text = model.text or ""
    return f'"{ENGINE_BACKEND}"' in text or any(left.field == "backend" for left in lefts)


def _left(text: str) -> Iterator[_Left]:
    """Yield the placeholders of a configuration, those in comments left out."""
    if "${" not in text:
        return
    line, depth, field, key = 1, 0, "", ""
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "line":
                line += 1
            case "deeper" | "higher":
                depth += 1 if token.lastgroup == "deeper" else -1
            case "word":
                field = token[0]
            case "open":
                yield _Left(text=token[0], line=line, field=field, key=key, quoted=False, whole=True, depth=depth)
            case "string":
                inside = token[0].strip("\"'").strip()
                if field == "key":
                    key = inside
                for found in _PLACEHOLDER.findall(inside):
                    yield _Left(
                        text=found,
                        line=line,
                        field=field,
                        key=key,
                        quoted=True,
                        whole=inside.startswith(found),
                        depth=depth,
                    )
