"""Plans are data: two engines, their keys and their commands, and nothing has run."""

from __future__ import annotations

import dataclasses
import json

from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.engine.cpu import CpuProfile
from specdeploy.planning.build import Sources, plan_build
from tests.unit.checkpoint.folders import info

CONFIG = DeployConfig(
    name="demo",
    target=ModelConfig(checkpoint="big", precision="fp32"),
    draft=ModelConfig(checkpoint="small", precision="int8"),
    build=BuildConfig(max_seq_len=128, max_batch_size=3),
)
TARGET = info()
DRAFT = info(name="small", path="/checkpoints/small", fingerprint="e" * 64)
SOURCES = Sources(target=TARGET, draft=DRAFT)
PROFILE = CpuProfile(python="python3")


def test_both_engines_are_planned_target_first():
    """With names for people and the limits of the deployment."""
    target, draft = plan_build(CONFIG, SOURCES, PROFILE).engines

    assert (target.spec.role, target.spec.name, target.spec.precision) == ("target", "big-fp32", "fp32")
    assert (draft.spec.role, draft.spec.name, draft.spec.precision) == ("draft", "small-int8", "int8")
    assert (target.spec.max_seq_len, target.spec.max_batch_size, target.limit) == (128, 3, 2048)
    assert target.key == target.steps[0].key != draft.key


def test_one_checkpoint_at_one_precision_is_one_engine():
    """Both roles have the same key, so it is built once."""
    config = dataclasses.replace(CONFIG, draft=ModelConfig(checkpoint="copy", precision="fp32"))

    target, draft = plan_build(
        config, Sources(target=TARGET, draft=info(name="copy", path="/elsewhere")), PROFILE
    ).engines

    assert target.key == draft.key


def test_a_plan_is_the_same_every_time_and_can_be_written_down():
    """Equal inputs, equal plan, and JSON that holds the commands but not the vocabulary."""
    first, second = (plan_build(CONFIG, SOURCES, PROFILE) for _ in range(2))
    document = json.loads(json.dumps(first.as_dict()))

    assert first == second
    assert document["engines"][1]["steps"][0]["argv"][0] == "python3"
    assert document["engines"][0]["checkpoint"] == {"path": "/checkpoints/big", "fingerprint": "f" * 64}
    assert "vocab" not in json.dumps(document["engines"])
