"""Tiny Llama checkpoints for tests: ordinary Hugging Face folders, written in milliseconds.

Knows the file layout, the tensor names and a byte-level tokenizer. Does not know torch, transformers or any engine.
The weights are random, but the logits are peaked and follow the context, so that greedy decoding wanders through the
vocabulary instead of repeating one token, and a slightly perturbed copy agrees with the original often, not always.
"""

from __future__ import annotations

import json
import shutil
import string
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MERGED_WORDS: Final = ("Ġthe", "ing", "def", "Ġreturn", "ĠĠĠĠ", "Ġis", "Ġand", "ion", "for", "Ġof", "range", "self")
_SMALLEST_VOCAB: Final = len(SPECIAL_TOKENS) + 256


def write_tiny_checkpoint(
    path: Path,
    *,
    seed: int = 0,
    vocab: int = 300,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    max_positions: int = 512,
    tie: bool = True,
    dtype: str = "float32",
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Write a Llama checkpoint of ``layers`` layers to ``path`` (made if missing) and return ``path``.

    Args:
        path: The folder to write.
        seed: Same seed, same bytes.
        vocab: Tokens in the vocabulary, 259 (bytes and special tokens) to about 950.
        layers: Decoder layers.
        hidden: Width; a multiple of ``16 * heads``. The feed-forward part is twice as wide.
        heads: Query heads.
        kv_heads: Key and value heads; divides ``heads``.
        max_positions: ``max_position_embeddings``.
        tie: Whether the head is the embedding; otherwise there is an ``lm_head.weight``.
        dtype: The NumPy dtype of the stored tensors, ``float32`` or ``float16``.
        overrides: Further keys of ``config.json``; ``attention_bias`` true also writes the biases.
    """
    path.mkdir(parents=True, exist_ok=True)
    config = _config(vocab, layers, hidden, heads, kv_heads, max_positions, tie, dtype) | dict(overrides or {})
    tensors = {name: value.astype(dtype) for name, value in _tensors(config, np.random.default_rng(seed))}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    _dump(path / "config.json", config)
    _dump(path / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    _write_tokenizer(path, vocab)
    return path


def perturb_checkpoint(src: Path, dst: Path, scale: float, *, seed: int = 1) -> Path:
    """Copy ``src`` to ``dst``, every tensor moved by noise of ``scale`` times its own standard deviation.

    With the default sizes, 0.02 agrees with the original on about four greedy tokens of five, 0.5 on hardly any.
    """
    shutil.copytree(src, dst, dirs_exist_ok=True)
    rng = np.random.default_rng(seed)
    tensors = load_file(src / "model.safetensors")
    moved = {name: _moved(tensors[name], scale, rng) for name in sorted(tensors)}
    save_file(moved, dst / "model.safetensors", metadata={"format": "pt"})
    return dst


def _moved(tensor: NDArray[Any], scale: float, rng: np.random.Generator) -> NDArray[Any]:
    """Return ``tensor`` plus Gaussian noise of ``scale`` times its standard deviation."""
    noise = rng.standard_normal(tensor.shape) * scale * float(tensor.std())
    return (tensor + noise).astype(tensor.dtype)


def _config(
    vocab: int, layers: int, hidden: int, heads: int, kv_heads: int, max_positions: int, tie: bool, dtype: str
) -> dict[str, Any]:
    """Return ``config.json`` as transformers writes it for Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": max_positions,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "pad_token_id": 2,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tie,
        "torch_dtype": dtype,
        "vocab_size": vocab,
    }


def _tensors(config: dict[str, Any], rng: np.random.Generator) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield every tensor of the model under its Hugging Face name, in float64."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    # Small embeddings: the residual stream is then ruled by the layers, not by the token that was just read,
    # so a tied head does not simply echo it. The final norm scales the logits up again.
    embedding = rng.standard_normal((vocab, hidden)) * 0.05 * _row_scale(vocab)[:, None]
    yield "model.embed_tokens.weight", embedding
    for layer in range(config["num_hidden_layers"]):
        yield from _layer(f"model.layers.{layer}", config, rng)
    yield "model.norm.weight", 12.0 * (1.0 + 0.1 * rng.standard_normal(hidden))
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", rng.standard_normal((vocab, hidden)) * 0.05 * _row_scale(vocab)[:, None]


def _layer(prefix: str, config: dict[str, Any], rng: np.random.Generator) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the tensors of one decoder layer."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head_dim
    shapes = {"q_proj": (hidden, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, hidden)}
    for name, shape in shapes.items():
        yield f"{prefix}.self_attn.{name}.weight", rng.standard_normal(shape) * 1.5 / hidden**0.5
        if config["attention_bias"]:
            yield f"{prefix}.self_attn.{name}.bias", rng.standard_normal(shape[0]) * 0.3
    yield f"{prefix}.mlp.gate_proj.weight", rng.standard_normal((inner, hidden)) * 1.5 / hidden**0.5
    yield f"{prefix}.mlp.up_proj.weight", rng.standard_normal((inner, hidden)) * 1.5 / hidden**0.5
    yield f"{prefix}.mlp.down_proj.weight", rng.standard_normal((hidden, inner)) * 1.5 / inner**0.5
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}.{norm}.weight", 1.0 + 0.1 * rng.standard_normal(hidden)


def _row_scale(vocab: int) -> NDArray[Any]:
    """Return one factor per token: text is likely, stray bytes are rare, special tokens are rarer still."""
    printable = {char for char in string.printable if char.isprintable()} - {" "}
    scales = [1.0 if len(token) > 1 or token in printable else 0.3 for token in _tokens(vocab)]
    scales[: len(SPECIAL_TOKENS)] = [0.1] * len(SPECIAL_TOKENS)
    return np.asarray(scales)


def _write_tokenizer(path: Path, vocab: int) -> None:
    """Write ``tokenizer.json`` (byte-level BPE), ``tokenizer_config.json`` and ``special_tokens_map.json``."""
    ids = {token: index for index, token in enumerate(_tokens(vocab))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=_merges(vocab - _SMALLEST_VOCAB), fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    settings = {"add_prefix_space": False, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False}
    _dump(path / "tokenizer_config.json", names | settings | {"tokenizer_class": "GPT2Tokenizer"})
    _dump(path / "special_tokens_map.json", names)


def _tokens(vocab: int) -> list[str]:
    """Return all tokens by id: special tokens, the 256 bytes in their printable form, merged tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [left + right for left, right in _merges(vocab - _SMALLEST_VOCAB)]
    return [*SPECIAL_TOKENS, *alphabet, *merged]


def _merges(count: int) -> list[tuple[str, str]]:
    """Return ``count`` merges: a few words letter by letter, then pairs of letters."""
    pairs = [(word[:end], word[end]) for word in _MERGED_WORDS for end in range(1, len(word))]
    pairs += [(left, right) for left in string.ascii_lowercase for right in string.ascii_lowercase]
    unique = list({left + right: (left, right) for left, right in pairs}.values())
    if not 0 <= count <= len(unique):
        message = f"a tiny vocabulary holds {_SMALLEST_VOCAB} to {_SMALLEST_VOCAB + len(unique)} tokens"
        raise ValueError(message)
    return unique[:count]


def _dump(path: Path, value: object) -> None:
    """Write ``value`` as JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
