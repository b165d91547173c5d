"""What a repository says of an engine's size and build time."""

from __future__ import annotations

import pytest

from specdeploy.triton.repository.facts import EngineFacts
from tests.unit.engine.fakes import manifest

STEPS = {"convert": {"argv": "a"}, "build": {"argv": "b"}}


@pytest.mark.parametrize(
    ("steps", "build_s"),
    [({"convert": 20.5, "build": 100.0}, 125.25), ({"build": 100.0}, None), ({}, None)],
)
def test_a_build_that_went_on_from_kept_steps_has_no_time(steps, build_s) -> None:
    """It took longer than the manifest knows; absent is not less."""
    facts = EngineFacts.of(manifest(parts=STEPS, steps=steps, duration_s=125.25, size_bytes=7))
    told = facts.as_dict("tensorrt_llm")

    assert (told["size_bytes"], told.get("build_s")) == (7, build_s)
    assert ("build_s" in told) == (build_s is not None)
