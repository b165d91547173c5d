"""Rules with a limit of their own: the speed-up by its interval, percentiles as claims, the rest by their value."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.abba import mean_log
from specdeploy.bench.paired import CONFIDENCE, paired_ratio
from specdeploy.gate.claims import chance_of_so_few, is_claimed, more_needed
from specdeploy.gate.document import Interval
from specdeploy.gate.fingerprint import ABSENT, ENGINE, answers_of, differences
from specdeploy.gate.lossless import losslessness
from specdeploy.gate.outcome import RuleVerdict, amount, place_of
from specdeploy.gate.requests import claimed_share, count_requests, is_claim
from specdeploy.gate.resources import CURES
from specdeploy.gate.rules import LOSSLESS
from specdeploy.gate.weighing import AMONG_OTHERS, Weighing, decided
from specdeploy.report.numbers import told_apart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.bench.records import LoadPoint
    from specdeploy.gate.claims import Count
    from specdeploy.gate.document import LoadDocument
    from specdeploy.gate.evidence import Evidence
    from specdeploy.gate.lossless import Losslessness
    from specdeploy.gate.outcome import Status
    from specdeploy.gate.rules import Rule

#: Each of the two bounds in ``load.json`` is wrong with half of 5 % at most.
_STORED_CONFIDENCE: Final = 0.975
#: Fields that differ, of which a sentence names no more.
_MOST_SHOWN: Final = 6
#: What the speed-up is the ratio of.
_THROUGHPUT: Final = "output_token_throughput"
_OF_ERRORS: Final = ("error_rate", "error_request_count", "request_count")


def weigh_limit(rule: Rule, document: LoadDocument, evidence: Evidence) -> tuple[Weighing, ...]:
    """Weigh a rule that has a limit of its own, under every load that it is for.

    Raises:
        ConfigError: What was measured cannot be read.
    """
    if rule.metric == LOSSLESS.key:
        return (decided(_judge_lossless(rule, document, evidence)),)
    points = document.points if rule.point is None else (rule.point,)
    return tuple(_weigh_at(rule, document, evidence, point) for point in points)


def _weigh_at(rule: Rule, document: LoadDocument, evidence: Evidence, point: LoadPoint) -> Weighing:
    if rule.arm is None:
        stored = document.speedup(point)
        if stored is None:
            return decided(not_measured(rule, document, point))
        ratios, first = document.paired_ratios(_THROUGHPUT, point), document.control_first(_THROUGHPUT, point)
        freedom = mean_log(ratios, first).freedom if ratios else stored.pairs - 1
        return _weigh_speedup(rule, _at_this_look(stored, ratios, first, evidence), point, freedom)
    value = document.metric(rule.metric, rule.stat, arm=rule.arm, point=point, category=rule.category)
    if value is None:
        return decided(not_measured(rule, document, point))
    if is_claim(rule):
        return _weigh_claim(rule, document, evidence, point, value)
    holds = rule.holds(value)
    why = "" if holds else _failed(rule, document, point)
    reason = f"{place_of(rule, point)} is {_compared(rule, value)}{why}."
    return decided(_verdict(rule, point, "pass" if holds else "fail", value, reason))


def _failed(rule: Rule, document: LoadDocument, point: LoadPoint) -> str:
    """Say by which errors requests failed, where the rule is about them."""
    if rule.metric not in _OF_ERRORS or rule.arm is None:
        return ""
    errors = document.errors(arm=rule.arm, point=point)
    listed = ", ".join(f"{count} {label}" for label, count in errors.items())
    return f": {sum(errors.values())} requests failed ({listed})" if errors else ""


def other_loads(document: LoadDocument, point: LoadPoint) -> str:
    """Say which loads were measured, where a load is none of them; empty where it is."""
    loads = dict.fromkeys(str(at) for _, at in sorted(document.entries, key=lambda entry: entry[1].order))
    return f": the loads that were are {', '.join(loads)}" if loads and str(point) not in loads else ""


def not_measured(rule: Rule, document: LoadDocument, point: LoadPoint) -> RuleVerdict:
    """Say that there is no number."""
    known = () if rule.arm is None else document.categories(arm=rule.arm, point=point)
    why = ""
    if other := other_loads(document, point):
        why = other
    elif rule.arm is None:
        why = "" if point.rate is None else ": in an open loop throughput follows the rate that is offered"
    elif rule.category is not None and rule.category not in known:
        why = f": its categories are {', '.join(known)}" if known else ": the run tells no categories apart"
    elif rule.metric in CURES:
        why = f": {CURES[rule.metric]}"
    return _verdict(rule, point, "not_measured", None, f"{place_of(rule, point)} was not measured{why}.")


def _weigh_claim(rule: Rule, document: LoadDocument, evidence: Evidence, point: LoadPoint, value: float) -> Weighing:
    place: dict[str, Any] = {"arm": rule.arm, "point": point, "category": rule.category}
    if evidence.requests is None:
        bounds = document.percentile_bounds(rule.metric, rule.stat, **place)
        return _weigh_bounds(rule, bounds, point, value, evidence)
    expected = document.metric(rule.metric, "count", **place)
    count = count_requests(rule, point, evidence.requests, expected, value)
    confidence = evidence.at_this_look(evidence.confidence)
    p = chance_of_so_few(count, claimed_share(rule))

    def settle(adjusted: float) -> RuleVerdict:
        status, why, more = _claim_words(count, claimed_share(rule), confidence, p, adjusted)
        told = {"kept": count.kept, "over": count.over, "more_requests": more, "confidence": confidence}
        shown, limit = amount(value, rule.unit), amount(rule.limit or 0.0, rule.unit)
        beyond = f"{count.over} of {count.total} are not {rule.comparison} {limit}"
        reason = f"{place_of(rule, point)} is {shown}; {beyond}, {why}."
        numbers = {**told, "p": p, "p_adjusted": adjusted}
        return _open_for_more(_verdict(rule, point, status, value, reason, numbers))

    return Weighing(settle=settle, advisory=rule.advisory, p=p)


def _open_for_more(verdict: RuleVerdict) -> RuleVerdict:
    """Say of what is undecided that more of the same load would decide it."""
    return dataclasses.replace(verdict, more_decides=verdict.status == "undecided")


def _claim_words(
    count: Count, share: float, confidence: float, p: float, adjusted: float
) -> tuple[Status, str, int | None]:
    """Decide a claim, say why, and how many more requests it needs."""
    part, sure = f"{100 * share:.4g} %", f"at {100 * confidence:.4g} % confidence"
    if is_claimed(count, share, confidence):
        return "pass", f"few enough to claim it of {part} of all requests {sure}", 0
    if adjusted <= 1 - confidence:
        return "fail", f"too many for {part} of all requests {sure}", None
    if p <= 1 - confidence:
        return "undecided", f"too many for {part} of all requests, {AMONG_OTHERS.format(adjusted)}", None
    more = more_needed(count, share, confidence)
    needed = "more than can be sent" if more is None else f"{more:,} more"
    return "undecided", f"and a claim {sure} needs {needed}, all of them within", more


def _weigh_bounds(
    rule: Rule,
    bounds: tuple[float | None, float | None],
    point: LoadPoint,
    value: float,
    evidence: Evidence,
) -> Weighing:
    """Weigh a claim without the raw records: by the interval of the percentile, from order statistics."""
    low, high = bounds
    safe, hopeless = (low, high) if rule.wants_more else (high, low)
    confidence = evidence.at_this_look(evidence.confidence)
    # All that an interval tells of the chance is on which side of one value it lies.
    refuted = hopeless is not None and not rule.holds(hopeless)
    p = 1 - _STORED_CONFIDENCE if refuted else 1.0

    def settle(adjusted: float) -> RuleVerdict:
        status: Status = "undecided"
        if confidence <= _STORED_CONFIDENCE and safe is not None and rule.holds(safe):
            status = "pass"
        elif refuted and _reaches(adjusted, 1 - confidence):
            status = "fail"
        ends = " to ".join("-" if end is None else amount(end, rule.unit) for end in bounds)
        says = {"pass": "lies within", "fail": "lies beyond", "undecided": "does not decide"}[status]
        after = ""
        if status == "undecided" and refuted and confidence <= _STORED_CONFIDENCE:
            says, after = "lies beyond", f", {AMONG_OTHERS.format(adjusted)}"
        elif status == "undecided" and confidence > _STORED_CONFIDENCE:
            says = f"is not as sure as it has to be ({100 * confidence:.4g} %), and does not decide"
        wanted = f"{rule.comparison} {amount(rule.limit or 0.0, rule.unit)}"
        where = f"{place_of(rule, point)} is {amount(value, rule.unit)}"
        reason = f"{where}; without the raw records, its interval {ends} {says} {wanted}{after}."
        numbers = {"ci_low": low, "ci_high": high, "p": p, "p_adjusted": adjusted}
        return _verdict(rule, point, status, value, reason, numbers)

    return Weighing(settle=settle, advisory=rule.advisory, p=p)


def _at_this_look(
    stored: Interval, ratios: Sequence[float], control_first: Sequence[bool], evidence: Evidence
) -> Interval:
    """Return a speed-up with the interval of this look; the one in the document is that of a single look."""
    if evidence.share == 1:
        return stored
    if not ratios:
        # Looked at before, it has to be surer than it says, and of how much there is nothing to reckon with.
        return dataclasses.replace(stored, ci_low=None, ci_high=None)
    confidence = evidence.at_this_look(CONFIDENCE)
    found = paired_ratio(ratios, control_first, confidence=confidence)
    return Interval(avg=found.avg, ci_low=found.ci_low, ci_high=found.ci_high, pairs=found.pairs, confidence=confidence)


def _weigh_speedup(rule: Rule, interval: Interval, point: LoadPoint, freedom: int) -> Weighing:
    where, low, high = place_of(rule, point), interval.ci_low, interval.ci_high
    told = {"ci_low": low, "ci_high": high, "pairs": interval.pairs, "confidence": interval.confidence}
    if low is None or high is None or interval.pairs < 2:
        why = "an interval needs two" if interval.pairs < 2 else "their ratios are not there to be looked at again"
        reason = f"{where} is {interval.avg:.3f}x from {interval.pairs} usable pair(s): {why}."
        return decided(_open_for_more(_verdict(rule, point, "undecided", interval.avg, reason, told)))
    worst, best = (low, high) if rule.wants_more else (high, low)
    p = _chance_of_ratio(rule, interval, low, high, freedom)

    def settle(adjusted: float) -> RuleVerdict:
        status: Status = "pass" if rule.holds(worst) else "undecided"
        says = {"pass": "lies entirely on the right side of", "undecided": "holds both sides of"}[status]
        after = ""
        if not rule.holds(best):
            # Each end of the interval is wrong with half of what the whole is.
            status = "fail" if _reaches(adjusted, (1 - interval.confidence) / 2) else "undecided"
            says = "lies entirely on the wrong side of"
            after = "" if status == "fail" else f", {AMONG_OTHERS.format(adjusted)}"
        found = f"{where} is {interval.avg:.3f}x; its interval {low:.3f}x to {high:.3f}x"
        numbers = {**told, "p": p, "p_adjusted": adjusted}
        reason = f"{found} {says} {rule.limit:g}x{after}."
        return _open_for_more(_verdict(rule, point, status, interval.avg, reason, numbers))

    return Weighing(settle=settle, advisory=rule.advisory, p=p)


def _chance_of_ratio(rule: Rule, interval: Interval, low: float, high: float, freedom: int) -> float:
    """Return the probability of such a mean ratio or a worse one, were the limit just kept: Student's t."""
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415 - slow to import, and most verbs never need it

    limit = rule.limit or 0.0
    if not low or not limit:
        # Such an interval, or limit, has no logarithm; a ratio is not below 0.
        return 0.5
    off = math.log(interval.avg / limit) * (1 if rule.wants_more else -1)
    half = math.log(high / low) / 2
    if half < 1e-12:
        return 1.0 if rule.holds(interval.avg) else 0.0
    return float(stdtr(freedom, off / half * stdtrit(freedom, (1 + interval.confidence) / 2)))


