"""The load test as AIPerf's artifacts."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime

import pytest

from specdeploy.bench.metrics import DISTRIBUTION_STATS, METRICS
from specdeploy.bench.per_request import OF_REQUEST, chunk_gaps_ms, defined
from specdeploy.bench.table import table_of
from specdeploy.errors import ConfigError
from specdeploy.report.exports import aiperf_json, aiperf_records, load_label
from tests.unit.report.exported import closed_loop, contradicting, open_loop

DOCUMENT, RECORDS = closed_loop()
#: Our key -> AIPerf's, unit there, and what our value is multiplied by.
OTHERWISE = {
    "error_rate": ("request_error_rate", "%", 100),
    "spec_decode_draft_acceptance_rate": ("spec_decode_draft_acceptance_rate", "%", 100),
    "overall_spec_decode_draft_acceptance_rate": ("spec_decode_overall_draft_acceptance_rate", "%", 100),
    "spec_decode_acceptance_length": ("spec_decode_acceptance_length", "ratio", 1),
    "overall_spec_decode_acceptance_length": ("spec_decode_token_weighted_acceptance_length", "ratio", 1),
    "spec_decode_steps": ("spec_decode_steps", "count", 1),
}


def summary(document=DOCUMENT, records=RECORDS, arm="speculation", load="concurrency 4", **options) -> dict:
    """What the summary file holds."""
    text = aiperf_json(document, records, arm=arm, load=load, **options)
    return json.loads(text, parse_constant=pytest.fail)


def lines(document=DOCUMENT, records=RECORDS, arm="speculation", load="concurrency 4", **options) -> list[dict]:
    """What the records file holds."""
    text = aiperf_records(document, records, arm=arm, load=load, **options)
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def requests(arm="speculation", concurrency=4) -> list:
    """The requests that count, in the order in which they were sent."""
    found = [item for item in RECORDS if item.counts and (item.arm, item.concurrency) == (arm, concurrency)]
    return sorted(found, key=lambda item: item.sent_s)


@pytest.mark.parametrize("number", range(4))
def test_every_number_of_the_summary_is_the_documents_own(number: int) -> None:
    """Under AIPerf's names and in its units; what was not measured is absent."""
    entry = DOCUMENT["arms"][number]
    written = summary(arm=entry["arm"], load=load_label(entry))
    single = {key: value for key, value in entry["metrics"].items() if METRICS[key].kind != "list"}
    expected = {}
    for key, value in single.items():
        tag, unit, scale = OTHERWISE.get(key, (key, value["unit"], 1))
        numbers = {
            stat: value[stat] * (1 if stat == "count" else scale) for stat in DISTRIBUTION_STATS if stat in value
        }
        expected[tag] = {"unit": unit, **numbers}

    assert {key: value for key, value in written.items() if isinstance(value, dict) and "unit" in value} == expected


def test_the_histogram_is_pooled_and_sparse() -> None:
    """AIPerf keys it by the number of accepted drafts; the control has none."""
    (entry,) = [e for e in DOCUMENT["arms"] if (e["arm"], e["concurrency"]) == ("speculation", 4)]
    values = entry["metrics"]["spec_decode_acceptance_histogram"]["values"]

    assert summary()["pooled_spec_decode_acceptance_histogram"] == {str(j): n for j, n in enumerate(values) if n}
    assert "pooled_spec_decode_acceptance_histogram" not in summary(arm="control")


def test_a_plot_finds_arm_and_load() -> None:
    """The model's name tells the arms apart, the phase has the load and what was sent."""
    config = summary()["input_config"]

    assert config["models"]["items"] == [{"name": "smollm2, speculation"}]
    assert config["phases"] == [
        {"name": "profiling", "type": "concurrency", "concurrency": 4, "requests": len(requests())}
    ]
    assert summary()["run_info"]["variation_label"] == "speculation, concurrency 4"


def test_an_open_loop_has_a_rate_and_no_concurrency() -> None:
    """Its process is the phase's type, if AIPerf knows it."""
    document, records = open_loop()
    (phase,) = summary(document, records, load="5 requests/s")["input_config"]["phases"]
    traced = {**document, "plan": {"shape": "trace"}}

    assert (phase["type"], phase["rate"], "concurrency" in phase) == ("poisson", 5.0, False)
    assert "type" not in summary(traced, records, load="5 requests/s")["input_config"]["phases"][0]


def test_failures_are_counted_by_kind_with_the_words_of_the_first() -> None:
    """As AIPerf's error summary; a clean arm has an empty one."""
    failed = [item for item in RECORDS if item.counts and not item.ok]
    (arm,) = {item.arm for item in failed}
    other = next(name for name in ("control", "speculation") if name != arm)

    assert summary(arm=arm)["error_summary"] == [
        {"error_details": {"type": "timeout", "message": "no response in 9 s"}, "count": 1}
    ]
    assert summary(arm=other)["error_summary"] == []


def test_a_partial_run_is_incomplete() -> None:
    """And says why."""
    written = summary({**DOCUMENT, "partial": True, "stop_reason": "the deadline passed"})

    assert (written["is_complete"], written["was_cancelled"]) == (False, True)
    assert written["incomplete_reason"] == "the deadline passed"
    assert (summary()["is_complete"], summary()["was_cancelled"], "incomplete_reason" in summary()) == (
        True,
        False,
        False,
    )


