"""Rules relative to a baseline, and to the control of the same run."""

from __future__ import annotations

import copy
import datetime as dt
import json

import pytest

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.paired import paired_ratio
from specdeploy.bench.schedule import LoadSettings
from specdeploy.errors import ConfigError
from specdeploy.gate.baseline import with_run
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import Evidence, evaluate
from tests.unit.bench.simulated import CONTEXT, Simulator, load_report

FIRST = dt.datetime(2026, 3, 1, 9, 30, tzinfo=dt.UTC)
LOAD = load_report(LoadSettings(concurrency=(1, 2), requests=4))


def run(day: float = 0.0, *, load=LOAD, **factors) -> dict:
    """The document of a run of some day, its metrics multiplied."""
    made = copy.deepcopy(load)
    made["created"] = (FIRST + dt.timedelta(days=day)).isoformat()
    for arm in made["arms"]:
        for key, factor in factors.items():
            metric = arm["metrics"].get(key, {})
            metric.update({stat: value * factor for stat, value in metric.items() if isinstance(value, float)})
    return made


def baseline(paces=(1.0, 1.02, 0.99, 1.01, 0.98), *, load=LOAD, step=1.0):
    """A baseline of one run a day, each slower by a factor."""
    found = None
    for number, pace in enumerate(paces):
        document = run(number * step, load=load, request_latency=pace, request_throughput=1 / pace)
        found = with_run(found, LoadDocument(document))
    return found


BASELINE = baseline()


def judge(rules, load, **evidence):
    """The verdict on rules."""
    rules = [rules] if isinstance(rules, str) else rules
    return evaluate(parse_rules(rules), load, Evidence(**{"baseline": BASELINE, **evidence}))


@pytest.mark.parametrize(
    ("rule", "factor", "status"),
    [
        ("request_latency: 5%", 1.2, "fail"),
        ("request_latency: 5%", 1.03, "pass"),
        ("request_latency: 5%", 0.5, "pass"),
        ("request_latency: 25%", 1.2, "pass"),
        ("request_latency.p99: 5%", 1.2, "fail"),
        ("request_latency#control: 5%", 1.2, "fail"),
        ("request_throughput: 5%", 0.8, "fail"),
        ("request_throughput: 5%", 1.5, "pass"),
        ("request_throughput@2: 5%", 0.97, "pass"),
    ],
)
def test_worse_than_the_baseline_fails_in_the_direction_of_the_metric(rule, factor, status) -> None:
    """More latency and less throughput are worse; better never fails; within what is allowed passes."""
    load = run(9, request_latency=factor, request_throughput=factor)
    verdict = judge(rule, load)

    assert (verdict.status, verdict.exit_code) == (status, {"pass": 0, "fail": 1}[status])


def test_the_verdict_has_the_numbers_it_was_made_by() -> None:
    """Value, what it came to as a limit, reference, share, and both p-values: all in gate.json."""
    verdict = judge(["request_latency@1: 5%", "request_throughput@1: 5%"], run(9, request_latency=1.2))
    (entry, _) = json.loads(json.dumps(verdict.to_dict(created="now"), allow_nan=False))["rules"]
    numbers = entry["numbers"]

    assert entry["limit"] == pytest.approx(1.05 * numbers["reference"])
    assert entry["value"] == pytest.approx((1 + numbers["worse"]) * numbers["reference"])
    assert numbers["worse"] == pytest.approx(0.2, abs=0.001)
    assert numbers["p_adjusted"] == pytest.approx(2 * numbers["p"])
    assert (numbers["independent"], entry["reference"], entry["allowed"]) == (5, "baseline", 0.05)
    assert "20 % worse, more than the 5 % that are allowed and than chance explains" in entry["reason"]


def test_what_chance_explains_is_no_failure_and_no_pass() -> None:
    """A baseline that scatters cannot tell; the sentence says what would."""
    noisy = baseline((1.0, 1.3, 0.8, 1.1, 0.9))
    worse = judge("request_latency@1: 5%", run(9, request_latency=1.1), baseline=noisy)
    same = judge("request_latency@1: 5%", run(9), baseline=noisy)

    assert (worse.status, worse.exit_code) == ("undecided", 3)
    assert "chance may explain it" in worse.rules[0].reason
    assert same.status == "undecided"
    assert "would not have shown" in same.rules[0].reason
    assert judge("request_latency@1: 50%", run(9), baseline=noisy).status == "pass"


def test_a_difference_below_the_floor_is_no_regression() -> None:
    """In the metric's own unit, whatever share of the baseline it is."""
    load = run(9, request_latency=1.2)
    worse_ms = 0.2 * LOAD["arms"][1]["metrics"]["request_latency"]["avg"]

    kept = judge(f"request_latency@1: 5% floor {worse_ms * 1.1}ms", load)
    assert kept.status == "pass"
    assert kept.rules[0].value <= kept.rules[0].limit
    assert judge(f"request_latency@1: 5% floor {worse_ms * 0.8}ms", load).status == "fail"


