"""A build whose conversion is real: nvidia-modelopt on a CPU, and the stand-in of trtllm-build on what it wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.conftest import modelopt_python
from tests.deployments import specdeploy
from tests.tiny import perturb_checkpoint, write_tiny_checkpoint
from tests.toolchain import install_toolchain

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.modelopt, pytest.mark.timeout(280)]

CONFIG = """\
name: converted
profile: tensorrt_llm
target: {{checkpoint: target, tp_size: 2}}
draft: {{checkpoint: draft, precision: fp8, extra_convert_args: ["--device cpu"]}}
gpu: {{name: H100-80GB, count: 2}}
build: {{max_seq_len: 256}}
tensorrt_llm:
  converter: modelopt
  python: {python}
  logits_dtype: float16
  calib_dataset: texts.txt
  calib_size: 4
"""


def test_real_conversions_go_through_the_whole_build(tmp_path: Path) -> None:
    """Two ranks at fp16 and one at fp8: converted in process, accepted by the builder, verified and published."""
    write_tiny_checkpoint(tmp_path / "target", seed=1, dtype="float16")
    perturb_checkpoint(tmp_path / "target", tmp_path / "draft", 0.02)
    (tmp_path / "texts.txt").write_text("def f(x):\nreturn x + 1\nfor i in range(10):\nprint(i)\n")
    toolchain = install_toolchain(tmp_path / "toolchain", "1.2.1", gpus=2)
    (tmp_path / "specdeploy.yaml").write_text(CONFIG.format(python=modelopt_python()))

    done = specdeploy("build", "--json", cwd=tmp_path, env=dict(toolchain.env))

    assert done.returncode == 0, done.stderr
    engines = json.loads(done.stdout)
    for role, ranks, algorithm in (("target", 2, None), ("draft", 1, "FP8")):
        manifest = engines[role]
        folder = tmp_path / "engines" / manifest["key"][:16]
        recorded = json.loads((folder / "config.json").read_text())["pretrained_config"]
        assert recorded["quantization"]["quant_algo"] == algorithm
        assert recorded["producer"]["name"] == "modelopt"
        assert len(list(folder.glob("rank*.engine"))) == ranks
        assert set(manifest["steps"]) >= {"build"}
