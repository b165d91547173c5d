"""Rules as strings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.metrics import METRICS
from specdeploy.errors import ConfigError
from specdeploy.gate.rules import Rule, parse_rule, parse_rules
from specdeploy.gate.units import convert


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "time_to_first_token.p99 <= 200ms",
            ("time_to_first_token", "p99", None, "speculation", "<=", 200.0, "ms"),
        ),
        ("request_latency@4#control < 1.5 s", ("request_latency", "avg", "4", "control", "<", 1500.0, "ms")),
        ("error_rate<=1%", ("error_rate", "avg", None, "speculation", "<=", 0.01, "ratio")),
        ("speedup@1 >= 1.5x", ("speedup", "avg", "1", None, ">=", 1.5, "x")),
        (
            "output_token_throughput > 2e1 tokens/s",
            ("output_token_throughput", "avg", None, "speculation", ">", 20.0, "tokens/sec"),
        ),
        (
            "  spec_decode_acceptance_length >= 2  ",
            ("spec_decode_acceptance_length", "avg", None, "speculation", ">=", 2.0, "tokens"),
        ),
        (
            "time_to_first_token.count >= 30",
            ("time_to_first_token", "count", None, "speculation", ">=", 30.0, "requests"),
        ),
        (
            "spec_decode_draft_acceptance_rate.sum >= 5",
            ("spec_decode_draft_acceptance_rate", "sum", None, "speculation", ">=", 5.0, "ratio"),
        ),
        (
            "request_latency.p99@5/s <= 2s",
            ("request_latency", "p99", "5/s", "speculation", "<=", 2000.0, "ms"),
        ),
        ("goodput@0.5/s#control > 0.4", ("goodput", "avg", "0.5/s", "control", ">", 0.4, "requests/sec")),
        ("good_request_fraction >= 50%", ("good_request_fraction", "avg", None, "speculation", ">=", 0.5, "ratio")),
        ("engine_size[target] <= 1.5MiB", ("engine_size", "avg", None, None, "<=", 1.5 * 2**20, "B")),
        ("build_time <= 10min", ("build_time", "avg", None, None, "<=", 600.0, "s")),
        ("gpu_memory_used.max@4 <= 70GB", ("gpu_memory_used", "max", "4", "speculation", "<=", 70e9, "B")),
        ("cpu_memory_used#control <= 1KiB", ("cpu_memory_used", "avg", None, "control", "<=", 1024.0, "B")),
        ("error_rate@1e6/s <= 1%", ("error_rate", "avg", "1e+06/s", "speculation", "<=", 0.01, "ratio")),
    ],
)
def test_a_rule_is_read(text: str, expected: tuple) -> None:
    """Statistic, place and arm may be left out; the limit comes in the metric's own unit."""
    rule = parse_rule(text)
    load = rule.point and rule.point.key

    assert expected == (rule.metric, rule.stat, load, rule.arm, rule.comparison, rule.limit, rule.unit)
    assert rule.text == text.strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("request_throughput: 5%", ("request_throughput", "avg", "baseline", 0.05, 0.0, ">=", False)),
        ("time_to_first_token.p99:10 %", ("time_to_first_token", "p99", "baseline", 0.1, 0.0, "<=", False)),
        ("time_to_first_token.p99@4: 10% floor 1ms", ("time_to_first_token", "p99", "baseline", 0.1, 1.0, "<=", False)),
        ("request_latency: 0% of baseline floor 0.5s", ("request_latency", "avg", "baseline", 0.0, 500.0, "<=", False)),
        ("request_latency: 5% of control", ("request_latency", "avg", "control", 0.05, 0.0, "<=", False)),
        ("advisory: speedup@1: 3%", ("speedup", "avg", "baseline", 0.03, 0.0, ">=", True)),
        ("engine_size: 5% floor 1MB", ("engine_size", "avg", "baseline", 0.05, 1e6, "<=", False)),
        ("build_time[draft]: 20%", ("build_time", "avg", "baseline", 0.2, 0.0, "<=", False)),
        ("gpu_memory_used.max: 5%", ("gpu_memory_used", "max", "baseline", 0.05, 0.0, "<=", False)),
        ("request_latency: 150%", ("request_latency", "avg", "baseline", 1.5, 0.0, "<=", False)),
    ],
)
def test_a_relative_rule_is_read(text: str, expected: tuple) -> None:
    """How much worse a metric may be, in its own direction, than what; and what is too little to count."""
    rule = parse_rule(text)

    assert (
        rule.metric,
        rule.stat,
        rule.reference,
        pytest.approx(rule.allowed),
        rule.floor,
        rule.comparison,
        rule.advisory,
    ) == expected
    assert rule.limit is None
    assert rule.text == text


