"""What the terminal says while a load test runs."""

from __future__ import annotations

import pytest

from specdeploy.bench.driver import Progress
from specdeploy.cli._events import LoadLines
from tests.unit.bench.simulated import record


@pytest.mark.parametrize(
    "counts", [{"output_tokens": 10**400}, {"draft_tokens": 1, "accepted_tokens": 10**400}, {"output_tokens": -5}]
)
def test_no_number_of_a_server_ends_a_run_that_shows_it(counts: dict[str, int]) -> None:
    """However large a count is, the line goes on to be shown."""
    show = LoadLines()

    show(Progress(block=1, blocks=1, done=1, total=2, errors=0, in_flight=1, record=record(**counts)))
