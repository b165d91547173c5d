"""The source of a conversion: a Hugging Face folder, of which the configuration and the headers are read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.safetensors_file import read_header

if TYPE_CHECKING:
    from tests.toolchain.console import Console

_HIDDEN: Final = ("hidden_size", "n_embd")
_LAYERS: Final = ("num_hidden_layers", "n_layer")
_HEADS: Final = ("num_attention_heads", "n_head")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads")
_INNER: Final = ("intermediate_size", "n_inner", "ffn_hidden_size")
_POSITIONS: Final = ("max_position_embeddings", "n_positions")
_ACTIVATION: Final = ("hidden_act", "hidden_activation", "activation_function", "activation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A Hugging Face folder.

    Args:
        path: The folder.
        config: Its ``config.json``.
    """

    path: Path
    config: dict[str, Any]

    @property
    def architecture(self) -> str:
        """The first of its architectures."""
        return str(self.config["architectures"][0])

    @property
    def model_type(self) -> str:
        """Its model type, such as ``llama``."""
        return str(self.config.get("model_type"))

    def sizes(self) -> dict[str, Any]:
        """Return its sizes under TensorRT-LLM's names, whatever the family calls them."""
        hidden, heads = int(self._first(_HIDDEN)), int(self._first(_HEADS))
        return {
            "num_hidden_layers": self._first(_LAYERS),
            "num_attention_heads": heads,
            "hidden_size": hidden,
            "intermediate_size": self._first(_INNER) or 4 * hidden,
            "num_key_value_heads": self._first(_KV_HEADS) or heads,
            "vocab_size": self.config["vocab_size"],
            "max_position_embeddings": self._first(_POSITIONS),
            "hidden_act": self._first(_ACTIVATION) or "gelu",
            "norm_epsilon": self.config.get("rms_norm_eps", self.config.get("layer_norm_epsilon", 1e-5)),
            "rotary_base": self.config.get("rope_theta", 10000.0),
            "rotary_scaling": self.config.get("rope_scaling"),
        }

    def dtype(self, wanted: str, console: Console) -> str:
        """Return the data type that ``--dtype`` means: ``auto`` is the source's own, but never float32."""
        if wanted != "auto":
            return wanted
        own = self.config.get("torch_dtype") or self.config.get("dtype") or "float16"
        inferred = "float16" if own == "float32" else str(own)
        console.info(f"Specified dtype 'auto'; inferred dtype {inferred!r}.")
        return inferred

    def check_weights(self) -> None:
        """Read the header of every weight file.

        Raises:
            OSError: There are no weights, or a file of the index is missing.
            SafetensorError: A file is cut short.
        """
        for file in self._weight_files():
            read_header(file)

    def _weight_files(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            return [self.path / name for name in sorted(names)]
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise OSError(
                f"Error no file named model.safetensors, or pytorch_model.bin, found in directory {self.path}."
            )
        return files

    def _first(self, names: tuple[str, ...]) -> Any:
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)


def read_source(folder: str | Path | None) -> Source:
    """Read a folder's configuration.

    Raises:
        TypeError: No folder was given.
        OSError: The folder or its ``config.json`` is missing.
    """
    if folder is None:
        raise TypeError("expected str, bytes or os.PathLike object, not NoneType")
    path = Path(folder)
    if not path.is_dir():
        raise OSError(
            f"Incorrect path_or_model_id: '{folder}'. Please provide either the path to a local folder or the repo_id "
            "of a model on the Hub."
        )
    if not (path / "config.json").is_file():
        raise OSError(f"{folder} does not appear to have a file named config.json.")
    return Source(path=path, config=json.loads((path / "config.json").read_text(encoding="utf-8")))