def test_a_category_stands_behind_the_metric() -> None:
    """In brackets, whatever its name is made of."""
    rule = parse_rule("spec_decode_acceptance_length[en-de, formal].p50@2 >= 2.5")

    assert (rule.category, rule.stat, rule.selector) == (
        "en-de, formal",
        "p50",
        "spec_decode_acceptance_length[en-de, formal].p50",
    )


def test_losslessness_and_advice_are_rules() -> None:
    """Counts of answers; and what is only reported."""
    ties, advice = parse_rule("lossless.ties <= 3"), parse_rule("advisory: request_latency.p99 <= 2s")

    assert (ties.metric, ties.stat, ties.limit, ties.unit, ties.arm) == ("lossless", "ties", 3.0, "answers", None)
    assert (advice.advisory, advice.limit, ties.advisory) == (True, 2000.0, False)


def test_a_gate_of_advice_alone_is_an_error() -> None:
    """It would pass everything."""
    with pytest.raises(ConfigError, match="advisory"):
        parse_rules(["advisory: error_rate <= 0"])


@pytest.mark.parametrize(
    ("text", "said", "hinted"),
    [
        ("time_to_frist_token <= 1", "unknown metric 'time_to_frist_token'", "'time_to_first_token'"),
        ("speedupp >= 1", "unknown metric", "'speedup'"),
        ("time_to_first_token.p98 <= 1", "unknown statistic 'p98'", "'p9"),
        ("error_rate.p99 <= 1%", "one number for the whole run", "error_rate alone"),
        ("speedup.p50 >= 1", "has no 'p50'", "speedup alone"),
        ("speedup#control >= 1", "belongs to neither", "#control"),
        ("request_latency#controll <= 1", "unknown arm 'controll'", "'control'"),
        ("request_latency <= 1 mss", "unknown unit 'mss'", "'ms'"),
        ("request_latency <= 1%", "not a unit", "ms"),
        ("request_latency <= 1 furlong", "unknown unit", "ms"),
        ("speedup@0 >= 1", "concurrency '0'", "from 1"),
        ("speedup@one >= 1", "concurrency 'one'", "number"),
        ("request_latency@2.5 <= 1s", "concurrency '2.5'", "@5/s"),
        ("request_latency@0/s <= 1s", "rate '0/s'", "above 0"),
        ("request_latency@1e999/s <= 1s", "rate '1e999/s'", "above 0"),
        ("request_latency@fast/s <= 1s", "rate 'fast/s'", "requests per second"),
        ("request_latency@5/min <= 1s", "rate '5/min'", "@5/s"),
        ("spec_decode_per_position_acceptance >= 1", "list by position", "overall_spec_decode"),
        ("error_rate <= 5", "never more than 1", "5%"),
        ("error_rate <= -1%", "never negative", "0 or more"),
        ("speedup >= -2", "never negative", "0 or more"),
        ("speedup >= 1e999", "not a finite number", "ordinary"),
        ("speedup >= nan", "malformed", "[.statistic]"),
        ("speedup >= inf", "malformed", "[.statistic]"),
        ("speedup = 1", "malformed", "[.statistic]"),
        ("speedup >= 1.5 >= 1", "malformed", "[.statistic]"),
        ("speedup", "malformed", "[.statistic]"),
        ("request_latency: 5", "not in %", "request_latency: 5%"),
        ("request_latency: 5ms", "not in %", "request_latency: 5%"),
        ("request_latency: -5%", "-5 % worse", "from 0 to 1000"),
        ("request_latency: 1e999%", "1e999 % worse", "from 0 to 1000"),
        ("request_throughput: 100%", "100 % worse", "from 0 to 99"),
        ("request_latency: nan%", "malformed", "[.statistic]"),
        ("request_latency: 5% of yesterday", "no reference 'yesterday'", "baseline"),
        ("request_latency: 5% floor 1 tokens", "not a unit", "ms"),
        ("request_latency: 5% floor -1ms", "the floor is -1", "0 or more"),
        ("request_latency <= 1s floor 1ms", "a floor belongs to", "Leave it out"),
        ("request_latency.p75: 5%", "does not keep p75", "p50"),
        ("request_latency[code]: 5%", "does not keep that of a category", "spec_decode_acceptance_length"),
        ("output_sequence_length: 5%", "no direction", "limit"),
        ("request_latency.count: 5%", "no direction", "limit"),
        ("request_latency.p99: 5% of control", "not compared by that", "request_latency"),
        ("request_latency#control: 5% of control", "not compared by that", "request_latency"),
        ("request_latency: 5% of control floor 1ms", "have no floor", "Leave it out"),
        ("error_rate[code] <= 1%", "all prompts together", "Categories have"),
        ("speedup[code] >= 1", "all prompts together", "Categories have"),
        ("lossless <= 0", "not one number", "lossless.divergences"),
        ("lossless.divergence <= 0", "unknown statistic 'divergence'", "'divergences'"),
        ("lossless.p99 <= 0", "unknown statistic 'p99'", "divergences"),
        ("lossless.ties@4 <= 0", "all loads", "@4"),
        ("lossless.ties#control <= 0", "belongs to neither", "#control"),
        ("lossless.ties: 5%", "not relative", "lossless.ties <= 0"),
        ("engine_size[drafft] <= 1GB", "no engine 'drafft'", "'draft'"),
        ("engine_size@4 <= 1GB", "engine_size is that of all loads", "@4"),
        ("build_time#control <= 1s", "that of the engines and belongs to neither", "#control"),
        ("build_time.max <= 1s", "one number for the whole run", "build_time alone"),
        ("build_time: 5% of control", "not compared by that", "request_latency"),
        ("engine_size <= 5s", "not a unit", "GiB"),
        ("engine_size <= 5Gib", "unknown unit 'Gib'", "'GiB'"),
        ("gpu_memory_used.p99 <= 1GB", "unknown statistic 'p99'", "avg, max"),
        ("gpu_memory_used[code] <= 1GB", "all prompts together", "Categories have"),
        ("gpu_memory <= 1GB", "unknown metric", "'gpu_memory_used'"),
        ("", "malformed", "[.statistic]"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_cure(text: str, said: str, hinted: str) -> None:
    """The message has the rule and what is wrong with it; the hint has the nearest name or the shape."""
    with pytest.raises(ConfigError) as caught:
        parse_rule(text)

    assert repr(text) in caught.value.message
    assert said in caught.value.message
    assert hinted in caught.value.hint


def test_no_rules_are_an_error() -> None:
    """An empty gate would pass everything."""
    with pytest.raises(ConfigError, match="no rules"):
        parse_rules([])


@given(st.text() | st.from_regex(r"\A[a-z_]{0,20}[.@#]?\w{0,4}(/s)? ?(<=|>=|<|>|:) ?-?[0-9.e]{0,6}[a-z%/]{0,3}\Z"))
def test_any_text_is_a_rule_or_an_error(text: str) -> None:
    """Fuzzed rules fail in one way only."""
    try:
        rule = parse_rule(text)
    except ConfigError:
        return
    assert isinstance(rule, Rule)
    assert 0 <= (rule.allowed if rule.limit is None else rule.limit) < float("inf")


@pytest.mark.parametrize("key", [key for key, metric in METRICS.items() if metric.kind != "list"])
def test_every_metric_can_be_gated_in_its_own_unit(key: str) -> None:
    """The unit that a summary shows is one that a rule may use, and means the same."""
    unit = METRICS[key].unit

    assert parse_rule(f"{key} <= 0.5 {unit}").limit == parse_rule(f"{key} <= 0.5").limit == 0.5


@given(st.floats(0, 1e6))
def test_conversion_there_and_back(value: float) -> None:
    """Seconds and milliseconds, shares and percentages."""
    for one, other in (("s", "ms"), ("min", "us"), ("%", "ratio"), ("tokens/s", "tokens/sec")):
        there = convert(value, one, other, where="here")
        assert convert(there, other, one, where="here") == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "error_rate >= 0",
        "speedup >= 0",
        "error_rate <= 100%",
        "request_latency < 0ms",
        "speedup@1 >= 1e-320",
        "speedup@1 > 1e-10",
        "speedup@1 >= 1e300",
        "request_latency <= 8e8ms",
        "engine_size <= 1025TiB",
    ],
)
def test_a_rule_that_every_run_keeps_or_breaks_is_refused(text):
    """A gate that can never fire, or always does, is an error and no gate."""
    with pytest.raises(ConfigError, match="every run"):
        parse_rule(text)


def test_a_concurrency_of_thousands_of_digits_is_refused() -> None:
    """In a message that can be read, and in a baseline as well."""
    for text in (f"request_latency@{'9' * 5000} <= 1s", f"request_latency@{'9' * 5000}#speculation: 5%"):
        with pytest.raises(ConfigError, match="concurrency") as caught:
            parse_rule(text)
        assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("error_rate: 1e9%", "cannot be told"),
        ("request_latency: 1e300%", "cannot be told"),
        ("request_latency: 1001%", "cannot be told"),
        ("request_throughput: 99.1%", "cannot be told"),
        ("error_rate: 5% floor 100%", "more than anything gets worse by"),
        ("request_latency: 5% floor 1e300ms", "more than anything gets worse by"),
        ("build_time: 5% floor 200000min", "more than anything gets worse by"),
    ],
)
def test_a_relative_rule_that_nothing_breaks_is_refused(text: str, said: str) -> None:
    """What is allowed and the floor have a most, which the hint says."""
    with pytest.raises(ConfigError, match=said) as caught:
        parse_rule(text)

    assert "Write" in str(caught.value.hint)
    assert parse_rule("request_latency: 1000% floor 1min").allowed == 10


