"""The document of a load test, ``load.json``: built from records, and the findings about them.

Knows the shape of the document and what makes a run less than it seems; writes no file and draws no picture.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Protocol

from specdeploy.bench.blocks import summarize_blocks
from specdeploy.bench.crossover import crossover
from specdeploy.bench.outputs import compare_outputs
from specdeploy.bench.paired import PairedSummary, paired_speedup
from specdeploy.bench.records import CONTROL, SPECULATION, LoadRun
from specdeploy.bench.server_window import summarize_server, traffic_findings
from specdeploy.bench.stats import ArmSummary, summarize
from specdeploy.bench.step_cost import step_cost
from specdeploy.bench.table import table_of
from specdeploy.findings import Finding
from specdeploy.planning.speedup import tokens_per_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdeploy.bench.goodput import Objective
    from specdeploy.bench.server_window import GaugeReading
    from specdeploy.bench.step_cost import StepCost
    from specdeploy.bench.table import RecordTable

SCHEMA_VERSION: Final = "1.0"
RECORDS_FILE: Final = "load_records.jsonl"

#: A closed loop is degraded when the generator itself held its requests back for more than this share of the time.
MAX_LAG_SHARE: Final = 0.02
#: An open loop is degraded when one request of a hundred is sent later than this (milliseconds), or than this share of
#: the time to first token, whichever is more; or when fewer requests a second were sent than this share of the offer.
MAX_LAG_MS: Final = 5.0
MAX_LAG_OF_FIRST_TOKEN: Final = 0.05
LEAST_ACHIEVED: Final = 0.98

_OWN_DIFFERS: Final = "Run `specdeploy smoke`: near-ties may flip with the shape of a batch, anything else is a bug."
_BUILDS_DIFFER: Final = "Weights or precision may differ on purpose; else run `specdeploy smoke` on both deployments."


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunContext:
    """What was measured, where and when; passed through to the document.

    Args:
        created: ISO 8601 date and time.

        deployment: What was measured.

        environment: Where it was measured.

        client: What the load generator itself used; passed through to the document.

        gauges: What was read of the server while it worked.

        front_door: The model that requests go to, where the server counts them; empty elsewhere.

        records_file: Name of the file of records beside the document.
    """

    created: str
    deployment: Mapping[str, Any]
    environment: Mapping[str, Any]
    client: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gauges: Iterable[GaugeReading] = ()
    front_door: str = ""
    records_file: str = RECORDS_FILE


class ReportedPlan(Protocol):
    """What a document tells of a plan: one that was run, or one that was read back."""

    @property
    def temperature(self) -> float:
        """0 decodes greedily."""
        ...

    @property
    def block_s(self) -> float | None:
        """How long each block of a closed loop lasts; None where the number of its requests decides."""
        ...

    @property
    def own_control(self) -> bool:
        """Whether the control is the same server, asked for no drafts; else it is another one, which may draft."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as it stands in ``load.json``."""
        ...


def build_load_report(
    run: LoadRun,
    plan: ReportedPlan,
    context: RunContext,
    findings: Iterable[Finding] = (),
    *,
    objectives: Sequence[Objective] = (),
) -> dict[str, Any]:
    """Build ``load.json`` from a run, whole or partial.

    Args:
        run: What was measured.

        plan: What was to be run.

        context: What, where and when.

        findings: What the caller noticed, such as `schedule.kv_reuse_findings`.

        objectives: What a good request keeps.
    """
    records = table_of(run.records)
    summaries, pairs = summarize(records, objectives), paired_speedup(records, block_s=plan.block_s)
    late = (*_lag_findings(_lag_share(records)), *_schedule_findings(summaries, records))
    drafting = tuple(summary for summary in summaries if summary.arm == CONTROL and _drafts(summary))
    mistaken = _control_findings(drafting) if plan.own_control else ()
    comparable = () if mistaken else pairs
    cost = step_cost(records)
    outputs = compare_outputs(records) if plan.temperature == 0 else None
    others = traffic_findings(run.windows, records, context.front_door)
    own = (*_arm_findings(summaries), *mistaken, *_bypass_findings(records), *late, *others)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "load",
        "created": context.created,
        "duration_s": run.duration_s,
        "partial": run.partial,
        "stop_reason": run.stop_reason,
        "degraded": bool(late),
        "client": dict(context.client),
        "started_at": context.created,
        "started_s": run.started_s,
        "deployment": dict(context.deployment),
        "environment": dict(context.environment),
        "plan": plan.to_dict(),
        "objectives": [str(objective) for objective in objectives],
        "arms": [summary.to_dict() for summary in summaries],
        "speedup": {pair.point.key: pair.to_dict() for pair in comparable if pair.speedup},
        # What drafts gain, and what bounds that, is known by a control without them.
        "crossover": paying.to_dict() if not drafting and (paying := crossover(comparable)) else None,
        "open_loop": [{**pair.point.to_dict(), **pair.to_dict()} for pair in comparable if not pair.speedup],
        "blocks": [block.to_dict() for block in summarize_blocks(records)],
        "search": None,
        "repeats": [],
        "server": summarize_server(run.windows, context.gauges),
        "outputs": outputs,
        "limits": [] if drafting else [limit for summary in summaries if (limit := _limit(summary, cost, pairs))],
        "findings": [
            finding.as_dict() for finding in (*findings, *own, *_output_findings(outputs, own=plan.own_control))
        ],
        "records_file": context.records_file,
    }


