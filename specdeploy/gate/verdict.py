"""The verdict: every rule of a gate, decided by what was measured.

The speed-up is decided by its confidence interval, a percentile of latencies as a claim about all requests, a relative
rule by a test, all three corrected for each other before they fail, and everything else by its value. What was not
measured never passes, and neither does anything that a partial or degraded run measured; a failure stays a failure.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.errors import ConfigError
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.engines import weigh_engines
from specdeploy.gate.evidence import NOTHING_ELSE, Evidence
from specdeploy.gate.fingerprint import fingerprint_of
from specdeploy.gate.limits import weigh_limit
from specdeploy.gate.outcome import RuleVerdict, Verdict
from specdeploy.gate.relative import weigh_relative
from specdeploy.gate.weighing import decided, settled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.gate.rules import Rule
    from specdeploy.gate.weighing import Weighing

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
    judged = settled([_weigh(rule, document, evidence) for rule in rules], document)
    verdicts = tuple(_with_cure(verdict, evidence) for verdict in judged)
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


def _weigh(rule: Rule, document: LoadDocument, evidence: Evidence) -> Sequence[Weighing]:
    """Weigh a rule under its loads; a run without any says so."""
    if rule.is_of_engines:
        return weigh_engines(rule, document, evidence)
    loads = (weigh_relative if rule.reference else weigh_limit)(rule, document, evidence)
    reason = "the run has no load at all."
    none = RuleVerdict(rule=rule, status="not_measured", value=None, limit=rule.limit, point=None, reason=reason)
    return loads or (decided(none),)
