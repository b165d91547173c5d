"""What the server counted while blocks ran: summed by arm and load, and compared with what was sent."""

from __future__ import annotations

import pytest

from specdeploy.bench.records import CONTROL, SPECULATION, WARMUP_PAIR, LoadPoint
from specdeploy.bench.server_window import GaugeLog, GaugeReading, ServerWindow, summarize_server, traffic_findings
from specdeploy.deploy.counts import ModelCounts, ServerCounts
from specdeploy.deploy.status import Acceptance
from tests.unit.bench.simulated import record

MS = 1_000_000


def counts(requests: int, *, drafted: int | None = None) -> ServerCounts:
    """Return counters after so many requests of 1 ms in the queue and 4 ms of compute, two in a batch."""
    model = ModelCounts(
        requests=requests,
        failures=0,
        executions=requests // 2,
        inferences=requests,
        total_ns=5 * MS * requests,
        queue_ns=MS * requests,
        compute_ns=4 * MS * requests,
    )
    drafts = None if drafted is None else Acceptance(drafted=drafted, accepted=drafted // 2)
    return ServerCounts(
        models={"ensemble": model, "idle": counts(0).models["ensemble"]} if requests else {"ensemble": model},
        drafts=drafts,
    )


def window(arm=SPECULATION, pair=0, before=10, after=14, drafted=(20, 60), start_s=0.0) -> ServerWindow:
    """Return a block of four requests and 40 drafts."""
    return ServerWindow(
        arm=arm,
        point=LoadPoint(concurrency=1),
        pair=pair,
        start_s=start_s,
        end_s=start_s + 1.0,
        before=counts(before, drafted=drafted[0]),
        after=counts(after, drafted=drafted[1]),
    )


def test_windows_of_an_arm_are_added_up() -> None:
    """Per request, and the warm-up left out; a model that was not asked is not there."""
    found = summarize_server([window(pair=WARMUP_PAIR), window(pair=0), window(pair=1), window(arm=CONTROL)])

    control, speculation = found
    assert (control["arm"], control["blocks"], control["concurrency"], control["rate"]) == (CONTROL, 1, 1, None)
    assert speculation["models"] == {
        "ensemble": {
            "requests": 8,
            "failures": 0,
            "batch_size": 2.0,
            "queue_ms": 1.0,
            "compute_ms": 4.0,
            "total_ms": 5.0,
        }
    }
    assert speculation["acceptance"] == {
        "source": "counters",
        "draft_tokens": 80,
        "accepted_tokens": 40,
        "acceptance_rate": 0.5,
    }


@pytest.mark.parametrize("drafted", [(None, None), (None, 60), (60, 20)])
def test_drafts_that_are_not_counted_are_absent(drafted: tuple[int | None, int | None]) -> None:
    """Nor those of a decoder that began anew within a block; zero would say that nothing was drafted."""
    assert summarize_server([window(drafted=drafted)])[0]["acceptance"] is None


def test_a_model_that_began_anew_is_absent() -> None:
    """Its counters went down: nobody knows what it did before."""
    assert summarize_server([window(before=14, after=10)])[0]["models"] == {}


def test_gauges_belong_to_the_blocks_in_which_they_were_read() -> None:
    """What was read between blocks belongs to none."""
    readings = [
        GaugeReading(at_s=at_s, values={"nv_gpu_utilization": value})
        for at_s, value in ((0.5, 0.2), (0.9, 0.6), (1.5, 0.9))
    ]

    assert summarize_server([window()], readings)[0]["gauges"] == {
        "nv_gpu_utilization": {"readings": 2, "avg": pytest.approx(0.4), "max": 0.6}
    }


@pytest.mark.parametrize(("sent", "found"), [(4, 0), (3, 1), (5, 0)])
def test_requests_of_others_are_found(sent: int, found: int) -> None:
    """Fewer than were sent is no proof: one may never have come there."""
    records = [record(index=index) for index in range(sent)]

    findings = traffic_findings([window()], records, "ensemble")

    assert len(findings) == found
    assert all("counted 1 requests that this load test did not send" in finding.message for finding in findings)


def test_a_log_of_gauges_gives_the_readings_as_they_were() -> None:
    """Also those of a gauge that came later, or was not there for a while; as often as they are asked for."""
    log = GaugeLog()
    log.add(1.0, {"a": 0.5})
    log.add(2.0, {"a": 0.7, "b": 3.0})
    log.add(3.0, {"b": 4.0})

    for _ in range(2):
        assert list(log) == [
            GaugeReading(at_s=1.0, values={"a": 0.5}),
            GaugeReading(at_s=2.0, values={"a": 0.7, "b": 3.0}),
            GaugeReading(at_s=3.0, values={"b": 4.0}),
        ]
