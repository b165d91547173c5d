"""Rules on the engines themselves: how large they are, and how long they took to build.

Such a number is read off the engines and is not drawn anew by a run, so one run of a baseline is enough to compare
with, and there is no chance to be reckoned with. It is about the engines, so other engines are what it compares; all
else that a run is measured with has to be the same.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from specdeploy.gate.baseline import ALIKE, UPDATE, differing_words
from specdeploy.gate.fingerprint import ENGINE, differences, fingerprint_of
from specdeploy.gate.outcome import RuleVerdict, amount
from specdeploy.gate.resources import CURES
from specdeploy.gate.weighing import Weighing, decided
from specdeploy.report.numbers import told_apart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.gate.document import LoadDocument
    from specdeploy.gate.evidence import Evidence
    from specdeploy.gate.outcome import Status
    from specdeploy.gate.rules import Rule


def weigh_engines(rule: Rule, document: LoadDocument, evidence: Evidence) -> tuple[Weighing]:
    """Judge a rule on the engines of a run, by a limit of its own or by the baseline's engines.

    Raises:
        ConfigError: What was measured cannot be read.
    """
    value = document.engine(rule.metric, rule.category)
    if value is None:
        found = _verdict(rule, "not_measured", None, None, f"is not known: {_cure(rule, document)}")
    elif rule.reference is None:
        found = _against_limit(rule, value)
    else:
        found = _against_baseline(rule, value, document, evidence)
    return (decided(found),)


def _cure(rule: Rule, document: LoadDocument) -> str:
    return {
        "openai": "another server tells nothing of its engines",
        "llmapi": "profile llmapi serves checkpoints as they are, and compiles no engine",
    }.get(document.profile, CURES[rule.metric])


def _against_limit(rule: Rule, value: float) -> RuleVerdict:
    holds, limit = rule.holds(value), rule.limit or 0.0
    shown, asked = told_apart(value, limit, rule.unit, amount)
    words = f"is {shown}, which is {'' if holds else 'not '}{rule.comparison} {asked}"
    return _verdict(rule, "pass" if holds else "fail", value, limit, words)


def _against_baseline(rule: Rule, value: float, document: LoadDocument, evidence: Evidence) -> RuleVerdict:
    baseline = evidence.baseline
    if baseline is None:
        at = evidence.baseline_at
        words = f"is {amount(value, rule.unit)}, and there is no baseline ({at}) to compare with; {UPDATE} makes one"
        return _verdict(rule, "not_measured", value, None, words)
    other = [
        field
        for field in differences(fingerprint_of(document.data), baseline.fingerprint)
        if not field[0].startswith(ENGINE)
    ]
    if other:
        words = f"was not measured alike: {differing_words(other)}; {ALIKE}"
        return _verdict(rule, "not_comparable", value, None, words)
    runs = baseline.without_run_of(document.created).values(rule, None)
    if not runs:
        words = f"is in no other run of the baseline; {UPDATE} adds the run that it is to be compared with"
        return _verdict(rule, "not_measured", value, None, words)
    return _compared(rule, value, statistics.median(runs), len(runs))


def _compared(rule: Rule, value: float, reference: float, independent: int) -> RuleVerdict:
    limit = rule.limit_from(reference)
    worse = value / reference - 1 if reference else math.inf
    within = value <= reference * (1 + rule.allowed)
    status: Status = "pass" if value <= limit else "fail"
    if status == "pass" and not within:
        why = f"no more than the floor of {amount(rule.floor, rule.unit)}"
    else:
        why = f"{'within' if within else 'more than'} the {rule.allowed * 100:.4g} % that are allowed"
    words = f"is {amount(value, rule.unit)}, and {amount(reference, rule.unit)} in the baseline: {_share(worse)}, {why}"
    told = {"reference": reference, "independent": independent, "worse": worse if math.isfinite(worse) else None}
    return _verdict(rule, status, value, limit, words, told)


def _share(worse: float) -> str:
    return "unchanged" if not worse else f"{abs(worse) * 100:.3g} % {'more' if worse > 0 else 'less'}"


def _verdict(
    rule: Rule,
    status: Status,
    value: float | None,
    limit: float | None,
    words: str,
    numbers: Mapping[str, Any] | None = None,
) -> RuleVerdict:
    reason = f"{rule.selector} {words}."
    return RuleVerdict(
        rule=rule, status=status, value=value, limit=limit, point=None, reason=reason, numbers=numbers or {}
    )
