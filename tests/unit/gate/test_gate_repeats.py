"""Looking again: the time, what each look may spend, how much is measured next, and when that cannot help."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.schedule import LoadSettings
from specdeploy.bench.table import table_of
from specdeploy.errors import ConfigError
from specdeploy.gate.defaults import LEAST_PAIRS
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.repeats import beyond_help, least_pairs, more_pairs, parse_budget, share_of
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import Evidence, evaluate
from tests.bench.gate import repeated_claims, repeated_rates
from tests.unit.bench.simulated import CONTEXT, Simulator, load_report

RUN, PLAN = Simulator(noise=0.3).run(LoadSettings(concurrency=(1,), requests=4, pairs=3))
FEW = build_load_report(RUN, PLAN, CONTEXT)
LOAD = load_report(LoadSettings(concurrency=(1,), requests=4))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20min", 1200), ("20 m", 1200), ("1.5h", 5400), (" 0.5s ", 0.5)]
)
def test_a_budget_is_a_time_with_a_unit(text: str, seconds: float) -> None:
    """Seconds, minutes or hours."""
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "0.0h", "20", "-5s", "nan", "inf", "1e9s", "5 parsecs", "1h30m", "9" * 400]
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    """With an example of one."""
    with pytest.raises(ConfigError) as caught:
        parse_budget(text)
    assert "20min" in (caught.value.hint or "")


def test_all_looks_together_spend_no_more_than_one_would() -> None:
    """However many there are."""
    assert share_of(1) == 0.5
    assert sum(share_of(look) for look in range(1, 60)) <= 1
    assert share_of(5000) == 0.0


@given(pairs=st.integers(1, 10**6), took_s=st.floats(0, 1e6), left_s=st.floats(-1e6, 1e6))
def test_the_next_part_fits_into_the_time(pairs: int, took_s: float, left_s: float) -> None:
    """And is at most as large as all before, but for what five pairs take; a small rest is not worth a look."""
    more = more_pairs(pairs, took_s, left_s)

    assert 0 <= more <= max(pairs, LEAST_PAIRS)
    assert more * took_s <= max(left_s, 0.0) * pairs * (1 + 1e-9) or not took_s
    assert not more or 4 * more >= pairs or pairs + more == LEAST_PAIRS


@pytest.mark.parametrize(
    ("pairs", "left_s", "more"), [(5, 100.0, 5), (5, 6.0, 3), (5, 2.0, 0), (2, 100.0, 3), (1, 0.0, 0), (40, 2.0, 0)]
)
def test_runs_double_while_there_is_time(pairs: int, left_s: float, more: int) -> None:
    """Of pairs that took ten seconds together."""
    assert more_pairs(pairs, 10.0, left_s) == more


@pytest.mark.parametrize(
    ("rule", "helps"),
    [
        ("request_latency.p99 <= 60s", True),
        ("speedup@1 >= 1.6", True),
        ("output_token_throughput@1: 5% of control", True),
        ("request_latency: 5%", False),
        ("lossless.divergences <= 0", False),
        ("goodput >= 1 requests/s", False),
        ("advisory: request_latency: 5%", True),
    ],
)
def test_more_of_the_load_helps_where_data_are_few(rule: str, helps: bool) -> None:
    """And not where something else is missing: a baseline, a smoke test, an objective."""
    verdict = evaluate(parse_rules([rule, "error_rate <= 0"]), FEW, Evidence(requests=table_of(RUN.records)))

    assert verdict.rules[0].status != "pass"
    assert bool(beyond_help(verdict)) != helps
    assert verdict.to_dict(created="now")["rules"][0]["more_decides"] == (helps and "advisory" not in rule)


def test_a_percentile_is_looked_at_again_when_it_may_be_claimed() -> None:
    """A p99 at the second look, 98.75 % sure, takes 437 requests; an advisory one waits for nobody."""
    requests = table_of(RUN.records)
    p99, advisory = (
        evaluate(parse_rules([*rules, "error_rate <= 0"]), FEW, Evidence(requests=requests, share=0.5))
        for rules in (["request_latency.p99 <= 60s"], ["advisory: request_latency.p99 <= 60s"])
    )

    assert 0.99**437 <= 0.0125 < 0.99**436
    assert least_pairs(p99, pairs=3) == -(-437 * 3 // 12)
    assert least_pairs(advisory, pairs=3) == 5


def test_a_run_that_is_not_whole_is_not_mended_by_more() -> None:
    """What was interrupted stays so."""
    verdict = evaluate(parse_rules(["request_latency.p99 <= 60s"]), {**LOAD, "partial": True}, Evidence())

    assert verdict.status == "undecided"
    assert beyond_help(verdict)


def test_a_later_look_has_to_be_surer() -> None:
    """Claims, pairs and speed-up alike; the verdict says how sure it was."""
    rules = parse_rules(["request_latency.p50 <= 60s", "request_latency@1: 5% of control", "speedup@1 >= 1"])
    run, plan = Simulator().run(LoadSettings(requests=2, warmup_requests=0))
    load, requests = build_load_report(run, plan, CONTEXT), table_of(run.records)
    looks = ((1, 1.0), (3, 0.125))
    once, third = (evaluate(rules, load, Evidence(requests=requests, look=at, share=share)) for at, share in looks)

    assert (once.confidence, third.confidence) == (0.95, pytest.approx(0.99375))
    assert [rule.numbers["confidence"] for rule in third.rules] == [pytest.approx(0.99375)] * 3
    assert third.rules[1].numbers["half_width"] > once.rules[1].numbers["half_width"]
    assert third.rules[2].numbers["ci_low"] < once.rules[2].numbers["ci_low"] < third.rules[2].value
    document = third.to_dict(created="now")
    assert (document["look"], document["share_of_errors"], document["repeats"]) == (3, 0.125, None)


def test_the_document_says_how_often_it_was_looked_at() -> None:
    """Once, and once for each part that was added."""
    assert LoadDocument(LOAD).looks == 1
    assert LoadDocument({**LOAD, "repeats": [{}, {}]}).looks == 3
    with pytest.raises(ConfigError, match="repeats"):
        _ = LoadDocument({**LOAD, "repeats": 3}).looks


@pytest.mark.parametrize("noise", ["normal", "skewed"])
def test_measuring_on_raises_no_more_false_alarms_and_catches_more(noise: str) -> None:
    """Under 5 % over all looks; the seed is fixed, `make bench` repeats it more often."""
    assert repeated_rates(noise, 0.0, repeats=500)["fail"] < 0.05
    assert repeated_rates(noise, 0.10, repeats=500)["fail"] > 0.93


def test_looking_again_claims_no_more_of_a_percentile_that_is_not_kept() -> None:
    """Under 5 % over all looks."""
    assert repeated_claims(0.9, 50, repeats=1000) < 0.05


def test_the_load_with_the_fewest_requests_says_how_many_pairs_are_needed() -> None:
    """Of a rule under several loads one is the worst, and another may have too few requests to be claimed."""
    run, plan = Simulator().run(LoadSettings(concurrency=(1, 4), requests=4, pairs=3))
    few = [record for record in run.records if record.concurrency != 4 or record.pair < 1 or not record.counts]
    run = dataclasses.replace(run, records=tuple(few))
    load, requests = build_load_report(run, plan, CONTEXT), table_of(run.records)
    evidence = Evidence(requests=requests, share=0.5)
    verdict = evaluate(parse_rules(["request_latency.p99 <= 60s"]), load, evidence)

    assert verdict.rules[0].numbers["fewest_requests"] == 4
    assert least_pairs(verdict, pairs=3) == -(-437 * 3 // 4)
