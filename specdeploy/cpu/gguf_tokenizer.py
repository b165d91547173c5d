"""A GGUF file's byte-level BPE vocabulary as a Hugging Face tokenizer.

Knows token types, merges and the pre-tokenizers that llama.cpp names; a name it does not know is refused, because a
wrong split changes the ids without any error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.cpu.gguf_file import GgufFile

# Token types of the GGUF specification.
_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_SPECIAL_KEYS: Final = {
    "tokenizer.ggml.bos_token_id": "bos_token",
    "tokenizer.ggml.eos_token_id": "eos_token",
    "tokenizer.ggml.unknown_token_id": "unk_token",
    "tokenizer.ggml.padding_token_id": "pad_token",
}


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


_PRE_TOKENIZERS: Final[dict[str, Callable[[], pre_tokenizers.PreTokenizer]]] = {
    "gpt-2": _byte_level,
    "smollm": _digits_then_byte_level,
}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Return the tokenizer of ``file``.

    Raises:
        CheckpointError: It is not byte-level BPE, or splits text in a way that is not known here.
    """
    kind, pre = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{file.path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported",
            hint=f"only 'gpt2' (byte-level BPE) with {', '.join(sorted(_PRE_TOKENIZERS))} is imported",
        )
    tokens = file.texts("tokenizer.ggml.tokens")
    merges = [_pair(file, merge) for merge in file.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    types = file.integers("tokenizer.ggml.token_type", [1] * len(tokens))
    tokenizer.add_special_tokens(_added(tokens, types, _CONTROL, special=True))
    tokenizer.add_tokens(_added(tokens, types, _USER_DEFINED, special=False))
    return tokenizer


def special_tokens(file: GgufFile) -> dict[str, str]:
    """Return the tokens with a role, such as ``eos_token``, under Hugging Face's names."""
    tokens = file.texts("tokenizer.ggml.tokens")
    present = {name: key for key, name in _SPECIAL_KEYS.items() if file.has(key)}
    return {name: tokens[file.integer(key)] for name, key in present.items()}


def tokenizer_settings(file: GgufFile, tokenizer: Tokenizer, max_positions: int) -> dict[str, Any]:
    """Return ``tokenizer_config.json``."""
    added = {
        str(index): {
            "content": token.content,
            "lstrip": token.lstrip,
            "normalized": token.normalized,
            "rstrip": token.rstrip,
            "single_word": token.single_word,
            "special": token.special,
        }
        for index, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    settings = {
        "add_bos_token": bool(file.integer("tokenizer.ggml.add_bos_token", 0)),
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "tokenizer_class": "GPT2Tokenizer",
    }
    template = file.text("tokenizer.chat_template", "")
    return special_tokens(file) | settings | ({"chat_template": template} if template else {})


def _pair(file: GgufFile, merge: str) -> tuple[str, str]:
    """Split ``"left right"``; byte-level tokens never contain a space themselves."""
    left, space, right = merge.partition(" ")
    if not space or " " in right:
        raise CheckpointError(f"{file.path}: merge {merge!r} is not two tokens", hint="fetch the file again")
    return left, right


def _added(tokens: list[str], types: list[int], wanted: int, *, special: bool) -> list[AddedToken]:
    """Return the tokens of one type, which are matched in the text before it is split."""
    pairs = zip(tokens, types, strict=True)
    return [AddedToken(token, special=special, normalized=False) for token, kind in pairs if kind == wanted]
