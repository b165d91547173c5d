"""The document of a load test, ``load.json``: built from records, and the findings about them.

Knows the shape of the document and what makes a run less than it seems; writes no file and draws no picture.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.blocks import summarize_blocks
from specdeploy.bench.paired import PairedSummary, paired_speedup
from specdeploy.bench.records import CONTROL, SPECULATION, LoadRun, RequestRecord
from specdeploy.bench.stats import ArmSummary, summarize
from specdeploy.findings import Finding
from specdeploy.planning.speedup import predict_speedup, tokens_per_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.bench.schedule import LoadPlan

SCHEMA_VERSION: Final = "1.0"
RECORDS_FILE: Final = "load_records.jsonl"

#: A closed loop is degraded when the generator itself held its workers back for more than this share of the time.
MAX_LAG_SHARE: Final = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunContext:
    """What was measured, where and when; passed through to the document.

    Args:
        created: ISO 8601 date and time.

        deployment: What was measured. ``costs``, if it has them, are ``target_forward_ms`` and ``draft_forward_ms``
            (one pass over one token), ``verify_forward_ms`` (one target pass over drafts + 1 tokens) and
            ``overhead_ms`` (per step); the last two may be left out.

        environment: Where it was measured.

        records_file: Name of the file of records beside the document.
    """

    created: str
    deployment: Mapping[str, Any]
    environment: Mapping[str, Any]
    records_file: str = RECORDS_FILE


def build_load_report(
    run: LoadRun, plan: LoadPlan, context: RunContext, findings: Iterable[Finding] = ()
) -> dict[str, Any]:
    """Build ``load.json`` from a run, whole or partial.

    Args:
        run: What was measured.

        plan: What was to be run.

        context: What, where and when.

        findings: What the caller noticed, such as `schedule.kv_reuse_findings`.
    """
    records = run.records
    summaries, pairs, lag = summarize(records), paired_speedup(records), _lag_share(records)
    control_speculates = _control_findings(summaries)
    outputs = compare_outputs(records) if plan.settings.temperature == 0 else None
    own = (*_arm_findings(summaries), *control_speculates, *_bypass_findings(records), *_lag_findings(lag))
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "load",
        "created": context.created,
        "duration_s": run.duration_s,
        "partial": run.partial,
        "stop_reason": run.stop_reason,
        "degraded": lag is not None and lag > MAX_LAG_SHARE,
        "deployment": dict(context.deployment),
        "environment": dict(context.environment),
        "plan": plan.to_dict(),
        "arms": [summary.to_dict() for summary in summaries],
        "speedup": {} if control_speculates else {str(pair.concurrency): pair.to_dict() for pair in pairs},
        "blocks": [block.to_dict() for block in summarize_blocks(records)],
        "outputs": outputs,
        "limits": [limit for summary in summaries if (limit := _limit(summary, context.deployment, pairs))],
        "findings": [finding.as_dict() for finding in (*findings, *own, *_output_findings(outputs))],
        "records_file": context.records_file,
    }


def compare_outputs(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Compare the tokens that both arms answered to the same request; greedy decoding has to give the same ones.

    Returns:
        ``compared`` and ``identical`` counts and ``differing``, the first few requests whose tokens differ, with the
        position of the first difference.
    """
    answers: dict[tuple[int, int, int], dict[str, RequestRecord]] = {}
    for record in records:
        if record.counts and record.ok and record.output_ids:
            answers.setdefault((record.concurrency, record.pair, record.index), {})[record.arm] = record
    both = [(arms[CONTROL], arms[SPECULATION]) for _, arms in sorted(answers.items()) if len(arms) == 2]
    differing = [(a, b) for a, b in both if a.output_ids != b.output_ids]
    return {
        "compared": len(both),
        "identical": len(both) - len(differing),
        "differing": [_difference(control, speculation) for control, speculation in differing[:5]],
    }


