"""The documents of one whole run, for the reports."""

from __future__ import annotations

from specdeploy.bench.goodput import parse_objectives
from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.schedule import LoadSettings, kv_reuse_findings
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import evaluate
from specdeploy.smoke.report import CheckResult, SmokeReport
from tests.unit.bench.simulated import CONTEXT, Simulator

RULES = ("error_rate <= 0", "speedup@1 >= 1.2", "speedup@1 >= 1.7", "time_to_first_token.p99@8 <= 200ms")


OPEN_RULES = ("error_rate <= 0", "request_latency.p99@5/s <= 60s", "good_request_fraction >= 10%")
OBJECTIVES = ("time_to_first_token <= 85ms", "request_latency <= 1500ms")


def documents(concurrency=(1, 2), rules=RULES, **changes) -> dict:
    """Everything that the HTML report takes; replace any of it with ``changes``."""
    return measured(LoadSettings(concurrency=concurrency, pairs=4), rules, **changes)


def open_documents(rates=(5.0, 20.0), rules=OPEN_RULES, objectives=OBJECTIVES, *, compare=True, **changes) -> dict:
    """The same of an open loop."""
    settings = LoadSettings(shape="poisson", rates=rates, pairs=4, requests=12, compare=compare)
    return measured(settings, rules, objectives, **changes)


def measured(settings, rules, objectives=(), simulator=None, **changes) -> dict:
    """Everything that the HTML report takes, of a load test with these settings."""
    run, plan = (simulator or Simulator()).run(settings)
    promised = parse_objectives(objectives)
    load = build_load_report(run, plan, CONTEXT, kv_reuse_findings(plan, max_sequences=8), objectives=promised)
    smoke = SmokeReport(
        checks=(
            CheckResult(name="health", status="pass", duration_s=0.01, reason="live and ready, 6 models"),
            CheckResult(name="lossless", status="fail", duration_s=3.2, reason="differs at token 5 of 32"),
            CheckResult(name="http", status="skip", duration_s=0.0, reason="not asked for"),
        )
    )
    return {
        "deployment": dict(CONTEXT.deployment),
        "load": load,
        "smoke": smoke.as_dict(),
        "gate": evaluate(parse_rules(rules), load).to_dict(created="2026-01-31"),
        "records": run.records,
        **changes,
    }
