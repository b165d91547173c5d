"""What the tests of the stand-in toolchain share: small sources, and tools run in this process or in their own."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from tests.toolchain import Toolchain, build, convert, quantize
from tests.toolchain.safetensors_file import zeros

if TYPE_CHECKING:
    from pathlib import Path

FLAGS_OF = {"0.17.0": "0.16.0.dev2024121000", "0.21.0": "0.21.0", "1.0.0": "1.0.0", "1.2.1": "1.2.1"}


def write_source(path: Path, **overrides: Any) -> Path:
    """Write a Hugging Face folder of a small Llama: a configuration and a weight file; return ``path``."""
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "torch_dtype": "float32",
        "vocab_size": 300,
    }
    (path / "config.json").write_text(json.dumps(config | overrides), encoding="utf-8")
    names = ["model.safetensors", *(["medusa_lm_head.safetensors"] if "medusa_num_layers" in overrides else [])]
    for name in names:
        (path / name).write_bytes(zeros(["model.embed_tokens.weight"], "float32"))
    return path


def run(toolchain: Toolchain, *command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the toolchain as a process of its own."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **toolchain.env, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def main_build(toolchain: Toolchain, *argv: object) -> int:
    """Run ``trtllm-build`` in this process, with its timing cache kept inside the toolchain."""
    cache = ("--output_timing_cache", toolchain.root / "model.cache")
    return build.main([str(part) for part in (*cache, *argv)], toolchain.root)


def main_convert(toolchain: Toolchain, family: str, *argv: object) -> int:
    """Run a family's converter in this process."""
    return convert.main([str(part) for part in argv], toolchain.root, family)


def main_quantize(toolchain: Toolchain, *argv: object) -> int:
    """Run ``quantize.py`` in this process."""
    return quantize.main([str(part) for part in argv], toolchain.root)


def write_model(path: Path, toolchain: Toolchain, **changes: Any) -> Path:
    """Write a converted checkpoint whose configuration has ``changes``, and return its folder.

    ``quantization`` and ``mapping`` are laid over what the converter wrote, block by block.
    """
    main_convert(toolchain, "llama", "--model_dir", write_source(path / "source"), "--output_dir", path / "checkpoint")
    config = document(path / "checkpoint")
    for block in ("quantization", "mapping"):
        changes[block] = config[block] | changes.get(block, {})
    (path / "checkpoint" / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return path / "checkpoint"


def document(folder: Path) -> dict[str, Any]:
    """Return the ``config.json`` of a folder."""
    loaded: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return loaded


def names(folder: Path) -> set[str]:
    """Return the names in a folder."""
    return {path.name for path in folder.iterdir()}