def _arm_findings(summaries: Iterable[ArmSummary]) -> tuple[Finding, ...]:
    return tuple(finding for summary in summaries for finding in summary.findings)


def _drafts(summary: ArmSummary) -> bool:
    return "spec_decode_draft_tokens" in summary.metrics


def _control_findings(drafting: Iterable[ArmSummary]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            severity="error",
            code="load.control-speculates",
            message=(
                f"at {summary.point} the control, sent with num_draft_tokens 0, was answered with "
                "drafted tokens: there is nothing to compare with, so no speed-up is reported"
            ),
            hint="The server ignores num_draft_tokens; use a repository that honours it.",
        )
        for summary in drafting
    )


def _bypass_findings(table: RecordTable) -> tuple[Finding, ...]:
    speculation = table.measured.good.of(SPECULATION)
    reasons = {reason: count for reason, count in speculation.labels("bypass").items() if reason}
    if not reasons:
        return ()
    return (
        Finding(
            severity="warning",
            code="load.speculation-bypassed",
            message=(
                f"{sum(reasons.values())} of {len(speculation)} requests of the speculation arm did not: "
                f"{', '.join(reasons)}"
            ),
            hint="The speed-up includes them; change the request parameters that forbid speculation.",
        ),
    )


def _lag_share(table: RecordTable) -> float | None:
    busy_s = lag_s = 0.0
    for point, under in table.measured.by_point().items():
        if point.rate is None:
            busy_s += float((under["ended_s"] - under["intended_s"]).sum())
            lag_s += float((under["sent_s"] - under["intended_s"]).sum())
    return lag_s / busy_s if busy_s > 0 else None


def _lag_findings(share: float | None) -> tuple[Finding, ...]:
    if share is None or share <= MAX_LAG_SHARE:
        return ()
    return (
        Finding(
            severity="warning",
            code="load.degraded",
            message=f"the load generator itself was late for {share:.1%} of the time; {MAX_LAG_SHARE:.0%} is allowed",
            hint="Free the machine that sends the load, or lower load.concurrency.",
        ),
    )


def _schedule_findings(summaries: Iterable[ArmSummary], table: RecordTable) -> tuple[Finding, ...]:
    """Say where an open loop was not the one that was asked for."""
    found, under = [], table.measured.by_point()
    for summary in summaries:
        if summary.point.rate is None:
            continue
        lag_ms = summary.metrics["dispatch_lag"]["p99"]
        first_ms = summary.metrics.get("time_to_first_token", {}).get("p50", 0.0)
        limit_ms = max(MAX_LAG_MS, MAX_LAG_OF_FIRST_TOKEN * first_ms)
        achieved = _achieved(under[summary.point].of(summary.arm))
        if lag_ms > limit_ms:
            words = f"one request of a hundred was sent {lag_ms:.1f} ms late or more; {limit_ms:.1f} ms are allowed"
        elif achieved < LEAST_ACHIEVED:
            words = f"only {achieved:.1%} of the offered rate was sent; {LEAST_ACHIEVED:.0%} is the least"
        else:
            continue
        found.append(
            Finding(
                severity="warning",
                code="load.degraded",
                message=f"{summary.arm} at {summary.point}: {words}",
                hint="Free the machine that sends the load, or split the load by --shard.",
            )
        )
    return tuple(found)


def _achieved(table: RecordTable) -> float:
    """Return how fast the schedule was carried out: time that it should have taken, over the time that it took."""
    wanted_s = took_s = 0.0
    for place in table.by_block():
        intended_s, sent_s = place.requests["intended_s"], place.requests["sent_s"]
        wanted_s += float(intended_s.max() - intended_s.min())
        took_s += float(sent_s.max() - intended_s.min())
    return wanted_s / took_s if took_s > 0 else 1.0


def _output_findings(outputs: Mapping[str, Any] | None, *, own: bool) -> tuple[Finding, ...]:
    if outputs is None or not outputs["differing"]:
        return ()
    first = outputs["differing"][0]
    return (
        Finding(
            severity="warning",
            code="load.outputs-differ",
            message=(
                f"{outputs['compared'] - outputs['identical']} of {outputs['compared']} greedy answers differ between "
                f"the arms, first in {first['prompt_id']} at token {first['position']}"
            ),
            hint=_OWN_DIFFERS if own else _BUILDS_DIFFER,
        ),
    )


def _limit(summary: ArmSummary, cost: StepCost | None, pairs: Iterable[PairedSummary]) -> dict[str, Any] | None:
    """Say what bounds the speed-up: tokens per step (the ceiling, were drafting free), and what a step costs."""
    positions = summary.metrics.get("spec_decode_per_position_acceptance")
    if summary.arm != SPECULATION or positions is None:
        return None
    tokens = tokens_per_step(positions["values"])
    drafts = summary.metrics["spec_decode_draft_tokens"]["sum"] / summary.metrics["spec_decode_steps"]["sum"]
    measured = next((pair.speedup.avg for pair in pairs if pair.speedup and pair.point == summary.point), None)
    return {
        **summary.point.to_dict(),
        "tokens_per_step": tokens,
        "drafts_per_step": drafts,
        "ceiling": tokens,
        "costs": cost.to_dict() if cost else None,
        "predicted_speedup": tokens / cost.step_cost if cost else None,
        "measured_speedup": measured,
        "formula": "tokens_per_step / step_cost",
    }
