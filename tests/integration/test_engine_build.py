"""The `cpu` profile for real: a tiny checkpoint is read, planned, compiled by a real process, and found again."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import pytest

from specdeploy.checkpoint.compat import check_pair
from specdeploy.checkpoint.read import read_checkpoint
from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.engine.cpu import CpuProfile
from specdeploy.engine.events import CacheHit, Published
from specdeploy.engine.execute import execute
from specdeploy.engine.store import EngineStore
from specdeploy.errors import BuildFailed
from specdeploy.planning.build import Sources, plan_build
from specdeploy.system.clock import SystemClock
from specdeploy.system.jobs import LocalJobs
from specdeploy.system.process import SubprocessRunner

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cpu

CONFIG = DeployConfig(
    name="tiny",
    target=ModelConfig(checkpoint="tiny", precision="fp32"),
    draft=ModelConfig(checkpoint="tiny", precision="int8"),
    build=BuildConfig(max_seq_len=64),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny Llama folder."""
    from tests.tiny import write_tiny_checkpoint

    return read_checkpoint(write_tiny_checkpoint(tmp_path_factory.mktemp("c") / "tiny"))


def _build(root: Path, checkpoint, config=CONFIG, profile=None):
    events = []
    profile = profile or CpuProfile()
    plan = plan_build(config, Sources(target=checkpoint, draft=checkpoint), profile)
    store = EngineStore(root / "engines")
    manifests = execute(
        plan,
        profile=profile,
        jobs=LocalJobs(SubprocessRunner()),
        store=store,
        clock=SystemClock(),
        timeout_s=120,
        on_event=events.append,
    )
    return store, manifests, events


def test_a_pair_is_built_and_the_second_run_is_a_hit(tmp_path, checkpoint):
    """Two engines with all their files; nothing runs the second time."""
    store, (target, draft), events = _build(tmp_path, checkpoint)
    _, again, later = _build(tmp_path, checkpoint)

    assert (target.name, draft.name) == ("tiny-fp32", "tiny-int8")
    assert {"genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json"} <= {f.path for f in draft.files}
    assert [type(event) for event in events].count(Published) == 2
    assert [type(event) for event in later] == [CacheHit, CacheHit]
    assert again == (target, draft)
    assert store.verify(target.key, full=True) == store.verify(draft.key, full=True) == ()
    assert set(target.tool_versions) == {"numpy", "onnx"}
    assert str(tmp_path) not in (store.path(draft.key) / "genai_config.json").read_text()


def test_the_checkpoint_is_understood(checkpoint):
    """A pair of it and itself has nothing to complain about, at a lower precision."""
    findings = check_pair(
        checkpoint, checkpoint, method="draft_target", max_seq_len=64, num_draft_tokens=3, precisions=("fp32", "int8")
    )

    assert [finding.code for finding in findings] == ["draft.cost"]
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.tokenizer.special_tokens["eos_token"] == "<|im_end|>"


def test_a_full_disk_leaves_nothing(tmp_path, checkpoint):
    """A limit on file sizes stands in for the disk: the compiler really fails half-way, and what it wrote is gone."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -f 64\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    with pytest.raises(BuildFailed, match="no space left while building") as caught:
        _build(tmp_path, checkpoint, profile=CpuProfile(python=str(python)))

    root = tmp_path / "engines"
    assert "build.engines_dir" in caught.value.hint
    assert sorted(path.name for path in root.iterdir()) == [".locks", "logs"]
    _, manifests, _ = _build(tmp_path, checkpoint)
    assert len(manifests) == 2


def test_a_checkpoint_that_cannot_be_compiled_shows_the_compilers_words(tmp_path, checkpoint):
    """Its last lines are in the error."""
    missing = dataclasses.replace(checkpoint, path=str(tmp_path))

    with pytest.raises(BuildFailed, match=r"ended with exit code 2; nothing was published[\s\S]*config\.json"):
        _build(tmp_path, missing)
