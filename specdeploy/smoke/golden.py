"""The file of recorded answers: its format, how it is read, and whether it fits what it is compared with.

Pure: text in, values out. Recording and comparing are ``smoke.checks.golden``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from specdeploy.errors import ConfigError
from specdeploy.smoke.expectations import SmokePrompt
from specdeploy.smoke.report import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA_VERSION: Final = "1.0"
KIND: Final = "smoke-golden"
_AGAIN: Final = "record them anew with `specdeploy smoke record`"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoldenAnswer:
    """One recorded answer.

    Args:
        prompt: What was asked.

        ids: The answer's token ids; empty where the server does not tell them.

        text: The answer.

        finish_reason: Why it ended.
    """

    prompt: SmokePrompt
    ids: tuple[int, ...]
    text: str
    finish_reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden:
    """The recorded answers of one deployment, and where they are from.

    Args:
        created: When, in ISO 8601.

        deployment: What answered: its name, the release, the keys of its engines; as far as they are known.

        tokenizer: Fingerprint of its tokenizer; empty where it is not known.

        prompt_set: Name of the prompt set, for people.

        max_tokens: The length that was asked for.

        target_alone: Whether the target answered without drafts; false where it cannot be had so.

        answers: In the order in which they were asked for.
    """

    created: str
    deployment: Mapping[str, Any]
    tokenizer: str
    prompt_set: str
    max_tokens: int
    target_alone: bool
    answers: tuple[GoldenAnswer, ...]

    @property
    def prompts(self) -> tuple[SmokePrompt, ...]:
        """What was asked."""
        return tuple(answer.prompt for answer in self.answers)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that is written to the file."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "created": self.created,
            "deployment": dict(self.deployment),
            "tokenizer": self.tokenizer,
            "prompt_set": self.prompt_set,
            "prompts_digest": prompts_digest(self.prompts),
            "max_tokens": self.max_tokens,
            "target_alone": self.target_alone,
            "answers": [
                {
                    "prompt": answer.prompt.name,
                    "text_input": answer.prompt.text,
                    "output_ids": list(answer.ids),
                    "text_output": answer.text,
                    "finish_reason": answer.finish_reason,
                }
                for answer in self.answers
            ],
        }
        return {**document, "answers_digest": answers_digest(document)}


def answers_digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the answers and of how they were asked for.

    What no file can hold (half of a surrogate pair) counts as it is written out.

    Args:
        document: What is written to the file.
    """
    covered = {name: document[name] for name in ("max_tokens", "target_alone", "answers")}
    return _digest(json.dumps(plain(covered), sort_keys=True, ensure_ascii=False))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def prompts_digest(prompts: Sequence[SmokePrompt]) -> str:
    """Return the SHA-256 of names and texts, in their order."""
    listed = json.dumps(plain([[prompt.name, prompt.text] for prompt in prompts]), ensure_ascii=False)
    return _digest(listed)


