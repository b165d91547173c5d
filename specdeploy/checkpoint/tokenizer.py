"""The tokenizer files of a Hugging Face folder to a ``TokenizerInfo`` that can be compared part by part.

Works on parsed JSON. Does not tokenize; two serialisations of one tokenizer (merges as strings or as pairs) compare
as equal.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from specdeploy.checkpoint.info import TokenizerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

# What is compared on its own, and what only makes training random.
_NOT_OPTIONS = frozenset({"type", "vocab", "merges", "dropout"})


class BadTokenizer(Exception):
    """``tokenizer.json`` has not the layout of the tokenizers library."""


def tokenizer_info(
    document: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    special_map: Mapping[str, Any],
    chat_template: str | None,
    digest: str,
) -> TokenizerInfo:
    """Return the comparable form of a tokenizer.

    Args:
        document: ``tokenizer.json``.
        settings: ``tokenizer_config.json``.
        special_map: ``special_tokens_map.json``; the settings go before it.
        chat_template: The text of ``chat_template.jinja``, which goes before the settings' one; None without the file.
        digest: SHA-256 of the bytes of ``tokenizer.json``.

    Raises:
        BadTokenizer: Parts are missing or of the wrong type.
    """
    model = document.get("model")
    if not isinstance(model, dict):
        raise BadTokenizer("it has no `model`")
    kind = str(model.get("type") or _guessed_kind(model))
    vocab, scores = _vocabulary(model)
    merges = model.get("merges") or []
    return TokenizerInfo(
        kind=kind,
        vocab=vocab,
        added_tokens=_added(document.get("added_tokens") or []),
        special_tokens=_special({**special_map, **{k: v for k, v in settings.items() if v is not None}}),
        merges_digest=_text_digest(_merges(merges) + scores),
        options_digest=_digest(
            {k: v for k, v in model.items() if k not in _NOT_OPTIONS and v not in (None, "", False)}
        ),
        normalizer_digest=_digest(document.get("normalizer")),
        pre_tokenizer_digest=_digest(document.get("pre_tokenizer")),
        post_processor_digest=_digest(document.get("post_processor")),
        decoder_digest=_digest(document.get("decoder")),
        chat_template=chat_template if chat_template is not None else _template(settings.get("chat_template")),
        digest=digest,
    )


def _guessed_kind(model: Mapping[str, Any]) -> str:
    """Name the type of a model that an old library wrote without one."""
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def _vocabulary(model: Mapping[str, Any]) -> tuple[dict[str, int], str]:
    """Return token to id, and the scores of a Unigram model as text; its ids are the places in the list."""
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        return vocab, ""
    if not isinstance(vocab, list):
        raise BadTokenizer(f"`model.vocab` must be a mapping or a list, it is {type(vocab).__name__}")
    try:
        return {piece: index for index, (piece, _) in enumerate(vocab)}, "\n".join(repr(float(s)) for _, s in vocab)
    except (TypeError, ValueError):
        raise BadTokenizer("`model.vocab` of a Unigram model must hold [piece, score] pairs") from None


def _merges(merges: list[Any]) -> str:
    """Return the merge rules as text, one a line; libraries write ``"a b"`` or ``["a", "b"]`` for one rule."""
    try:
        if merges and not isinstance(merges[0], str):
            return "\n".join(map(" ".join, merges))
        return "\n".join(merges)
    except TypeError:
        raise BadTokenizer("`model.merges` must hold strings or pairs of strings") from None


def _added(tokens: list[Any]) -> dict[str, int]:
    try:
        return {token["content"]: token["id"] for token in tokens}
    except (KeyError, TypeError):
        raise BadTokenizer("`added_tokens` must hold objects with `id` and `content`") from None


def _special(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return role to token, for the keys that end in ``_token``; a token is a string or an object with its content."""
    roles: dict[str, str] = {}
    for role, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if role.endswith("_token") and isinstance(content, str):
            roles[role] = content
    return dict(sorted(roles.items()))


def _template(value: object) -> str | None:
    """Return the chat template; a list of named ones gives the one called ``default``."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _digest(part: object) -> str:
    return "" if part is None else _text_digest(json.dumps(part, sort_keys=True, ensure_ascii=False))


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