def test_a_baseline_needs_runs_of_several_days() -> None:
    """Five, or as many as are asked for; several runs of one day are one."""
    rule, same_day = "request_latency@1: 5%", baseline((1.0, 1.02, 0.99, 1.01, 0.98, 1.0), step=0.05)

    few = judge(rule, run(9), baseline=baseline((1.0, 1.02, 0.99, 1.01)))
    assert (few.status, few.rules[0].value is None) == ("undecided", False)
    assert "4 other day(s), and 5 are needed" in few.rules[0].reason
    assert judge(rule, run(9), baseline=baseline((1.0, 1.02, 0.99, 1.01)), baseline_runs=4).status == "pass"
    assert judge(rule, run(9), baseline=same_day).status == "undecided"


def test_a_run_is_no_reference_for_itself() -> None:
    """What failed fails as well once it was added to the baseline, with whatever else was measured on its day."""
    failed = run(5, request_latency=1.2)
    followed = with_run(BASELINE, LoadDocument(run(4.9, request_latency=1.3)))
    followed = with_run(followed, LoadDocument(failed))

    before, after = (judge("request_latency: 5%", failed, baseline=found) for found in (BASELINE, followed))
    assert (before.status, after.status) == ("fail", "fail")
    assert before.rules == after.rules
    short = judge("request_latency: 5%", run(4.1))
    assert (short.status, short.rules[0].numbers) == ("undecided", {})
    assert "4 other day(s)" in short.rules[0].reason
    assert "adds one that was measured on another day" in short.rules[0].reason


def test_without_a_baseline_nothing_was_measured_to_compare_with() -> None:
    """The command that makes one is named."""
    missing = judge("request_latency: 5%", run(9), baseline=None)
    unknown = judge("goodput: 5%", run(9))

    assert (missing.status, missing.exit_code) == ("not_measured", 3)
    assert "specdeploy gate baseline update" in missing.rules[0].reason
    assert unknown.status == "not_measured"


def test_another_fingerprint_is_not_comparable() -> None:
    """Also where it got better; the field and both values are named. Absolute rules are judged all the same."""
    other = run(9, request_latency=0.5)
    other["environment"] = {**other["environment"], "cpu_cores": 64, "cpu_model": "Another"}
    verdict = judge(["request_latency: 5%", "error_rate <= 0"], other)

    assert [rule.status for rule in verdict.rules] == ["not_comparable", "pass"]
    assert (verdict.status, verdict.exit_code) == ("not_comparable", 3)
    assert "machine.cpu_cores is '64' here and '-' in the baseline" in verdict.rules[0].reason
    assert "specdeploy gate baseline update --reset" in verdict.rules[0].reason


def test_a_failure_outweighs_what_is_not_comparable() -> None:
    """Exit code 1."""
    other = run(9)
    other["plan"]["max_tokens"] = 7

    assert judge(["request_latency: 5%", "request_latency <= 1ms"], other).exit_code == 1


def test_many_rules_need_more_evidence_than_one() -> None:
    """A regression that is just real for one rule is not among twenty: Holm's correction."""
    load = run(9, request_latency=1.09)
    alone = judge("request_latency@1: 5%", load).rules[0]
    others = ["request_throughput#control: 5%", "time_to_first_token: 5%", "inter_token_latency: 5%"]
    among = judge(
        ["request_latency@1: 5%", *others, *(f"time_to_first_token.{p}: 5%" for p in ("p50", "p90", "p95"))], load
    ).rules[0]

    assert alone.status == "fail"
    assert among.status == "undecided"
    assert among.numbers["p"] == alone.numbers["p"] < among.numbers["p_adjusted"]


def test_an_advisory_rule_decides_nothing() -> None:
    """It is judged and reported, its failure is not the gate's, and the others are not corrected for it."""
    load = run(9, request_latency=1.2)
    verdict = judge(["error_rate <= 0", "advisory: request_latency: 5%", "advisory: speedup@64 >= 1"], load)

    assert [rule.status for rule in verdict.rules] == ["pass", "fail", "not_measured"]
    assert (verdict.status, verdict.exit_code) == ("pass", 0)
    assert verdict.to_dict(created="now")["rules"][1]["advisory"] is True
    both = judge(["request_latency@1: 5%", "advisory: request_throughput@1: 5%"], load).rules[0]
    assert both.numbers["p"] == both.numbers["p_adjusted"]


def paired(ratios, key="speedup"):
    """A document whose pairs have these ratios at concurrency 1."""
    load = copy.deepcopy(LOAD)
    place = load["speedup"]["1"] if key == "speedup" else load["speedup"]["1"][key]
    place |= paired_ratio(ratios, [number % 2 == 0 for number in range(len(ratios))]).to_dict()
    return load


@pytest.mark.parametrize(
    ("ratios", "status"),
    [
        ((0.90, 0.91, 0.89, 0.92, 0.90), "fail"),
        ((0.99, 1.01, 1.00, 0.98, 1.02), "pass"),
        ((0.97, 0.96, 0.97, 0.96, 0.97), "pass"),
        ((1.90, 2.10, 1.70, 2.20, 2.00), "pass"),
        ((0.70, 1.40, 0.50, 1.20, 0.80), "undecided"),
        ((0.90, 0.91, 0.89, 0.92), "undecided"),
    ],
)
def test_the_candidate_is_compared_with_the_control_pair_by_pair(ratios, status) -> None:
    """Material and real fails; a small loss is allowed even if it is real; four pairs are too few."""
    verdict = judge("output_token_throughput@1: 5% of control", paired(ratios), baseline=None)

    assert verdict.status == status