def _reaches(p: float, alpha: float) -> bool:
    """Say whether a p-value decides; one that was read off an interval is as exact as its rounding."""
    return p <= alpha * (1 + 1e-9)


def _judge_lossless(rule: Rule, document: LoadDocument, evidence: Evidence) -> RuleVerdict:
    found = losslessness(evidence.smoke, document.outputs)
    count = found.divergences if rule.stat == "divergences" else found.ties
    numbers = {
        "judged": found.judged,
        "compared": found.compared,
        "divergences": found.divergences,
        "ties": found.ties,
        "unjudged": found.unjudged,
    }
    if evidence.smoke is not None and (other := _other_deployment(document.data, evidence.smoke)):
        return _verdict(rule, None, "not_comparable", None, other, numbers)
    if count is None:
        load = "" if rule.stat == "divergences" else ", or a greedy load"
        need = f"run `specdeploy smoke` (--quick judges none){load}"
        reason = f"{rule.selector} was not measured: no answers were judged; {need}."
        return _verdict(rule, None, "not_measured", None, reason, numbers)
    holds, words = rule.holds(count), _lossless_words(rule, found)
    status: Status = "pass" if holds else "fail"
    # What failed otherwise counts as a divergence, and says nothing of ties.
    unsure = found.unsure if rule.stat == "divergences" else (*found.unsure, *found.failed)
    if holds and unsure:
        status, words = "undecided", f"{words}, but not all was decided ({', '.join(unsure)})"
    return _verdict(rule, None, status, float(count), f"{rule.selector} is {_compared(rule, count)}: {words}.", numbers)


