"""Compiling a Llama-family checkpoint: read the configuration, plan the graph, write the engine folder.

Knows the files of both folders. The same checkpoint, precision and thread count give the same bytes, and one tensor is
in memory at a time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.cpu.console import Progress, say
from specdeploy.cpu.disk import room_for, write_bytes, write_text
from specdeploy.cpu.genai_config import MODEL_FILE, genai_config
from specdeploy.cpu.graph import LlamaGraph
from specdeploy.cpu.graph_builder import data_size_bytes, parts_of, write_weights
from specdeploy.cpu.llama_config import read_llama_config
from specdeploy.cpu.tensor_files import TensorFolder
from specdeploy.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.cpu.llama_config import LlamaConfig

# Part of every engine's identity: raise the number when the same checkpoint would compile to other bytes.
COMPILER: Final = "specdeploy.cpu.compile/1"
_TOKENIZER_FILE: Final = "tokenizer.json"
_COPIED_IF_PRESENT: Final = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def compile_checkpoint(checkpoint: Path, precision: str, output: Path, *, threads: int = 2) -> None:
    """Compile ``checkpoint`` into ``output``, printing progress lines.

    Args:
        checkpoint: A Hugging Face folder with config.json, safetensors and tokenizer.json.
        precision: ``fp32``, ``int8`` or ``int4``.
        output: A new or empty folder.
        threads: Threads inside an operator.

    Raises:
        ConfigError: The checkpoint cannot be compiled, or the output folder is not empty.
        EnvironmentFault: The disk is full.
    """
    config = read_llama_config(checkpoint)
    copied = _tokenizer_files(checkpoint)
    graph = LlamaGraph(config, TensorFolder(checkpoint), precision)
    model = graph.build(COMPILER)
    groups = graph.builder.groups
    _prepare(output)
    say(f"{config.architecture}, {config.num_layers} layers, {precision}: {data_size_bytes(groups)} bytes to write")
    progress = Progress(parts_of(groups) + 1)
    write_weights(output, groups, progress.step)
    progress.step("graph, tokenizer and configuration")
    write_bytes(output / MODEL_FILE, model.SerializeToString(deterministic=True))
    for name in copied:
        write_bytes(output / name, (checkpoint / name).read_bytes())
    write_text(output / "genai_config.json", _json(genai_config(config, threads=threads)))
    write_text(output / "compile.json", _json(_record(config, precision)))


def _record(config: LlamaConfig, precision: str) -> dict[str, Any]:
    """Return the contents of compile.json: what made the engine, and its shape."""
    return {
        "compiler": COMPILER,
        "architecture": config.architecture,
        "precision": precision,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "eos_token_ids": list(config.eos_token_ids),
    }


def _tokenizer_files(checkpoint: Path) -> list[str]:
    """Return the names of the tokenizer files to copy."""
    if not (checkpoint / _TOKENIZER_FILE).is_file():
        raise CheckpointError(
            f"{checkpoint}: {_TOKENIZER_FILE} is missing",
            hint="export the fast tokenizer beside the weights (`save_pretrained` of a fast tokenizer writes it)",
        )
    return [_TOKENIZER_FILE, *(name for name in _COPIED_IF_PRESENT if (checkpoint / name).is_file())]


def _prepare(output: Path) -> None:
    """Make the output folder, which must be new or empty."""
    with room_for(output, 0):
        output.mkdir(parents=True, exist_ok=True)
        occupied = any(output.iterdir())
    if occupied:
        raise ConfigError(f"{output} is not empty", hint="give a new folder, or remove what is in this one")


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
