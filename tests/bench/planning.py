"""How long ``plan`` and a build with nothing to do take for a 70B and an 8B checkpoint, against an empty Python."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.large import LLAMA_8B, LLAMA_70B, write_large_checkpoint
from tests.toolchain import install_toolchain

REPEATS = 7
CONFIG = """\
name: large
profile: tensorrt_llm
release: 1.2.1
target: {{checkpoint: llama-70b, tp_size: 4}}
draft: {{checkpoint: llama-8b}}
gpu: {{name: H100-80GB, count: 8}}
build: {{max_seq_len: 8192}}
tensorrt_llm: {{examples_dir: {examples}}}
"""


def rows() -> list[tuple[str, float]]:
    """Return the ratios; the three programs take turns. The checkpoints are headers over sparse files."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_large_checkpoint(root / "llama-70b", LLAMA_70B)
        write_large_checkpoint(root / "llama-8b", LLAMA_8B)
        toolchain = install_toolchain(root / "toolchain", "1.2.1", gpus=8)
        (root / "specdeploy.yaml").write_text(CONFIG.format(examples=toolchain.examples))
        environment = {**os.environ, **toolchain.env}
        # An installed package has its bytecode; without it, most of the time would go into compiling ours.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Planning is for machines without a GPU: there is nothing of TensorRT-LLM, and no nvidia-smi to ask.
        laptop = {name: value for name, value in environment.items() if name not in toolchain.env} | {
            "PATH": os.environ["PATH"]
        }
        script = str(Path(sys.executable).with_name("specdeploy"))
        programs = {
            "python": [sys.executable, "-c", "pass"],
            "plan": [script, "plan"],
            "build": [script, "build"],
        }
        _run(programs["build"], root, environment)
        taken: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(REPEATS):
            for name, command in programs.items():
                taken[name].append(_run(command, root, environment if name == "build" else laptop))
    middle = {name: median(values) for name, values in taken.items()}
    return [
        ("plan of 70B + 8B, 30 shards each / python -c pass", middle["plan"] / middle["python"]),
        ("build with nothing to do / python -c pass", middle["build"] / middle["python"]),
        ("plan of 70B + 8B, ms", 1e3 * middle["plan"]),
        ("build with nothing to do, ms", 1e3 * middle["build"]),
    ]


def _run(command: list[str], root: Path, environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, timeout=300)
    return time.perf_counter() - started
