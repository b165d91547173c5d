"""Stages of a load as they are written."""

from __future__ import annotations

import pytest

from specdeploy.bench.arrivals import Stage
from specdeploy.bench.stages import parse_stages
from specdeploy.errors import ConfigError


def test_steady_stages_and_ramps() -> None:
    """In the order in which they are written, in seconds, minutes or hours."""
    assert parse_stages(["5 for 60s", "5..20 for 2m", " 0.5/s for 1.5 h "]) == (
        Stage(start=5, end=5, duration_s=60),
        Stage(start=5, end=20, duration_s=120),
        Stage(start=0.5, end=0.5, duration_s=5400),
    )
    assert parse_stages([]) == ()


@pytest.mark.parametrize(
    "text", ["", "5", "5 for 60", "5 for s", "-5 for 60s", "5..for 60s", "nan for 60s", "5 to 6 for 1s"]
)
def test_what_is_no_stage_is_refused(text: str) -> None:
    """With the text, and how to write it."""
    with pytest.raises(ConfigError, match="cannot read the load stage") as caught:
        parse_stages([text])
    assert "5 for 60s" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"), [("5 for 0s", "lasts 0 s"), ("1e999 for 1s", "start of a load stage is inf")]
)
def test_a_stage_that_cannot_be_is_refused(text: str, said: str) -> None:
    """No time, or a rate beyond all numbers."""
    with pytest.raises(ConfigError, match=said):
        parse_stages([text])
