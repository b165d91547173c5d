"""The verdict: every rule of a gate, decided by what was measured.

The speed-up is decided by its confidence interval, a percentile of latencies as a claim about all requests, a relative
rule by a test that is corrected for the others, everything else by its value. What was not measured never passes, and
neither does anything that a partial or degraded run measured; a failure stays a failure.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.errors import ConfigError
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.engines import judge_engines
from specdeploy.gate.evidence import NOTHING_ELSE, Evidence
from specdeploy.gate.fingerprint import fingerprint_of
from specdeploy.gate.limits import judge_limit
from specdeploy.gate.outcome import RuleVerdict, Verdict
from specdeploy.gate.relative import judge_relative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.gate.rules import Rule

__all__ = ["Evidence", "RuleVerdict", "Verdict", "evaluate"]


def evaluate(rules: Sequence[Rule], load_report: Mapping[str, Any], evidence: Evidence = NOTHING_ELSE) -> Verdict:
    """Judge a load test.

    Args:
        rules: At least one that is not advisory.

        load_report: The content of ``load.json``.

        evidence: What else there is.

    Raises:
        ConfigError: There are no rules, or a document is malformed or of another schema.
    """
    if all(rule.advisory for rule in rules):
        raise ConfigError("the gate has no rules that decide", hint="List at least one under gate.rules.")
    document = LoadDocument(load_report)
    relative = [rule for rule in rules if rule.reference and not rule.is_of_engines]
    judged = dict(zip(map(id, relative), judge_relative(relative, document, evidence), strict=True))
    found = (judged.get(id(rule)) or _judge(rule, document, evidence) for rule in rules)
    verdicts = tuple(_with_cure(verdict, evidence) for verdict in found)
    fingerprint = fingerprint_of(document.data)
    confidence = evidence.at_this_look(evidence.confidence)
    return Verdict(
        rules=verdicts,
        confidence=confidence,
        fingerprint=fingerprint,
        look=evidence.look,
        share=evidence.share,
        measured_at=document.created or None,
    )


def _with_cure(verdict: RuleVerdict, evidence: Evidence) -> RuleVerdict:
    """Say how a rule that is open for lack of data only is decided."""
    if not (verdict.more_decides and evidence.can_repeat):
        return verdict
    reason = f"{verdict.reason.removesuffix('.')}; `--repeat-until 20min` measures on until it is decided."
    return dataclasses.replace(verdict, reason=reason)


def _judge(rule: Rule, document: LoadDocument, evidence: Evidence) -> RuleVerdict:
    return (judge_engines if rule.is_of_engines else judge_limit)(rule, document, evidence)
