"""Reading a GGUF file: its metadata as plain values, its tensors as float16 matrices under Hugging Face names.

Knows the keys and tensor names that llama.cpp writes for the ``llama`` architecture, and its order of rotary rows.
Does not know where the result goes. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import gguf
import numpy as np

from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_GLOBAL: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR: Final = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


class GgufFile:
    """A GGUF file of the ``llama`` architecture.

    Args:
        path: The file.

    Raises:
        CheckpointError: It is missing, not GGUF, truncated, or of another architecture.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing", hint="give the path of a GGUF file") from None
        except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: not a whole GGUF file ({error})", hint="fetch the file again") from error
        architecture = self.text("general.architecture")
        if architecture != "llama":
            raise CheckpointError(
                f"{path}: architecture {architecture!r} is not supported", hint="only `llama` GGUF files are imported"
            )
        self._tensors = {_hugging_face_name(path, tensor.name): tensor for tensor in self._reader.tensors}

    def has(self, key: str) -> bool:
        """Return whether the metadata has ``key``."""
        return self._reader.get_field(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """Return a metadata string; without a default an absent key is a CheckpointError, as for the others below."""
        return str(self._value(key, default))

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a metadata integer."""
        return int(self._value(key, default))

    def number(self, key: str, default: float | None = None) -> float:
        """Return a metadata number."""
        return float(self._value(key, default))

    def texts(self, key: str, default: Sequence[str] | None = None) -> list[str]:
        """Return a metadata list of strings."""
        return list(self._value(key, default))

    def integers(self, key: str, default: Sequence[int] | None = None) -> list[int]:
        """Return a metadata list of integers."""
        return list(self._value(key, default))

    def _value(self, key: str, default: Any) -> Any:  # noqa: ANN401 - GGUF values carry their type at run time
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise CheckpointError(f"{self.path}: metadata key {key} is missing", hint="fetch or export the file again")
        return default

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor under its Hugging Face name, in the order of the file."""
        return {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> NDArray[np.float16]:
        """Return the named tensor, dequantised, rotary rows in Hugging Face's order."""
        tensor = self._tensors[name]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        heads = self._rotary_heads(name)
        if heads:
            values = unpermute_rotary(values, heads)
        return values.astype(np.float16)

    def _rotary_heads(self, name: str) -> int:
        """Return the number of heads in a query or key projection, 0 for any other tensor."""
        heads = self.integer("llama.attention.head_count")
        if name.endswith("q_proj.weight"):
            return heads
        if name.endswith("k_proj.weight"):
            return self.integer("llama.attention.head_count_kv", heads)
        return 0


def unpermute_rotary(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo llama.cpp's order of rotary rows.

    Within a head llama.cpp interleaves the two halves that are rotated against each other, ``0, h/2, 1, h/2+1, ...``;
    Hugging Face keeps the halves one after the other.

    Args:
        weight: ``[heads * head_dim, columns]``.
        heads: The number of heads.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _hugging_face_name(path: Path, name: str) -> str:
    """Return the Hugging Face name of a llama.cpp tensor."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.weight"
    raise CheckpointError(
        f"{path}: tensor {name} has no place in a Llama checkpoint",
        hint="only dense models without biases and without baked-in rope factors are imported",
    )