def _lossless_words(rule: Rule, found: Losslessness) -> str:
    load = f"{found.unjudged} of {found.compared} answers of the load test differ, unjudged"
    smoke = f"the smoke test judged {found.judged} answers"
    if rule.stat == "divergences":
        return f"{smoke}; {load}" if found.unjudged else smoke
    return f"{smoke}; {load}" if found.compared else smoke


def _other_deployment(load: Mapping[str, Any], smoke: Mapping[str, Any]) -> str:
    """Say why the two tests cannot be told to be of one deployment; empty where they can."""
    here, there = answers_of(load), answers_of(smoke)
    # Another server has no engines of ours, and building some would not help.
    alike = ABSENT in (here["profile"], there["profile"]) or here["profile"] == there["profile"]
    for name, fields in (("smoke", there), ("load", here)):
        if alike and not any(field.startswith(ENGINE) and value != ABSENT for field, value in fields.items()):
            cure = "build and `specdeploy repo` with this version, then run `specdeploy smoke` and `specdeploy load`"
            return f"The {name} test does not tell which engines it was of: {cure}."
    other = [f"{field} is {one!r} there and {two!r} here" for field, two, one in differences(here, there)]
    if not other:
        return ""
    words = f"The smoke test was of another deployment than the load test: {'; '.join(other[:_MOST_SHOWN])}"
    return f"{words}; run both again."


def _compared(rule: Rule, value: float) -> str:
    shown, limit = told_apart(value, rule.limit or 0.0, rule.unit, amount)
    return f"{shown}, which is {'' if rule.holds(value) else 'not '}{rule.comparison} {limit}"


def _verdict(
    rule: Rule,
    point: LoadPoint | None,
    status: Status,
    value: float | None,
    reason: str,
    numbers: Mapping[str, Any] | None = None,
) -> RuleVerdict:
    return RuleVerdict(
        rule=rule, status=status, value=value, limit=rule.limit, point=point, reason=reason, numbers=numbers or {}
    )
