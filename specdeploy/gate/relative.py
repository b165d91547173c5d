"""Relative rules: worse than the baseline, or than the control, by more than is allowed and than chance explains."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.abba import mean_log
from specdeploy.gate.baseline import ALIKE, UPDATE, differing_words
from specdeploy.gate.defaults import LEAST_PAIRS
from specdeploy.gate.fingerprint import differences, fingerprint_of
from specdeploy.gate.limits import not_measured, other_loads
from specdeploy.gate.outcome import RuleVerdict, amount, distrusted, place_of, worst_of
from specdeploy.gate.regression import centre_of, decide, holm, of_pairs, of_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """A rule under one load: decided already, or a change that is still to be weighed with the others."""

    rule: Rule
    point: LoadPoint
    verdict: RuleVerdict | None = None
    change: Change | None = None
    value: float = 0.0
    reference: float = 1.0
    source: str = ""
    independent: int = 0


def judge_relative(rules: Sequence[Rule], document: LoadDocument, evidence: Evidence) -> tuple[RuleVerdict, ...]:
    """Judge relative rules, corrected for how many there are and under how many loads (Holm).

    Advisory rules are a family of their own: what they add to be looked at does not make the others less sharp.

    Raises:
        ConfigError: What was measured cannot be read.
    """
    compared = [[_compare(rule, document, evidence, point) for point in _points(rule, document)] for rule in rules]
    tested = [one for of_rule in compared for one in of_rule if one.change is not None]
    adjusted: dict[int, float] = {}
    confidence = evidence.at_this_look(evidence.confidence)
    for advisory in (False, True):
        family = [one for one in tested if one.rule.advisory == advisory]
        ps = holm([one.change.p for one in family if one.change is not None])
        adjusted |= {id(one): p for one, p in zip(family, ps, strict=True)}
    verdicts = []
    for rule, of_rule in zip(rules, compared, strict=True):
        found = [_weighed(one, adjusted.get(id(one), 1.0), confidence) for one in of_rule]
        nothing = _early(rule, None, "not_measured", "the run has no load at all.")
        verdicts.append(distrusted(worst_of(found), document) if found else nothing)
    return tuple(verdicts)


def _points(rule: Rule, document: LoadDocument) -> tuple[LoadPoint, ...]:
    return document.points if rule.point is None else (rule.point,)


def _compare(rule: Rule, document: LoadDocument, evidence: Evidence, point: LoadPoint) -> _Comparison:
    if rule.reference == "control":
        return _with_control(rule, document, evidence, point)
    return _with_baseline(rule, document, evidence, point)


def _with_control(rule: Rule, document: LoadDocument, evidence: Evidence, point: LoadPoint) -> _Comparison:
    ratios = document.paired_ratios(rule.metric, point)
    where = f"{place_of(rule, point)}"
    if not ratios:
        open_loop = point.rate is not None and rule.metric == "output_token_throughput"
        why = ": in an open loop throughput follows the rate that is offered" if open_loop else ""
        why = other_loads(document, point) or why
        reason = f"{where} was not compared with the control in pairs{why}."
        return _Comparison(rule=rule, point=point, verdict=_early(rule, point, "not_measured", reason))
    if len(ratios) < LEAST_PAIRS:
        reason = f"{where} was compared in {len(ratios)} usable pair(s); {LEAST_PAIRS} are the least (load.pairs)."
        early = dataclasses.replace(_early(rule, point, "undecided", reason), more_decides=True)
        return _Comparison(rule=rule, point=point, verdict=early)
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


def _with_baseline(rule: Rule, document: LoadDocument, evidence: Evidence, point: LoadPoint) -> _Comparison:
    value, early = _value(rule, document, point), None
    where = place_of(rule, point)
    baseline, needed = evidence.baseline, evidence.baseline_runs
    # Also of a run that is in the baseline by now: what failed does not become its own reference.
    runs = () if baseline is None else baseline.without_day_of(document.created).values(rule, point)
    if value is None:
        early = not_measured(rule, document, point)
    elif baseline is None:
        early = _early(rule, point, "not_measured", f"There is no baseline to compare with; {UPDATE} makes one.")
    elif other := differences(fingerprint_of(document.data), baseline.fingerprint):
        early = _early(rule, point, "not_comparable", f"Not measured alike: {differing_words(other)}; {ALIKE}.")
    elif not runs:
        early = _early(rule, point, "not_measured", f"{where} is not in the baseline's runs of other days.")
    elif len(runs) < needed:
        adds = f"{UPDATE} adds one that was measured on another day"
        reason = f"{where} has baseline runs of {len(runs)} other day(s), and {needed} are needed; {adds}."
        early = _early(rule, point, "undecided", reason)
    if value is None or early is not None:
        kept = early and dataclasses.replace(early, value=value)
        return _Comparison(rule=rule, point=point, verdict=kept)
    confidence = evidence.at_this_look(evidence.confidence)
    change = of_runs(value, runs, higher_is_better=rule.wants_more, allowed=rule.allowed, confidence=confidence)
    return _Comparison(
        rule=rule,
        point=point,
        change=change,
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
    if one.change is None:
        return one.verdict or _early(one.rule, one.point, "not_measured", "nothing was measured.")
    change, rule = one.change, one.rule
    decision = decide(change, p, confidence)
    worse_by = one.reference - one.value if rule.wants_more else one.value - one.reference
    floored = rule.floor > 0 and worse_by <= rule.floor
    status: Status = "pass" if floored else _STATUS[decision]
    why = f"no more than the floor of {amount(rule.floor, rule.unit)}" if floored else _why(decision, one, p)
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


def _why(decision: Decision, one: _Comparison, p: float) -> str:
    change, allowed = one.change, f"{one.rule.allowed * 100:.4g} %"
    blur = 0.0 if change is None else math.expm1(min(change.half, 700.0))
    more = "More pairs would tell" if one.source == "the control" else "Compare in pairs, or allow more"
    return {
        "pass": f"within the {allowed} that are allowed",
        "fail": f"more than the {allowed} that are allowed and than chance explains (p = {p:.2g})",
        "unproven": f"more than the {allowed} that are allowed, and chance may explain it (p = {p:.2g}). {more}",
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


def _early(rule: Rule, point: LoadPoint | None, status: Status, reason: str) -> RuleVerdict:
    return RuleVerdict(rule=rule, status=status, value=None, limit=None, point=point, reason=reason)
