"""The files of a Hugging Face checkpoint, made from a GGUF file: configuration, tokenizer, weights, provenance.

Knows llama.cpp's metadata keys and Hugging Face's counterparts. Does not know where the folder is published.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.cpu.console import Progress
from specdeploy.cpu.disk import room_for, write_text
from specdeploy.cpu.gguf_file import GgufFile
from specdeploy.cpu.gguf_tokenizer import build_tokenizer, special_tokens, tokenizer_settings
from specdeploy.cpu.tensor_files import SINGLE_FILE, write_tensors
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_LICENCE_NOTICES: Final = {
    "apache-2.0": """Licensed under the Apache License, Version 2.0 (the "License"); you may not use these files
except in compliance with the License. You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is
distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and limitations under the License.
"""
}


def write_checkpoint(source: Path, folder: Path, *, package: str | None) -> None:
    """Write every file of the checkpoint to ``folder``, printing progress lines.

    Args:
        source: A GGUF file of the ``llama`` architecture.
        folder: An existing folder.
        package: The Python package that the file came from, None for a file of the user's.

    Raises:
        CheckpointError: The file is damaged, or needs something that is not supported.
        EnvironmentFault: The disk is full.
    """
    progress = Progress(4)
    progress.step(f"reading {source}")
    file = GgufFile(source)
    config = llama_config_of(file)
    progress.step("writing the tokenizer")
    _write_tokenizer(file, folder, config["max_position_embeddings"])
    shapes = file.shapes()
    needed = 2 * sum(math.prod(shape) for shape in shapes.values())
    progress.step(f"writing {len(shapes)} tensors, {needed} bytes")
    with room_for(folder / SINGLE_FILE, needed):
        write_tensors(folder / SINGLE_FILE, shapes, file.read)
    progress.step("writing the configuration and the provenance")
    write_text(folder / "config.json", _json(config))
    write_text(folder / "generation_config.json", _json(_token_ids(file)))
    write_text(folder / "LICENSE", _licence(file, package))
    write_text(folder / "README.md", _readme(file, package))


def llama_config_of(file: GgufFile) -> dict[str, Any]:
    """Return ``config.json`` as transformers writes it for Llama.

    Raises:
        CheckpointError: A key is missing, or the rope scaling is not supported.
    """
    heads, hidden = file.integer("llama.attention.head_count"), file.integer("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        **_token_ids(file),
        "head_dim": file.integer("llama.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": file.integer("llama.feed_forward_length"),
        "max_position_embeddings": file.integer("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": file.integer("llama.block_count"),
        "num_key_value_heads": file.integer("llama.attention.head_count_kv", heads),
        "rms_norm_eps": _shortest(file.number("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": _rope_scaling(file),
        "rope_theta": _shortest(file.number("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "lm_head.weight" not in file.shapes(),
        "torch_dtype": "float16",
        "vocab_size": len(file.texts("tokenizer.ggml.tokens")),
    }


def _rope_scaling(file: GgufFile) -> dict[str, Any] | None:
    """Return linear rope scaling, None for unscaled; raise for what llama.cpp can and this importer cannot."""
    kind = file.text("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise CheckpointError(f"{file.path}: rope scaling {kind!r} is not supported", hint="`linear` and none are")
    return {"rope_type": "linear", "factor": _shortest(file.number("llama.rope.scaling.factor"))}


def _token_ids(file: GgufFile) -> dict[str, int]:
    """Return the token ids with a role, those that the file has."""
    keys = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    present = {name: f"tokenizer.ggml.{key}" for name, key in keys.items() if file.has(f"tokenizer.ggml.{key}")}
    return {name: file.integer(key) for name, key in present.items()}


def _write_tokenizer(file: GgufFile, folder: Path, max_positions: int) -> None:
    tokenizer = build_tokenizer(file)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    write_text(folder / "tokenizer_config.json", _json(tokenizer_settings(file, tokenizer, max_positions)))
    write_text(folder / "special_tokens_map.json", _json(special_tokens(file)))


def _licence(file: GgufFile, package: str | None) -> str:
    """Return the licence that the file's metadata names, with the package's own text where it has one."""
    identifier = file.text("general.license", "not stated")
    notice = _LICENCE_NOTICES.get(identifier, "See the origin of the model for its terms.\n")
    head = f"{_title(file)}\nLicence in the metadata of the model file: {identifier}\n\n{notice}"
    text = _packaged_licence(package)
    return f"{head}\n{text}" if text else head


def _readme(file: GgufFile, package: str | None) -> str:
    """Return the provenance note."""
    origin = f"the Python package `{package}` {_version(package)}" if package else "a local file"
    digest = hashlib.sha256(file.path.read_bytes()).hexdigest()
    return f"""# {_title(file)}

An ordinary Hugging Face checkpoint, made from a GGUF file by `python -m specdeploy.cpu.gguf_import`.

| | |
|---|---|
| Made from | `{file.path.name}`, from {origin} |
| SHA-256 of that file | `{digest}` |
| Organization | {file.text("general.organization", "not stated")} |
| Licence | {file.text("general.license", "not stated")} (see LICENSE) |
| Weights | float16, dequantised; the rounding of the GGUF file's quantisation is in them |
| Rotary rows | put back into Hugging Face's order |
| Tokenizer | byte-level BPE, from the tokens and merges in the GGUF file |

It is not bit-identical to the checkpoint that its authors published: the weights went through the quantisation above.
"""


def _title(file: GgufFile) -> str:
    return file.text("general.name", file.path.stem)


def _packaged_licence(package: str | None) -> str:
    """Return the licence text that the package was distributed with, empty where there is none."""
    try:
        return importlib.metadata.distribution(package).read_text("LICENSE") or "" if package else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _version(package: str) -> str:
    """Return the version of an installed package, empty where it has no metadata."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _shortest(value: float) -> float:
    """Return the shortest decimal that is ``value`` in single precision: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
