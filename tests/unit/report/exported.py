"""Load documents and their records, for the exports: a closed loop of two loads, and an open one with failures."""

from __future__ import annotations

import dataclasses

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.records import LoadRun
from specdeploy.bench.schedule import LoadSettings
from tests.unit.bench.simulated import CONTEXT, Simulator, failed, record

STARTED = {"started_at": "2026-01-31T09:00:00.500000+00:00", "started_s": 100.0}


def closed_loop(**changes) -> tuple[dict, tuple]:
    """Both arms at two concurrencies, warm-up and a failed request included; ``changes`` replace parts of it."""
    run, plan = Simulator().run(LoadSettings(concurrency=(1, 4), pairs=3))
    last = run.records[-1]
    records = (*run.records[:-1], failed("timeout", **_place(last), error_message="no response in 9 s"))
    document = build_load_report(LoadRun(records=records, duration_s=run.duration_s), plan, CONTEXT)
    return {**document, **STARTED, **changes}, records


def open_loop(**changes) -> tuple[dict, tuple]:
    """Both arms at five requests a second."""
    run, plan = Simulator().run(LoadSettings(concurrency=(2,), pairs=3))
    records = tuple(dataclasses.replace(item, concurrency=None, rate=5.0) for item in run.records)
    document = build_load_report(LoadRun(records=records, duration_s=run.duration_s), plan, CONTEXT)
    return {**document, "plan": {**document["plan"], "shape": "poisson"}, **changes}, records


def contradicting() -> tuple[dict, tuple]:
    """Two requests, one with counts that cannot be; no acceptance is reported."""
    _, plan = Simulator().run(LoadSettings())
    records = (record(), record(index=1, histogram=(9, 9)))
    return build_load_report(LoadRun(records=records), plan, CONTEXT), records


def _place(item) -> dict:
    names = ("arm", "pair", "index", "concurrency", "prompt_id", "category", "intended_s", "sent_s", "ended_s")
    return {name: getattr(item, name) for name in names}