def tokenizer_fingerprint(tokenizer_json: str) -> str:
    """Return the SHA-256 of a ``tokenizer.json``, whatever the order of its keys and its white space.

    Raises:
        ValueError: It is not JSON.
    """
    same = json.dumps(json.loads(tokenizer_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _digest(same)


def parse_golden(text: str, *, source: str) -> Golden:
    """Read a file of recorded answers.

    Args:
        text: Content of the file.

        source: The file's name, for messages.

    Raises:
        ConfigError: It is not one, is of another version, is damaged, or was edited after recording.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}", hint=_AGAIN) from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigError(f"{source} holds no recorded answers (its kind is not {KIND!r})", hint=_AGAIN)
    version = _value(document, "schema_version", str, source)
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise ConfigError(
            f"{source} has schema_version {version!r}; this specdeploy reads {SCHEMA_VERSION}", hint=_AGAIN
        )
    golden = Golden(
        created=_value(document, "created", str, source),
        deployment=_value(document, "deployment", dict, source),
        tokenizer=_value(document, "tokenizer", str, source),
        prompt_set=_value(document, "prompt_set", str, source),
        max_tokens=_count(document, source),
        target_alone=_value(document, "target_alone", bool, source),
        answers=tuple(
            _answer(item, f"{source}, answers[{index}]")
            for index, item in enumerate(_value(document, "answers", list, source))
        ),
    )
    if not golden.answers:
        raise ConfigError(f"{source} holds no answer", hint=_AGAIN)
    if _value(document, "prompts_digest", str, source) != prompts_digest(golden.prompts):
        raise ConfigError(
            f"{source}: its prompts are not those that were recorded: prompts_digest differs", hint=_AGAIN
        )
    if _value(document, "answers_digest", str, source) != golden.as_dict()["answers_digest"]:
        raise ConfigError(f"{source} was edited after recording, or is damaged: answers_digest differs", hint=_AGAIN)
    return golden


def require_fits(
    golden: Golden, *, source: str, tokenizer: str = "", prompts: Sequence[SmokePrompt] | None = None
) -> None:
    """Stop where a comparison would say nothing.

    Args:
        golden: The recorded answers.

        source: Their file, for messages.

        tokenizer: Fingerprint of the deployment's tokenizer; empty where it is not known.

        prompts: What the user asks to compare; None takes what was recorded.

    Raises:
        ConfigError: Ids of another tokenizer mean other texts, and answers to other prompts are other answers.
    """
    if tokenizer and golden.tokenizer and tokenizer != golden.tokenizer:
        raise ConfigError(
            f"{source} was recorded with another tokenizer: {golden.tokenizer[:19]}, and here it is {tokenizer[:19]}",
            hint=f"token ids of two tokenizers cannot be compared; {_AGAIN}",
        )
    if prompts is not None and prompts_digest(prompts) != prompts_digest(golden.prompts):
        raise ConfigError(
            f"{source} was recorded from other prompts: {_other_prompts(golden.prompts, prompts)}",
            hint=f"{_AGAIN}, or name the prompts that it was recorded from ({golden.prompt_set})",
        )


def other_engines(golden: Golden, engines: Mapping[str, str]) -> str:
    """Say in words which engines have changed since; nothing where they are the same or not known.

    Args:
        golden: The recorded answers.

        engines: Role (``target``, ``draft``) to key, of the deployment that is compared.
    """
    before = golden.deployment.get("engines")
    if not isinstance(before, dict):
        return ""
    changed = [
        f"{role} {str(before[role])[:12]} -> {key[:12]}"
        for role, key in engines.items()
        if before.get(role) and before[role] != key
    ]
    return ", ".join(changed)


def _other_prompts(recorded: Sequence[SmokePrompt], asked: Sequence[SmokePrompt]) -> str:
    if len(recorded) != len(asked):
        return f"it has {len(recorded)}, and {len(asked)} are asked for"
    first = next(index for index, (old, new) in enumerate(zip(recorded, asked, strict=True)) if old != new)
    return (
        f"the first that differs is number {first + 1}, {recorded[first].name!r} there and {asked[first].name!r} here"
    )


def _answer(item: object, where: str) -> GoldenAnswer:
    if not isinstance(item, dict):
        raise ConfigError(f"{where} is {type(item).__name__}, not an object", hint=_AGAIN)
    ids = _value(item, "output_ids", list, where)
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ConfigError(f"{where}: output_ids holds something that is no whole number", hint=_AGAIN)
    return GoldenAnswer(
        prompt=SmokePrompt(name=_value(item, "prompt", str, where), text=_value(item, "text_input", str, where)),
        ids=tuple(ids),
        text=_value(item, "text_output", str, where),
        finish_reason=_value(item, "finish_reason", str, where),
    )


def _count(document: Mapping[str, Any], source: str) -> int:
    count = _value(document, "max_tokens", int, source)
    if isinstance(count, bool) or count < 1:
        raise ConfigError(f"{source}: max_tokens is {count!r}; expected 1 or more", hint=_AGAIN)
    return count


def _value(document: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    value = document.get(key)
    if not isinstance(value, kind):
        raise ConfigError(f"{where}: {key} is {value!r:.60}; expected {kind.__name__}", hint=_AGAIN)
    return value
