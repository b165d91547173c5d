"""Relative rules: worse than the baseline, or than the control, by more than is allowed and than chance explains."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.abba import mean_log
from specdeploy.gate.baseline import ALIKE, UPDATE, as_kept, differing_words
from specdeploy.gate.defaults import LEAST_PAIRS
from specdeploy.gate.fingerprint import differences, fingerprint_of
from specdeploy.gate.limits import not_measured, other_loads
from specdeploy.gate.outcome import RuleVerdict, amount, place_of
from specdeploy.gate.regression import centre_of, decide, of_pairs, of_runs
from specdeploy.gate.rules import may_be_paired
from specdeploy.gate.weighing import AMONG_OTHERS, Weighing, decided

if TYPE_CHECKING:
    from specdeploy.bench.records import LoadPoint
    from specdeploy.gate.document import LoadDocument
    from specdeploy.gate.evidence import Evidence
    from specdeploy.gate.outcome import Status
    from specdeploy.gate.regression import Change, Decision
    from specdeploy.gate.rules import Rule

_STATUS: Final[dict[Decision, Status]] = {
    "pass": "pass",
    "fail": "fail",
    "blurred": "undecided",
    "unproven": "undecided",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Comparison:
    """A rule under one load: a change that is still to be weighed with the others."""

    rule: Rule
    point: LoadPoint
    change: Change
    value: float
    source: str
    independent: int
    reference: float = 1.0


def weigh_relative(rule: Rule, document: LoadDocument, evidence: Evidence) -> tuple[Weighing, ...]:
    """Weigh a rule that compares, under every load that it is for.

    Raises:
        ConfigError: What was measured cannot be read.
    """
    compare = _with_control if rule.reference == "control" else _with_baseline
    points = document.points if rule.point is None else (rule.point,)
    confidence = evidence.at_this_look(evidence.confidence)
    return tuple(_weighing(compare(rule, document, evidence, point), confidence) for point in points)


def _weighing(found: _Comparison | RuleVerdict, confidence: float) -> Weighing:
    if isinstance(found, RuleVerdict):
        return decided(found)
    return Weighing(settle=lambda p: _weighed(found, p, confidence), advisory=found.rule.advisory, p=found.change.p)


def _with_control(
    rule: Rule, document: LoadDocument, evidence: Evidence, point: LoadPoint
) -> _Comparison | RuleVerdict:
    ratios = document.paired_ratios(rule.metric, point)
    where = f"{place_of(rule, point)}"
    if not ratios:
        open_loop = point.rate is not None and rule.metric == "output_token_throughput"
        why = ": in an open loop throughput follows the rate that is offered" if open_loop else ""
        why = other_loads(document, point) or why
        return _early(rule, point, "not_measured", f"{where} was not compared with the control in pairs{why}.")
    if len(ratios) < LEAST_PAIRS:
        reason = f"{where} was compared in {len(ratios)} usable pair(s); {LEAST_PAIRS} are the least (load.pairs)."
        return dataclasses.replace(_early(rule, point, "undecided", reason), more_decides=True)
    first = document.control_first(rule.metric, point)
    confidence = evidence.at_this_look(evidence.confidence)
    change = of_pairs(ratios, first, higher_is_better=rule.wants_more, allowed=rule.allowed, confidence=confidence)
    return _Comparison(
        rule=dataclasses.replace(rule, unit="x"),
        point=point,
        change=change,
        value=math.exp(mean_log(ratios, first).mean),
        source="the control",
        independent=len(ratios),
    )


def _with_baseline(
    rule: Rule, document: LoadDocument, evidence: Evidence, point: LoadPoint
) -> _Comparison | RuleVerdict:
    value, early = _value(rule, document, point), None
    where = place_of(rule, point)
    baseline, needed = evidence.baseline, evidence.baseline_runs
    # Also of a run that is in the baseline by now: what failed does not become its own reference.
    runs = () if baseline is None else baseline.without_day_of(document.created).values(rule, point)
    if value is None:
        return not_measured(rule, document, point)
    if baseline is None:
        none = f"There is no baseline ({evidence.baseline_at}) to compare with; {UPDATE} makes one."
        early = _early(rule, point, "not_measured", none)
    elif other := differences(fingerprint_of(document.data), baseline.fingerprint):
        early = _early(rule, point, "not_comparable", f"Not measured alike: {differing_words(other)}; {ALIKE}.")
    elif len(runs) < needed:
        adds = f"{UPDATE} adds one that was measured on another day"
        reason = f"{where} has baseline runs of {len(runs)} other day(s), and {needed} are needed; {adds}."
        early = _early(rule, point, "undecided" if runs else "not_measured", reason)
    if early is not None:
        return dataclasses.replace(early, value=value)
    # The run is rounded as those of the baseline are. More of it makes nothing sharper, so what chance explains is not
    # more at a later look.
    rounded, confidence = as_kept(value), evidence.confidence
    return _Comparison(
        rule=rule,
        point=point,
        change=of_runs(rounded, runs, higher_is_better=rule.wants_more, allowed=rule.allowed, confidence=confidence),
        value=value,
        reference=centre_of(runs),
        source="the baseline",
        independent=len(runs),
    )


def _value(rule: Rule, document: LoadDocument, point: LoadPoint) -> float | None:
    if rule.arm is None:
        interval = document.speedup(point)
        return None if interval is None else interval.avg
    return document.metric(rule.metric, rule.stat, arm=rule.arm, point=point, category=rule.category)


def _weighed(one: _Comparison, p: float, confidence: float) -> RuleVerdict:
    """Decide a comparison by its corrected p-value."""
    change, rule = one.change, one.rule
    decision = decide(change, p, confidence)
    worse_by = one.reference - one.value if rule.wants_more else one.value - one.reference
    floored = rule.floor > 0 and worse_by <= rule.floor
    status: Status = "pass" if floored else _STATUS[decision]
    alone = decision == "unproven" and change.p <= 1 - confidence
    why = f"no more than the floor of {amount(rule.floor, rule.unit)}" if floored else _why(decision, one, p, alone)
    return RuleVerdict(
        rule=rule,
        status=status,
        value=one.value,
        limit=rule.limit_from(one.reference),
        point=one.point,
        reason=f"{place_of(rule, one.point)} is {_against(one)}: {_share(change.worse)}, {why}.",
        numbers={**_numbers(one, change, p), "confidence": confidence},
        more_decides=status == "undecided" and rule.reference == "control",
    )


def _against(one: _Comparison) -> str:
    if one.source == "the control":
        return f"{amount(one.value, 'x')} {one.source}'s in {one.independent} pairs"
    unit = one.rule.unit
    return f"{amount(one.value, unit)}, and {amount(one.reference, unit)} in {one.source} of {one.independent} days"


def _share(worse: float) -> str:
    if not worse:
        return "unchanged"
    size = "infinitely" if math.isinf(worse) else f"{abs(worse) * 100:.3g} %"
    return f"{size} {'worse' if worse > 0 else 'better'}"


def _why(decision: Decision, one: _Comparison, p: float, alone: bool) -> str:
    allowed, blur = f"{one.rule.allowed * 100:.4g} %", math.expm1(min(one.change.half, 700.0))
    if one.source == "the control":
        more = "More pairs would tell"
    else:
        more = "Compare in pairs, or allow more" if may_be_paired(one.rule) else "Allow more"
    return {
        "pass": f"within the {allowed} that are allowed",
        "fail": f"more than the {allowed} that are allowed and than chance explains (p = {p:.2g})",
        "unproven": f"more than the {allowed} that are allowed, "
        f"{AMONG_OTHERS.format(p) if alone else f'and chance may explain it (p = {p:.2g})'}. {more}",
        "blurred": f"but chance alone explains about {blur * 100:.2g} %, so twice the {allowed} that are allowed would "
        f"not have shown. {more}",
    }[decision]


def _numbers(one: _Comparison, change: Change, p: float) -> dict[str, Any]:
    """Return what was decided by; a share that is infinite, where the reference is 0, has no number in JSON."""
    return {
        "reference": one.reference,
        "independent": one.independent,
        "worse": change.worse if math.isfinite(change.worse) else None,
        "half_width": change.half,
        "p": change.p,
        "p_adjusted": p,
    }


def _early(rule: Rule, point: LoadPoint, status: Status, reason: str) -> RuleVerdict:
    return RuleVerdict(rule=rule, status=status, value=None, limit=None, point=point, reason=reason)
