"""Rules on what a deployment takes: memory under a load, size and build time of its engines."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.baseline import history, parse_baseline, render_baseline, with_run
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.resources import ENGINES, MEMORY
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import Evidence, evaluate
from specdeploy.report.baseline_text import baseline_table
from tests.unit.gate.test_gate_relative import LOAD, run

GIB = 2.0**30


def engine(size=1000, build_s=60.0, key="a", **changes) -> dict:
    """An engine as a repository tells of it."""
    return {"key": key * 64, "profile": "cpu", "size_bytes": size, "build_s": build_s, **changes}


def gauge(avg, most=None) -> dict:
    """Readings of a gauge."""
    return {"readings": 5, "avg": avg, "max": most or avg}


GAUGES = {
    'nv_gpu_memory_used_bytes{gpu_uuid="one"}': gauge(40 * GIB, 41 * GIB),
    'nv_gpu_memory_used_bytes{gpu_uuid="two"}': gauge(20 * GIB, 50 * GIB),
    'nvml_gpu_memory_used_bytes{gpu="0"}': gauge(60 * GIB),
    "nv_cpu_memory_used_bytes": gauge(8 * GIB, 9 * GIB),
    "nv_gpu_power_usage": gauge(300.0),
}


def load(day=9.0, *, gauges=GAUGES, engines=None, **changes) -> dict:
    """A run with readings of the server under each load, and with engines."""
    made = run(day)
    served = {"target": engine(3000), "draft": engine(1000, 30.5, key="b")} if engines is None else engines
    made["deployment"] = {**made["deployment"], "engines": served}
    made["server"] = [
        {"arm": entry["arm"], "concurrency": entry["concurrency"], "rate": None, "gauges": copy.deepcopy(gauges)}
        for entry in made["arms"]
    ]
    return {**made, **changes}


def judge(rule, document, **evidence):
    """The verdict on one rule."""
    return evaluate(parse_rules([rule]), document, Evidence(**evidence)).rules[0]


@pytest.mark.parametrize(
    ("rule", "status", "value"),
    [
        ("gpu_memory_used <= 40GiB", "pass", 40 * GIB),
        ("gpu_memory_used.max <= 50GiB", "pass", 50 * GIB),
        ("gpu_memory_used.max <= 49GiB", "fail", 50 * GIB),
        ("gpu_memory_used.max@2#control <= 80GB", "pass", 50 * GIB),
        ("gpu_memory_used@7 <= 80GB", "not_measured", None),
        ("cpu_memory_used.max <= 9.1GiB", "pass", 9 * GIB),
        ("cpu_memory_used < 8GiB", "fail", 8 * GIB),
        ("engine_size <= 4kB", "pass", 4000),
        ("engine_size[target] <= 2.9kB", "fail", 3000),
        ("engine_size[draft] < 1KiB", "pass", 1000),
        ("build_time <= 90.5s", "pass", 90.5),
        ("build_time[target] <= 0.5min", "fail", 60),
    ],
)
def test_memory_and_engines_are_judged_by_their_value(rule, status, value) -> None:
    """Of several GPUs by the one that used most; of several engines by their sum, or by the one that is named."""
    verdict = judge(rule, load())

    assert (verdict.status, verdict.value) == (status, value)


def test_the_sentence_has_sizes_that_people_read() -> None:
    """In binary units; the document has bytes."""
    memory, size = judge("gpu_memory_used <= 30GiB", load()), judge("engine_size <= 2GB", load())

    assert "is 40 GiB, which is not <= 30 GiB" in memory.reason
    assert "engine_size is 3.906 KiB, which is <= 1.863 GiB" in size.reason
    assert (memory.to_dict()["unit"], size.to_dict()["arm"], size.to_dict()["concurrency"]) == ("B", None, None)


def test_nvml_stands_in_where_triton_tells_nothing() -> None:
    """Which is asked for a server on this machine."""
    gauges = {name: value for name, value in GAUGES.items() if not name.startswith("nv_gpu_memory")}

    assert judge("gpu_memory_used <= 80GiB", load(gauges=gauges)).value == 60 * GIB


@pytest.mark.parametrize(
    ("rule", "document", "said"),
    [
        ("gpu_memory_used <= 1GB", LOAD, "NVML"),
        ("gpu_memory_used <= 1GB", load(gauges={}), "load.telemetry_s"),
        ("cpu_memory_used <= 1GB", load(server=None), "metrics page"),
        ("engine_size <= 1GB", load(engines={}), "specdeploy repo"),
        ("engine_size[draft] <= 1GB", load(engines={"target": engine()}), "specdeploy repo"),
        ("engine_size <= 1GB", load(engines={"target": "a" * 64}), "specdeploy repo"),
        ("engine_size <= 1GB", load(engines={"target": engine(profile="llmapi")}), "specdeploy repo"),
        ("engine_size <= 1GB", load(engines={"target": engine(), "draft": engine(None, key="b")}), "specdeploy repo"),
        ("engine_size <= 1GB", load(engines={"target": engine(0)}), "specdeploy repo"),
        ("engine_size <= 1GB", load(deployment={"profile": "openai"}), "another server"),
        ("build_time <= 1s", load(deployment={"profile": "llmapi", "engines": {}}), "compiles no engine"),
        ("build_time <= 1s", load(engines={"target": engine(build_s=None)}), "from their first step"),
        ("engine_size: 5%", load(engines={}), "specdeploy repo"),
        ("gpu_memory_used: 5%", load(gauges={}), "NVML"),
    ],
)
def test_what_is_not_there_was_not_measured_and_the_sentence_says_how_it_is(rule, document, said) -> None:
    """No gauges, no engines, no such engine, one without the number: never a pass, never 0."""
    verdict = judge(rule, document)

    assert (verdict.status, verdict.value) == ("not_measured", None)
    assert said in verdict.reason


def test_a_gauge_in_another_unit_is_not_read_as_bytes() -> None:
    """Bytes are what it is in where it says nothing."""
    told = {name: {**value, "avg": 81, "unit": "GiB"} for name, value in GAUGES.items()}
    other = {name: {**value, "unit": "s"} for name, value in GAUGES.items()}

    assert judge("gpu_memory_used <= 80GiB", load(gauges=told)).status == "fail"
    with pytest.raises(ConfigError, match="not a unit"):
        judge("gpu_memory_used <= 80GiB", load(gauges=other))


def test_a_load_that_was_read_twice_is_an_error() -> None:
    """Either could be the one that counts."""
    twice = load()

    with pytest.raises(ConfigError, match="twice"):
        judge("gpu_memory_used <= 80GiB", {**twice, "server": twice["server"] * 2})


def test_an_engine_with_both_roles_is_one() -> None:
    """Its bytes are there once."""
    document = load(engines={"target": engine(), "draft": engine()})

    assert judge("engine_size <= 1kB", document).value == 1000
    assert judge("engine_size[draft] <= 1kB", document).value == 1000


BASELINE = with_run(None, LoadDocument(load(0)))


@pytest.mark.parametrize(
    ("rule", "size", "status"),
    [
        ("engine_size: 5%", 3000, "pass"),
        ("engine_size: 0%", 3000, "pass"),
        ("engine_size: 5%", 3300, "fail"),
        ("engine_size: 5% floor 1kB", 3300, "pass"),
        ("engine_size: 5%", 2000, "pass"),
        ("engine_size[target]: 5%", 3149, "pass"),
        ("engine_size[target]: 5%", 3151, "fail"),
        ("engine_size[draft]: 5%", 9999, "pass"),
        ("advisory: engine_size: 5%", 3300, "fail"),
    ],
)
def test_other_engines_are_compared_by_what_is_about_them(rule, size, status) -> None:
    """One run is enough, other keys are no obstacle, and smaller never fails."""
    engines = {"target": engine(size, key="c"), "draft": engine(1000, 30.5, key="d")}
    rules = parse_rules([rule, "error_rate <= 0"])

    assert evaluate(rules, load(engines=engines), Evidence(baseline=BASELINE)).rules[0].status == status


def test_the_verdict_has_what_it_was_compared_with() -> None:
    """Reference, share, and the limit that it came to; no p-value, since there is no chance."""
    slower = judge("build_time[target]: 20%", load(engines={"target": engine(build_s=75.0)}), baseline=BASELINE)

    assert (slower.status, slower.limit) == ("fail", pytest.approx(72))
    assert slower.numbers == {"reference": 60.0, "independent": 1, "worse": 0.25}
    assert "is 75 s, and 60 s in the baseline: 25 % more, more than the 20 % that are allowed" in slower.reason


def test_all_else_has_to_agree() -> None:
    """Another precision is another engine; another limit of sequences is another deployment."""
    document = load()
    document["deployment"] = {**document["deployment"], "max_seq_len": 7}
    verdict = judge("engine_size: 5%", document, baseline=BASELINE)

    assert verdict.status == "not_comparable"
    assert "max_seq_len" in verdict.reason


def test_without_a_baseline_there_is_nothing_to_compare_engines_with() -> None:
    """Nor with one from before engines were kept."""
    old = with_run(None, LoadDocument(load(0, engines={"target": "a" * 64})))

    assert judge("engine_size: 5%", load()).status == "not_measured"
    assert judge("engine_size: 5%", load(), baseline=old).status == "not_measured"


def test_a_partial_run_passes_no_rule_on_engines() -> None:
    """As it passes none."""
    assert judge("engine_size <= 1GB", {**load(), "partial": True}).status == "undecided"


def test_memory_is_compared_with_the_runs_of_other_days() -> None:
    """As latencies are."""
    found = None
    for day, factor in enumerate((1.0, 1.01, 0.99, 1.0, 1.01)):
        gauges = {name: gauge(value["avg"] * factor, value["max"] * factor) for name, value in GAUGES.items()}
        found = with_run(found, LoadDocument(load(day, gauges=gauges)))
    worse = {name: gauge(value["avg"] * 1.2, value["max"] * 1.2) for name, value in GAUGES.items()}

    assert judge("gpu_memory_used.max: 5%", load(), baseline=found).status == "pass"
    assert judge("gpu_memory_used.max@1: 5%", load(gauges=worse), baseline=found).status == "fail"
    assert judge("cpu_memory_used@1: 5%", load(gauges=worse), baseline=found).status == "fail"


def test_a_baseline_keeps_memory_and_engines() -> None:
    """Read back as written, to the byte; shown with units, and part of the history."""
    exact = with_run(None, LoadDocument(load(0, engines={"target": engine(123_456_789_012)})))
    keys = {
        "engine_size",
        "engine_size[target]",
        "build_time[target]",
        "gpu_memory_used@1#speculation",
        "gpu_memory_used.max@2#control",
        "cpu_memory_used.max@1#speculation",
    }
    shown = {"path": "", "days": 1, "needed_days": 5, "fingerprint": {}, "runs": []}
    series = {key: {"unit": one.unit, "values": list(one.values)} for key, one in exact.series.items()}

    assert parse_baseline(render_baseline(exact), source="file") == exact
    assert keys <= set(exact.series)
    assert exact.series["engine_size"].values == (123_456_789_012,)
    assert "engine_size[target]" in history(exact).splitlines()[0]
    assert "- engine_size: 115 GiB (115 GiB to 115 GiB)" in baseline_table({**shown, "series": series})


def test_a_run_of_other_engines_is_still_not_added_to_the_baseline() -> None:
    """Its speed is that of others."""
    with pytest.raises(CannotDecide, match=r"engine\.target"):
        with_run(BASELINE, LoadDocument(load(engines={"target": engine(key="c"), "draft": engine(key="d")})))


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["key", "size_bytes", "build_s", "avg", "max"]), st.floats() | st.text(max_size=3)),
)


@given(junk=JUNK, key=st.sampled_from([*MEMORY, *ENGINES]))
def test_fuzzed_numbers_are_an_error_or_no_pass(junk, key) -> None:
    """NaN, infinity, negative, text where a number belongs: nothing of it keeps a limit that no machine has."""
    document = load(engines={"target": junk}, gauges=dict.fromkeys(GAUGES, junk))
    try:
        verdict = judge(f"{key} < 1e-300", document)
    except ConfigError:
        return
    assert verdict.status != "pass" or 0 <= verdict.value < 1e-300


@pytest.mark.parametrize("junk", [7, "text", [7], {"a": 7}])
def test_a_damaged_server_part_is_an_error(junk) -> None:
    """And is named."""
    with pytest.raises(ConfigError, match="server"):
        judge("gpu_memory_used <= 1GB", load(server=junk))