def _difference(control: RequestRecord, speculation: RequestRecord) -> dict[str, Any]:
    ids = zip(control.output_ids, speculation.output_ids, strict=False)
    shorter = min(len(control.output_ids), len(speculation.output_ids))
    position = next((position for position, (a, b) in enumerate(ids) if a != b), shorter)
    return {
        "prompt_id": control.prompt_id,
        "concurrency": control.concurrency,
        "pair": control.pair,
        "position": position,
    }


def _arm_findings(summaries: Iterable[ArmSummary]) -> tuple[Finding, ...]:
    return tuple(finding for summary in summaries for finding in summary.findings)


def _control_findings(summaries: Iterable[ArmSummary]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            severity="error",
            code="load.control-speculates",
            message=(
                f"at concurrency {summary.concurrency} the control, sent with num_draft_tokens 0, was answered with "
                "drafted tokens: there is nothing to compare with, so no speed-up is reported"
            ),
            hint="The server ignores num_draft_tokens; use a repository that honours it.",
        )
        for summary in summaries
        if summary.arm == CONTROL and "spec_decode_draft_tokens" in summary.metrics
    )


def _bypass_findings(records: Iterable[RequestRecord]) -> tuple[Finding, ...]:
    speculation = [record for record in records if record.counts and record.ok and record.arm == SPECULATION]
    bypassed = [record for record in speculation if record.bypass_reason]
    if not bypassed:
        return ()
    reasons = ", ".join(sorted({record.bypass_reason for record in bypassed}))
    return (
        Finding(
            severity="warning",
            code="load.speculation-bypassed",
            message=f"{len(bypassed)} of {len(speculation)} requests of the speculation arm did not: {reasons}",
            hint="The speed-up includes them; change the request parameters that forbid speculation.",
        ),
    )


def _lag_share(records: Iterable[RequestRecord]) -> float | None:
    counted = [record for record in records if record.counts]
    busy_s = sum(record.ended_s - record.intended_s for record in counted)
    lag_s = sum(record.sent_s - record.intended_s for record in counted)
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


def _output_findings(outputs: Mapping[str, Any] | None) -> tuple[Finding, ...]:
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
            hint="Run `specdeploy smoke`: near-ties may flip with the shape of a batch, anything else is a bug.",
        ),
    )


def _limit(summary: ArmSummary, deployment: Mapping[str, Any], pairs: Iterable[PairedSummary]) -> dict[str, Any] | None:
    """Say what bounds the speed-up: tokens per step (the ceiling, were drafting free), and what a step costs."""
    positions = summary.metrics.get("spec_decode_per_position_acceptance")
    if summary.arm != SPECULATION or positions is None:
        return None
    tokens = tokens_per_step(positions["values"])
    drafts = summary.metrics["spec_decode_draft_tokens"]["sum"] / summary.metrics["spec_decode_steps"]["sum"]
    costs = _relative_costs(deployment.get("costs"))
    measured = next((pair.speedup.avg for pair in pairs if pair.concurrency == summary.concurrency), None)
    return {
        "concurrency": summary.concurrency,
        "tokens_per_step": tokens,
        "drafts_per_step": drafts,
        "ceiling": tokens,
        "costs": costs,
        "predicted_speedup": predict_speedup(tokens, drafts, **costs) if costs else None,
        "measured_speedup": measured,
        "formula": "tokens_per_step / (drafts_per_step * draft_cost + verify_cost + overhead)",
    }


def _relative_costs(costs: Mapping[str, float] | None) -> dict[str, float] | None:
    """Turn milliseconds into multiples of one target pass; None unless both models' passes were measured."""
    if not costs or not costs.get("target_forward_ms") or costs.get("draft_forward_ms") is None:
        return None
    target_ms = costs["target_forward_ms"]
    return {
        "draft_cost": costs["draft_forward_ms"] / target_ms,
        "verify_cost": costs.get("verify_forward_ms", target_ms) / target_ms,
        "overhead": costs.get("overhead_ms", 0.0) / target_ms,
    }
