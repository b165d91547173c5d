"""How the last requests went."""

from __future__ import annotations

import pytest

from specdeploy.bench.pace import Pace, RecentRequests, together
from tests.unit.bench.simulated import failed, record


def recent(*records) -> Pace:
    """The pace of requests in this order."""
    requests = RecentRequests()
    for item in records:
        requests.add(item)
    return requests.pace


def test_the_last_requests_in_words() -> None:
    """Two of 7 tokens in a second, a tenth of a second to the first one, 3 of 12 drafts each."""
    pace = recent(record(), record(index=1, sent_s=0.6, first_s=0.7, ended_s=1.0))

    assert str(pace) == "2 requests/s, 14 tokens/s, TTFT 100 ms, 25% accepted"


def test_requests_of_another_arm_or_load_begin_anew() -> None:
    """What the control did says nothing of speculation, nor one load of the next."""
    assert recent(record(arm="control"), record()).requests_s is None
    assert recent(record(), record(concurrency=2)).requests_s is None


def test_what_is_not_known_is_left_out() -> None:
    """No tokens are counted, nothing is drafted, or nothing came back."""
    assert str(recent(record(output_tokens=None, draft_tokens=None))) == "TTFT 100 ms"
    assert str(recent(failed())) == ""


def test_generators_together() -> None:
    """Rates add up; times and shares do not."""
    one = Pace(requests_s=1.0, tokens_s=10.0, first_s=0.1, accepted=0.5)
    two = Pace(requests_s=2.0, tokens_s=30.0, first_s=0.3)

    assert together([one, two, Pace()]) == Pace(requests_s=3.0, tokens_s=40.0, first_s=pytest.approx(0.2), accepted=0.5)
    assert together([]) == Pace()
