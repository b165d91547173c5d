"""Baselines: what is kept of a run, what is refused, and the history."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.baseline import MOST_CHARACTERS, MOST_RUNS, history, parse_baseline, render_baseline, with_run
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.fingerprint import differences, fingerprint_of
from specdeploy.gate.rules import parse_rule
from specdeploy.gate.verdict import Evidence, evaluate
from tests.unit.gate.test_gate_relative import BASELINE, LOAD, baseline, run

TEXT = render_baseline(BASELINE)


def changed(**parts) -> str:
    """The text of the baseline with parts of it replaced."""
    return json.dumps({**json.loads(TEXT), **parts})


def series(**parts) -> str:
    """The text of the baseline with other series."""
    return changed(series=parts)


def one(values, unit="ms", key="request_latency@1#speculation") -> str:
    """The text of the baseline with a single series."""
    return series(**{key: {"unit": unit, "values": values}})


def test_a_baseline_survives_its_file() -> None:
    """What was written is what is read."""
    assert parse_baseline(TEXT, source="file") == BASELINE


def test_the_file_is_made_to_be_reviewed() -> None:
    """A line for each number, field and run, so that an update adds to lines and changes none."""
    lines = TEXT.splitlines()
    more = render_baseline(with_run(BASELINE, LoadDocument(run(9)), label="abc")).splitlines()

    assert max(map(len, lines)) < 200
    assert len(lines) == 10 + len(BASELINE.fingerprint) + len(BASELINE.runs) + len(BASELINE.series)
    assert len(more) == len(lines) + 1
    assert any('"request_latency.p99@1#speculation": {"unit": "ms", "values": [' in line for line in lines)


def test_only_what_can_get_worse_is_kept() -> None:
    """No lengths and no counts; of categories the acceptance; of both arms the speed-up."""
    keys = set(BASELINE.series)

    assert {"speedup@1", "error_rate@2#control", "spec_decode_acceptance_length[python]@1#speculation"} <= keys
    assert not any(key.startswith(("output_sequence_length", "benchmark_duration")) for key in keys)
    assert not any("[python]" in key and "latency" in key for key in keys)


def test_the_last_run_of_each_day_counts() -> None:
    """Oldest first."""
    several = baseline((1.0, 2.0, 3.0), step=0.7)
    rule = parse_rule("request_latency: 5%")
    values = several.values(rule, LoadDocument(LOAD).points[0])

    assert several.days == ("2026-03-01", "2026-03-02")
    assert values[1] / values[0] == pytest.approx(3.0, rel=1e-4)


def test_old_runs_make_room() -> None:
    """The file does not grow for ever."""
    many = baseline([1.0] * (MOST_RUNS + 3))

    assert len(many.runs) == MOST_RUNS == len(many.series["speedup@1"].values)
    assert many.runs[0].created.startswith("2026-03-04")


def test_many_runs_a_day_do_not_drive_out_the_days_before() -> None:
    """Of a day the last run counts, so the others of it are dropped first."""
    busy = baseline([1.0] * (MOST_RUNS + 6), step=0.1)

    assert (len(busy.runs), len(busy.days)) == (MOST_RUNS, 3)
    assert [run.created for run in busy.runs[:2]] == ["2026-03-01T23:54:00+00:00", "2026-03-02T02:18:00+00:00"]


def test_a_run_of_the_future_is_refused() -> None:
    """No later run could be added any more, and no one would be asked for a new baseline."""
    now = dt.datetime(2026, 3, 10, tzinfo=dt.UTC)
    ahead = {**run(9), "created": "2026-03-12T00:00:00+00:00"}

    assert with_run(BASELINE, LoadDocument(run(9)), now=now).runs[-1].day == "2026-03-10"
    with pytest.raises(ConfigError, match="in the future"):
        with_run(BASELINE, LoadDocument(ahead), now=now)
    with pytest.raises(ConfigError, match="no date of a run"):
        with_run(BASELINE, LoadDocument({**run(9), "created": "9998-01-01T00:00:00+00:00"}))


def test_a_metric_that_a_run_lacks_is_absent_and_not_zero() -> None:
    """In that run alone; the history leaves the column out."""
    load = run(9)
    for arm in load["arms"]:
        del arm["metrics"]["time_to_first_token"]
    more = with_run(BASELINE, LoadDocument(load))

    assert more.series["time_to_first_token@1#speculation"].values[-1] is None
    assert "time_to_first_token@1#speculation" not in history(more).splitlines()[0]


def test_a_category_that_no_rule_can_name_is_not_kept() -> None:
    """What is written can be read."""
    load = run(9)
    categories = load["arms"][1]["categories"]
    for name in ("a[b]", " padded ", "", "two\nlines", "\ud800", "c, d@e#f: 5%"):
        categories[name] = categories["python"]
    kept = with_run(None, LoadDocument(load))

    assert parse_baseline(render_baseline(kept), source="file") == kept
    assert [key for key in kept.series if "#f" in key]
    assert not any(part in key for key in kept.series for part in ("a[b]", "padded", "two", "\ud800"))


@pytest.mark.parametrize(
    ("load", "error", "said"),
    [
        ({**run(9), "partial": True}, CannotDecide, "partial"),
        ({**run(9), "degraded": True}, CannotDecide, "degraded"),
        ({**run(9), "arms": [], "speedup": {}}, CannotDecide, "measured nothing"),
        ({**run(9), "deployment": {}}, CannotDecide, "profile is '-' here and 'cpu' in the baseline"),
        (run(4), ConfigError, "not newer"),
        (run(1), ConfigError, "not newer"),
        ({**run(9), "created": "2026-03-09"}, ConfigError, "no date with a time zone"),
        ({**run(9), "created": 7}, ConfigError, "no date with a time zone"),
        ({**run(9), "environment": [1]}, ConfigError, "not an object"),
    ],
)
def test_a_run_that_is_nothing_to_compare_with_is_refused(load, error, said) -> None:
    """Partial, degraded, empty, measured otherwise, or there already."""
    with pytest.raises(error, match=said):
        with_run(BASELINE, LoadDocument(load))


def test_a_label_is_one_line() -> None:
    """It goes into a file that people and other tools read."""
    with pytest.raises(ConfigError, match="label"):
        with_run(None, LoadDocument(LOAD), label="a\nb")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "null",
        "{",
        "{}",
        "[" * 100_000,
        changed(kind="load"),
        changed(schema_version="2.0"),
        changed(schema_version=1.0),
        changed(fingerprint=None),
        changed(fingerprint={}),
        changed(fingerprint={"driver": 550}),
        changed(runs=None),
        changed(runs=[]),
        changed(runs=[{"created": "yesterday"}] * 5),
        changed(runs=json.loads(TEXT)["runs"][::-1]),
        changed(runs=json.loads(TEXT)["runs"][:1] * 5),
        changed(runs=[*json.loads(TEXT)["runs"][:4], {"created": "9999-12-31T23:59:59-23:59"}]),
        changed(runs=[*json.loads(TEXT)["runs"][:4], {"created": "9998-01-01T00:00:00+00:00"}]),
        changed(runs=[*json.loads(TEXT)["runs"][:4], {"created": "2026-03-09T00:00:00+00:00", "label": "\n"}]),
        changed(series=None),
        changed(series={}),
        one([1.0] * 4),
        one([1.0] * 6),
        one("11111"),
        one([1.0, 1.0, 1.0, 1.0, -1.0]),
        one([1.0, 1.0, 1.0, 1.0, True]),
        one([1.0, 1.0, 1.0, 1.0, "1"]),
        one([1.0] * 4 + [float("nan")]),
        one([1.0] * 4 + [float("inf")]),
        one([1.0] * 4 + [-float("inf")]),
        one([1.0] * 4 + [1e308]),
        one([1.0] * 4 + [10**400]),
        one([1.0] * 5, unit="tokens"),
        one([1.0] * 5, unit="fortnight"),
        one([1.0] * 5, unit=None),
        one([2.0] * 5, unit="ratio", key="error_rate@1#speculation"),
        one([1.0] * 5, key="latency@1#speculation"),
        one([1.0] * 5, key="request_latency#speculation"),
        one([1.0] * 5, key="request_latency@1"),
        one([1.0] * 5, key="request_latency.avg@1#speculation"),
        one([1.0] * 5, key=""),
        TEXT.replace('"kind"', '"kind": "gate-baseline", "kind"'),
        TEXT + " " * MOST_CHARACTERS,
    ],
)
def test_a_file_that_cannot_be_trusted_is_an_error(text: str) -> None:
    """Numbers that nobody measured, other schemas and units, too much and too little: named, with the cure."""
    with pytest.raises(ConfigError) as caught:
        parse_baseline(text, source="gate-baseline.json")

    assert "gate-baseline.json" in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 1000


def test_a_unit_in_the_file_means_what_it_says() -> None:
    """Seconds become milliseconds."""
    read = parse_baseline(one([1.0] * 5, unit="s"), source="file")

    assert read.series["request_latency@1#speculation"].values == (1000.0,) * 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@given(key=st.sampled_from(["schema_version", "kind", "fingerprint", "runs", "series"]), value=JSON)
def test_a_fuzzed_baseline_never_passes_by_accident(key: str, value: object) -> None:
    """Whatever stands in one part of it: an error, or no pass of a run that got worse."""
    try:
        read = parse_baseline(changed(**{key: value}), source="file")
    except ConfigError:
        return
    verdict = evaluate([parse_rule("request_latency@1: 5%")], run(9, request_latency=1.3), Evidence(baseline=read))
    assert verdict.exit_code != 0


@given(values=st.lists(st.none() | st.floats() | st.integers(), min_size=5, max_size=5))
def test_fuzzed_numbers_are_an_error_or_numbers(values) -> None:
    """All that is read is finite and 0 or more."""
    try:
        read = parse_baseline(one(values), source="file")
    except ConfigError:
        return
    assert all(
        value is None or 0 <= value < float("inf") for value in read.series["request_latency@1#speculation"].values
    )


def test_the_history_is_csv_that_otava_reads() -> None:
    """A time with a zone, the label as commit, and a column for each number; commas of categories are quoted."""
    labelled = dataclasses.replace(
        BASELINE, runs=(dataclasses.replace(BASELINE.runs[0], label="abc"), *BASELINE.runs[1:])
    )
    rows = list(csv.DictReader(history(labelled).splitlines()))

    assert [row["time"] for row in rows][:2] == ["2026-03-01 09:30:00 +0000", "2026-03-02 09:30:00 +0000"]
    assert [row["commit"] for row in rows][:2] == ["abc", "2026-03-02T09:30:00+00:00"]
    assert [float(row["speedup@1"]) for row in rows] == list(BASELINE.series["speedup@1"].values)


DEPLOYED = {
    **LOAD,
    "deployment": {
        "profile": "tensorrt_llm",
        "release": "1.2.1",
        "image": "registry/triton@sha256:abc",
        "speculation": {"method": "draft_target", "num_draft_tokens": 4},
        "engines": {"target": {"key": "a" * 64}, "draft": {"key": "b" * 64}},
    },
    "environment": {
        "cpu_model": "Example",
        "cpu_cores": 16,
        "python": "3.11.7",
        "gpus": [{"name": "NVIDIA H100", "driver": "550.54"}, {"name": "NVIDIA H100", "driver": "550.54"}],
        "packages": {"onnxruntime_genai": "0.18.0"},
    },
}


@pytest.mark.parametrize(
    ("part", "key", "value", "field"),
    [
        ("environment", "gpus", [{"name": "NVIDIA H200", "driver": "550.54"}] * 2, "gpus"),
        ("environment", "gpus", [{"name": "NVIDIA H100", "driver": "550.54"}], "gpus"),
        ("environment", "gpus", [{"name": "NVIDIA H100", "driver": "560.1"}] * 2, "driver"),
        ("environment", "cpu_cores", 8, "machine.cpu_cores"),
        ("environment", "python", "3.12.1", "machine.python"),
        ("deployment", "profile", "llmapi", "profile"),
        ("deployment", "release", "1.3.0", "release"),
        ("deployment", "protocol", "http", "protocol"),
        ("deployment", "image", "registry/triton@sha256:def", "image"),
        ("deployment", "engines", {"target": {"key": "c" * 64}, "draft": {"key": "b" * 64}}, "engine.target"),
        (
            "deployment",
            "speculation",
            {"method": "draft_target", "num_draft_tokens": 6},
            "speculation.num_draft_tokens",
        ),
        ("plan", "prompts", "chat", "load.prompts"),
        ("plan", "schedule", "0" * 64, "load.schedule"),
        ("plan", "concurrency", [1, 4], "load.concurrency"),
    ],
)
def test_what_makes_two_runs_incomparable(part, key, value, field) -> None:
    """GPUs, driver, image, release, engines, drafts, workload, load plan and the machine that sends."""
    other = {**DEPLOYED, part: {**DEPLOYED[part], key: value}}
    fields = [name for name, _, _ in differences(fingerprint_of(DEPLOYED), fingerprint_of(other))]

    assert field in fields
    assert set(fields) <= {field, "driver", "gpus"}


def test_the_fingerprint_that_a_run_kept_counts() -> None:
    """Whatever later versions would take; of a document without one it is taken now. It stands in gate.json."""
    kept = {**fingerprint_of(DEPLOYED), "gpus": "8 x NVIDIA H100"}
    verdict = evaluate([parse_rule("error_rate <= 0")], {**DEPLOYED, "fingerprint": kept})

    assert fingerprint_of({**DEPLOYED, "fingerprint": kept}) == kept
    assert fingerprint_of({**DEPLOYED, "fingerprint": None}) == fingerprint_of(DEPLOYED)
    assert verdict.to_dict(created="now")["fingerprint"] == kept


@pytest.mark.parametrize("junk", [7, 0, "text", "", False, ["gpus"], [], {}, {"gpus": 8}, {"gpus": None}])
def test_a_fingerprint_that_is_none_is_an_error(junk) -> None:
    """And never one that agrees with all."""
    with pytest.raises(ConfigError, match="fingerprint"):
        fingerprint_of({**DEPLOYED, "fingerprint": junk})


def test_a_control_is_what_it_is_and_not_where_it_listened() -> None:
    """So that a baseline of runs against another deployment needs no fixed ports."""

    def against(**control: object) -> dict[str, str]:
        return fingerprint_of({**DEPLOYED, "deployment": {**DEPLOYED["deployment"], "control": control}})

    drafts = {"num_draft_tokens": "4"}
    assert against(server="a:8000", **drafts) == against(server="b:9000", **drafts)
    assert against(server="a:8000") == against(server="b:9000") != fingerprint_of(DEPLOYED)
    assert [field for field, _, _ in differences(against(server="a", **drafts), against(server="a"))] == ["control"]


def test_what_does_not_matter_is_not_in_the_fingerprint() -> None:
    """When it was, a patch of Python, the folder of a program, and how long a lost request is waited for."""
    other = {
        **DEPLOYED,
        "created": "2027-01-01",
        "environment": {**DEPLOYED["environment"], "python": "3.11.9", "python_executable": "/elsewhere"},
        "plan": {**DEPLOYED["plan"], "request_timeout_s": 7},
    }

    assert fingerprint_of(other) == fingerprint_of(DEPLOYED)
