"""Deployments for GPUs on the stand-in toolchain: checkpoints, heads, configuration, and what a build left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.deployments import specdeploy
from tests.tiny import perturb_checkpoint, write_tiny_checkpoint
from tests.toolchain import install_toolchain, read_calls, set_faults
from tests.unit.checkpoint.folders import safetensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.toolchain import Toolchain

TARGET: Final = "tiny-llama"
DRAFT: Final = "tiny-draft"
CONVERTER: Final = "convert_checkpoint.py"
QUANTIZER: Final = "quantize.py"
BUILDER: Final = "trtllm-build"
# Those of the tiny checkpoints.
_HIDDEN: Final = 64
_VOCABULARY: Final = 300
_HEADS: Final = 2
# Less than a tool is held at most: a test that waits for its end would otherwise pass, late.
_PATIENCE_S: Final = 40.0


class Started:
    """A command line that runs while the test goes on; what it prints goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def text(self) -> str:
        """What it printed so far, on both streams."""
        return self._output.read_text(encoding="utf-8")

    def says(self, text: str) -> None:
        """Wait until it has printed *text*."""
        eventually(lambda: text in self.text or self.process.poll() is not None, f"{text!r} in {self.text!r}")
        assert text in self.text

    def ends(self) -> int:
        """Wait for its end and return its exit code."""
        return self.process.wait(_PATIENCE_S)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuDeployment:
    """A folder with a configuration and its checkpoints, and the toolchain that builds it.

    Args:
        folder: Where the command line runs.
        toolchain: What is first on its PATH.
        env: Further variables of the command line.
    """

    folder: Path
    toolchain: Toolchain
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def store(self) -> Path:
        """The engine store."""
        return self.folder / "engines"

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command line to its end."""
        return specdeploy(*arguments, cwd=self.folder, timeout_s=120, env=self._environment(env))

    def run_json(self, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
        """Run a command line that must do well, with ``--json``, and return its document."""
        done = self.run(*arguments, "--json", env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def start(self, *arguments: str, name: str = "started") -> Iterator[Started]:
        """Start a command line; it is ended with the block at the latest, and so is what it started."""
        output = self.folder / f"{name}.out"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "specdeploy", *arguments],
                cwd=self.folder,
                env={**os.environ, **self._environment(None)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Started(process, output)
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            finally:
                process.kill()
                process.wait()

    def calls(self, tool: str | None = None) -> list[dict[str, Any]]:
        """Return the calls of the toolchain, oldest first: those of one tool, or all but of ``nvidia-smi``."""
        made = read_calls(self.toolchain)
        return [call for call in made if (call["tool"] == tool if tool else call["tool"] != "nvidia-smi")]

    def fail(self, **faults: str) -> None:
        """Make tools fail from now on: ``builder=``, ``converter=`` and ``quantizer=``; none heals them all."""
        names = {"builder": BUILDER, "converter": CONVERTER, "quantizer": QUANTIZER}
        set_faults(self.toolchain, {names[name]: fault for name, fault in faults.items()})

    @contextlib.contextmanager
    def held(self, **tools: str) -> Iterator[Callable[[], None]]:
        """Make tools work until they are released: by what is returned, or with the block."""
        gate = self.folder / "go"
        self.fail(**dict.fromkeys(tools or {"builder": ""}, f"slow:{gate}"))
        try:
            yield gate.touch
        finally:
            gate.touch()

    def engines(self) -> list[Path]:
        """Return the published engines."""
        return sorted(path for path in self.store.glob("[0-9a-f]*") if path.is_dir())

    def leftovers(self) -> list[str]:
        """Return what is in the store beside engines, locks, logs and what finished steps wrote."""
        known = {".locks", "logs", ".steps", *(path.name for path in self.engines())}
        return sorted(path.name for path in self.store.iterdir() if path.name not in known)

    def manifest(self, checkpoint: str) -> dict[str, Any]:
        """Return the manifest of the one engine that was made from a checkpoint."""
        documents = (json.loads((path / "manifest.json").read_text(encoding="utf-8")) for path in self.engines())
        (found,) = (document for document in documents if document["checkpoint_name"] == checkpoint)
        return dict(found)

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**self.toolchain.env, **self.env, **(env or {})}


def write_gpu_deployment(
    folder: Path,
    *,
    method: str = "ngram",
    release: str = "1.2.1",
    gpus: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> GpuDeployment:
    """Write the checkpoints that a method needs, a configuration and a toolchain; return the deployment.

    Args:
        folder: Where everything goes; made if missing.
        method: The speculative method; ``ngram`` needs one engine only.
        release: The TensorRT-LLM release of configuration and toolchain.
        gpus: GPUs that the machine pretends to have.
        settings: Key path, such as ``build.max_batch_size``, to value: on top of the configuration.
    """
    write_tiny_checkpoint(folder / TARGET, seed=1)
    toolchain = install_toolchain(folder / "toolchain", release, gpus=gpus)
    document: dict[str, Any] = {
        "name": "tiny",
        "profile": "tensorrt_llm",
        "release": release,
        "target": {"checkpoint": TARGET},
        "speculation": {"method": method},
        "build": {"max_seq_len": 256},
        "tensorrt_llm": {"examples_dir": str(toolchain.examples), "python": sys.executable},
    }
    if method == "draft_target":
        perturb_checkpoint(folder / TARGET, folder / DRAFT, 0.02)
        document["draft"] = {"checkpoint": DRAFT}
    if method in HEAD_WRITERS:
        HEAD_WRITERS[method](folder / method)
        document["draft"] = {"checkpoint": method}
        document["speculation"] |= {"num_heads": _HEADS} if method == "medusa" else {}
    for path, value in (settings or {}).items():
        section, _, key = path.rpartition(".")
        (document.setdefault(section, {}) if section else document)[key] = value
    (folder / "specdeploy.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return GpuDeployment(folder=folder, toolchain=toolchain)


def write_medusa(path: Path, *, base_model: str = TARGET) -> Path:
    """Write two Medusa heads, under the bare names of the original; return the folder."""
    config = {"medusa_num_heads": _HEADS, "medusa_num_layers": 1, "base_model_name_or_path": base_model}
    head = {
        "0.linear.weight": (_HIDDEN, _HIDDEN),
        "0.linear.bias": (_HIDDEN,),
        "1.weight": (_VOCABULARY, _HIDDEN),
    }
    tensors = {f"{number}.{name}": shape for number in range(_HEADS) for name, shape in head.items()}
    return _write(path, config, tensors)


def write_eagle(path: Path) -> Path:
    """Write an EAGLE head of one layer, with the bias that TensorRT-LLM's converter reads; return the folder."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 512,
        "vocab_size": _VOCABULARY,
    }
    layer = {
        "self_attn.q_proj": (_HIDDEN, _HIDDEN),
        "self_attn.k_proj": (_HIDDEN // 2, _HIDDEN),
        "self_attn.v_proj": (_HIDDEN // 2, _HIDDEN),
        "self_attn.o_proj": (_HIDDEN, _HIDDEN),
        "mlp.gate_proj": (2 * _HIDDEN, _HIDDEN),
        "mlp.up_proj": (2 * _HIDDEN, _HIDDEN),
        "mlp.down_proj": (_HIDDEN, 2 * _HIDDEN),
        "post_attention_layernorm": (_HIDDEN,),
    }
    tensors = {
        "embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        "fc.weight": (_HIDDEN, 2 * _HIDDEN),
        "fc.bias": (_HIDDEN,),
        **{f"layers.0.{name}.weight": shape for name, shape in layer.items()},
    }
    return _write(path, config, tensors)


def write_redrafter(path: Path) -> Path:
    """Write a recurrent ReDrafter head of two blocks; return the folder."""
    wide = 2 * _HIDDEN
    config = {"hidden_size": _HIDDEN, "exit_dim": wide, "num_draft_layers": 2, "rnn": True, "vocab_size": _VOCABULARY}
    tensors: dict[str, tuple[int, ...]] = {
        "lm_head.2.weight": (_VOCABULARY, wide),
        "rnn_u.weight": (_HIDDEN, _HIDDEN),
        "rnn_u.bias": (_HIDDEN,),
        "rnn_w.weight": (_HIDDEN, _HIDDEN),
    }
    for block in range(2):
        tensors |= {f"lm_head.{block}.linear.weight": (wide, wide), f"lm_head.{block}.linear.bias": (wide,)}
    return _write(path, config, tensors)


HEAD_WRITERS: Final[Mapping[str, Callable[[Path], Path]]] = {
    "medusa": write_medusa,
    "eagle": write_eagle,
    "redrafter": write_redrafter,
}


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until *condition* holds; fail when it takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Say whether a process runs; one that has ended and was not reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - a file of the kernel's
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    name = "medusa_lm_head.safetensors" if "medusa_num_heads" in config else "model.safetensors"
    (path / name).write_bytes(safetensors(tensors))
    return path