@pytest.mark.parametrize(("arm", "concurrency"), [("control", 1), ("speculation", 1), ("speculation", 4)])
def test_every_number_of_a_record_is_that_requests(arm: str, concurrency: int) -> None:
    """A line for each request that counts, in the order of sending; one that failed has its error alone."""
    own = requests(arm, concurrency)
    written = lines(arm=arm, load=f"concurrency {concurrency}")

    assert [line["metadata"]["conversation_id"] for line in written] == [item.prompt_id for item in own]
    for line, item in zip(written, own, strict=True):
        table = table_of([item])
        values = {key: defined(of(table)).tolist() for key, of in OF_REQUEST.items()} if item.ok else {}
        expected = {key: value for key, found in values.items() for value in found}
        gaps = {"inter_chunk_latency": chunk_gaps_ms(table).tolist()} if item.ok else {}
        measured = {tag: metric["value"] for tag, metric in line["metrics"].items() if "spec_decode" not in tag}
        assert measured == {**expected, **gaps}
        assert ("error" in line) == (not item.ok)


def test_acceptance_of_a_request_has_the_counts_beside_the_ratios() -> None:
    """The metric is a percentage, AIPerf's own record a fraction; the control has neither."""
    item = next(item for item in requests() if item.ok)
    line = next(line for line in lines() if "error" not in line)
    record, metrics = line["spec_decode_acceptance"], line["metrics"]

    assert record["acceptance_histogram"] == {str(j): n for j, n in enumerate(item.histogram) if n}
    counts = [record[f"num_{name}"] for name in ("spec_steps", "draft_tokens", "accepted_draft_tokens")]
    assert counts == [item.num_spec_steps, item.draft_tokens, item.accepted_tokens]
    assert record["draft_acceptance_rate"] == item.accepted_tokens / item.draft_tokens
    assert metrics["spec_decode_draft_acceptance_rate"] == {
        "value": record["draft_acceptance_rate"] * 100,
        "unit": "%",
    }
    assert (record["engine"], record["completion_tokens"]) == ("cpu", item.output_tokens)
    assert not any("spec_decode" in key for line in lines(arm="control") for key in (*line, *line["metrics"]))


def test_acceptance_that_the_summary_refused_is_not_in_the_records() -> None:
    """Counts that contradict each other make every request's acceptance doubtful."""
    document, records = contradicting()

    assert not any("spec_decode_acceptance" in line for line in lines(document, records, load="concurrency 1"))


def test_times_are_wall_clock_to_the_nanosecond() -> None:
    """They are moved as a whole, so that what lies between them stays."""
    line, item = lines(epoch_offset_s=1_769_850_000.25)[0]["metadata"], requests()[0]
    since = {name: line[name] - 1_769_850_000_250_000_000 for name in line if name.endswith("_ns")}

    assert since == {
        "credit_issued_ns": round(item.intended_s * 1e9),
        "request_start_ns": round(item.sent_s * 1e9),
        "request_end_ns": round(item.last_s * 1e9),
    }


def test_the_offset_of_the_clocks_follows_from_the_document() -> None:
    """``started_at`` and ``started_s`` are one moment on both clocks."""
    first = requests()[0]
    epoch_s = datetime.fromisoformat(DOCUMENT["started_at"]).timestamp() - DOCUMENT["started_s"] + first.sent_s

    assert lines()[0]["metadata"]["request_start_ns"] == pytest.approx(epoch_s * 1e9, abs=1000)
    assert datetime.fromisoformat(summary()["start_time"]).timestamp() == pytest.approx(epoch_s, abs=1e-5)


def test_without_a_wall_clock_there_is_no_date() -> None:
    """Times stay on the records' clock, where their differences still mean something."""
    document = {key: value for key, value in DOCUMENT.items() if not key.startswith("started")}
    written = summary(document)

    assert ("start_time" in written, "end_time" in written) == (False, False)
    assert lines(document)[0]["metadata"]["request_start_ns"] == round(requests()[0].sent_s * 1e9)


def test_warm_up_and_what_we_cut_off_ourselves_are_left_out() -> None:
    """As they are of every statistic."""
    cut = tuple(dataclasses.replace(item, error="interrupted") if item is requests()[0] else item for item in RECORDS)

    assert len(lines(records=cut)) == len(requests()) - 1
    assert any(item.pair < 0 for item in RECORDS)
    assert len(lines()) == len(requests())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load": "concurrency 9"}, "speculation, concurrency 9 was not measured"),
        ({"records": ()}, "there are no records of speculation, concurrency 4"),
        ({"document": {**DOCUMENT, "started_at": "yesterday"}}, "started_at of the load document is 'yesterday'"),
    ],
)
def test_what_cannot_be_exported_is_said(options: dict, message: str) -> None:
    """With the value that was seen and what to do."""
    with pytest.raises(ConfigError, match=message) as error:
        lines(**options)

    assert error.value.hint
    with pytest.raises(ConfigError, match=message):
        summary(**options)