def test_the_limit_of_a_relative_rule_is_the_one_that_counts() -> None:
    """What is allowed, or the floor where that is more, in the direction of the metric."""
    assert parse_rule("build_time: 20%").limit_from(10) == 12
    assert parse_rule("build_time: 20% floor 30s").limit_from(10) == 40
    assert parse_rule("request_throughput: 10%").limit_from(10) == 9
    assert parse_rule("request_throughput: 10% floor 3 requests/s").limit_from(10) == 7
    assert parse_rule("request_throughput: 10% floor 30 requests/s").limit_from(10) == 0


@pytest.mark.parametrize(
    ("name", "key"), [("ttft", "time_to_first_token"), ("itl", "inter_token_latency"), ("e2el", "request_latency")]
)
def test_short_names_of_other_tools_are_understood(name: str, key: str) -> None:
    """As the promises of a load test do."""
    rule = parse_rule(f"{name}.p99@4 <= 1s")

    assert (rule.metric, rule.selector, rule.limit) == (key, f"{key}.p99", 1000)


@pytest.mark.parametrize("metric", ["error_rate", "error_request_count"])
def test_errors_are_compared_with_a_baseline_above_a_floor_only(metric: str) -> None:
    """A single one is infinitely more than none, and no spread of a baseline without any says what chance does."""
    with pytest.raises(ConfigError, match="a single error more") as caught:
        parse_rules([f"{metric}: 5%"])
    (cure,) = re.findall(r"'(.*)'", caught.value.hint)
    assert parse_rules([cure])[0].floor > 0


def test_a_rule_stands_once() -> None:
    """Twice it would only cost the others sharpness; how it is written makes no difference."""
    with pytest.raises(ConfigError, match=r"'speedup@1>=1\.50' stands twice"):
        parse_rules(["speedup@1 >= 1.5", "error_rate <= 0", "speedup@1>=1.50"])
    parse_rules(["speedup@1 >= 1.5", "speedup@4 >= 1.5", "advisory: speedup@1 >= 1.5"])


def test_a_speedup_is_more_than_nothing() -> None:
    """No run keeps such a rule."""
    with pytest.raises(ConfigError, match="every run breaks it"):
        parse_rules(["speedup <= 0"])
