"""A checkpoint that somebody converted before is built as it is, when it is what the configuration wants."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.deployments import specdeploy
from tests.tiny import perturb_checkpoint, write_tiny_checkpoint
from tests.toolchain import install_toolchain, read_calls

if TYPE_CHECKING:
    from pathlib import Path

    from tests.toolchain import Toolchain

CONFIG = """\
name: converted
profile: tensorrt_llm
target: {checkpoint: target-converted, tokenizer: target, tp_size: 2}
draft: {checkpoint: draft}
gpu: {name: H100-80GB, count: 4}
build: {max_seq_len: 256}
"""


@pytest.fixture
def deployment(tmp_path: Path) -> tuple[Path, Toolchain]:
    """A target that was converted for two ranks, and a draft that was not."""
    write_tiny_checkpoint(tmp_path / "target", seed=1, dtype="float16")
    perturb_checkpoint(tmp_path / "target", tmp_path / "draft", 0.02)
    toolchain = install_toolchain(tmp_path / "toolchain", "1.2.1", gpus=4)
    script = [sys.executable, str(toolchain.converter("llama")), "--model_dir", "target", "--dtype", "float16"]
    subprocess.run(
        [*script, "--tp_size", "2", "--output_dir", "target-converted"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (tmp_path / "specdeploy.yaml").write_text(CONFIG + f"tensorrt_llm: {{examples_dir: {toolchain.examples}}}\n")
    return tmp_path, toolchain


def test_a_converted_target_is_not_converted_again(deployment: tuple[Path, Toolchain]) -> None:
    """One conversion, the draft's; the target's engine comes from the ranks that were there."""
    root, toolchain = deployment
    before = len(read_calls(toolchain))

    done = specdeploy("build", "--json", cwd=root, env=dict(toolchain.env))

    assert done.returncode == 0, done.stderr
    tools = [call["tool"] for call in read_calls(toolchain)[before:] if call["tool"] != "nvidia-smi"]
    assert sorted(tools) == ["convert_checkpoint.py", "trtllm-build", "trtllm-build"]
    target = json.loads(done.stdout)["target"]
    assert list(target["steps"]) == ["build"]
    assert target["facts"]["world_size"] == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["target.tp_size=4"], "converted.tp-size: target-converted was converted with tp_size 2, wanted is 4"),
        (["target.precision=fp8"], "converted.precision: target-converted was converted with precision fp16"),
        (["target.extra_convert_args=--x"], "converted.arguments"),
        (["target.tokenizer=draft-without"], "there is no checkpoint folder"),
    ],
)
def test_what_was_converted_otherwise_is_refused(
    deployment: tuple[Path, Toolchain], changes: list[str], said: str
) -> None:
    """With what it is, what was wanted, and exit code 2; nothing runs."""
    root, toolchain = deployment

    done = specdeploy("check", *(word for change in changes for word in ("--set", change)), cwd=root)

    assert done.returncode == 2, done.stderr
    assert said in done.stdout + done.stderr
    assert [call["tool"] for call in read_calls(toolchain)] == ["convert_checkpoint.py"]


def test_a_tokenizer_has_to_be_named(deployment: tuple[Path, Toolchain]) -> None:
    """Converters write none, and without it nothing about the pair can be said."""
    root, _ = deployment
    text = (root / "specdeploy.yaml").read_text().replace("tokenizer: target, ", "")
    (root / "specdeploy.yaml").write_text(text)

    done = specdeploy("check", cwd=root)

    assert done.returncode == 2
    assert "holds no tokenizer" in done.stderr
    assert "target.tokenizer" in done.stderr


def test_a_rank_that_is_missing_is_named(deployment: tuple[Path, Toolchain]) -> None:
    """Half a conversion is found before a GPU minute is spent."""
    root, _ = deployment
    (root / "target-converted" / "rank1.safetensors").unlink()

    done = specdeploy("check", cwd=root)

    assert done.returncode == 2
    assert "1 of 2 rank files are absent: rank1.safetensors" in done.stderr