def test_latency_is_compared_with_the_control_too() -> None:
    """A ratio above 1 is slower."""
    slower = paired((1.10, 1.12, 1.09, 1.11, 1.10), "request_latency_ratio")

    assert judge("request_latency@1: 5% of control", slower).status == "fail"
    assert judge("time_to_first_token@1: 5% of control", slower).status in {"pass", "undecided"}


def test_an_open_loop_compares_latencies_alone() -> None:
    """Its throughput is what was offered."""
    run_, plan = Simulator().run(LoadSettings(shape="poisson", rates=(5.0,)))
    load = build_load_report(run_, plan, CONTEXT)

    assert judge("output_token_throughput: 5% of control", load).status == "not_measured"
    assert judge("request_latency@5/s: 5% of control", load).status == "pass"


def test_a_degraded_run_never_passes_a_relative_rule() -> None:
    """As with all others."""
    load = {**run(9), "degraded": True}

    assert judge("request_latency@1: 5%", load).status == "undecided"
    assert judge("request_latency@1: 5%", {**run(9, request_latency=1.3), "degraded": True}).status == "fail"


def test_categories_are_compared_each() -> None:
    """A loss of acceptance in one of them fails, though the average of all hardly moves."""
    worse = run(9)
    entry = worse["arms"][1]["categories"]["python"]["spec_decode_acceptance_length"]
    entry["avg"] *= 0.7

    assert judge("spec_decode_acceptance_length[python]@1: 5%", run(9)).status == "pass"
    assert judge("spec_decode_acceptance_length[python]@1: 5%", worse).status == "fail"
    assert judge("spec_decode_acceptance_length[python]@1 >= 1.1", run(9)).status == "pass"
    unknown = judge("spec_decode_acceptance_length[poetry]@1 >= 1.1", run(9))
    assert unknown.status == "not_measured"
    assert "its categories are" in unknown.rules[0].reason


def test_a_run_that_tells_no_categories_apart_says_so() -> None:
    """All its prompts were of one."""
    load = run(9)
    for arm in load["arms"]:
        arm["categories"] = {}

    assert "tells no categories apart" in judge("spec_decode_acceptance_length[python] >= 1", load).rules[0].reason


def test_a_speedup_is_compared_with_that_of_the_baseline() -> None:
    """It belongs to both arms."""
    worse = run(9)
    found = worse["speedup"]["1"]
    found |= paired_ratio([0.8 * ratio for ratio in found["ratios"]], found["control_first"]).to_dict()

    assert judge("speedup@1: 5%", run(9)).status == "pass"
    assert judge("speedup@1: 5%", worse).status == "fail"


@pytest.mark.parametrize(
    "ratios",
    [
        [1.0] * 5,
        [1e-300, 1e300] * 2,
        [0.0, 1.0, 1.0, 1.0, 1.0],
        [float("nan")] * 5,
        ["1"] * 5,
        "11111",
        [float("inf")] * 5,
    ],
)
def test_ratios_that_cannot_be_trusted_are_an_error(ratios) -> None:
    """No speed is the multiple of nothing, and the interval beside them is theirs."""
    load = copy.deepcopy(LOAD)
    load["speedup"]["1"] |= {"ratios": ratios, "control_first": []}

    for rule in ("output_token_throughput@1: 5% of control", "speedup@1 >= 1"):
        with pytest.raises(ConfigError):
            judge(rule, load)


def test_a_run_is_rounded_as_its_baseline_is() -> None:
    """The same run on six days is no regression, whatever its seventh digit; nor is a baseline that never varies."""
    same = baseline((1.0,) * 5)
    for rule in ("request_latency: 0%", "request_latency.p99: 0%", "output_token_throughput#control: 0%"):
        assert judge(rule, run(9), baseline=same).status == "pass", rule


def test_a_look_makes_no_baseline_blurred() -> None:
    """More of the load sharpens no comparison with other days, so what passes at once passes at any look."""
    rules, load = ["request_latency: 5%"], run(9)
    alone = judge(rules, load).rules[0]
    later = judge(rules, load, look=3, share=0.125).rules[0]

    assert alone.status == later.status == "pass"
    assert alone.numbers["half_width"] == later.numbers["half_width"]


def test_what_would_fail_alone_says_so_among_others() -> None:
    """By more than chance explains for one rule, and not for all of them."""
    load = run(9, request_latency=1.09)
    others = ["request_throughput#control: 5%", "time_to_first_token: 5%", "inter_token_latency: 5%"]
    among = judge(["request_latency@1: 5%", *others], load).rules[0]

    assert among.status == "undecided"
    assert "but among all that is decided here chance may explain it" in among.reason
