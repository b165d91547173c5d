"""What is weighed together: rules that are decided by chance are corrected for how many of them there are.

A gate fails when one of its rules does, so each rule, and each load that it has to hold under, is a chance of a false
alarm. Their p-values are corrected (Holm) before any of them fails. It passes only when all hold, and that needs no
correction: a bad build gets through only if the very rule that it breaks lets it (an intersection-union test).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.gate.outcome import distrusted, worst_of
from specdeploy.holm import holm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdeploy.gate.document import LoadDocument
    from specdeploy.gate.outcome import RuleVerdict


#: Why what would fail by itself does not yet.
AMONG_OTHERS: Final = "but among all that is decided here chance may explain it (p = {:.2g})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighing:
    """A rule under one load, before it is known how many others are weighed with it.

    Args:
        settle: Gives the verdict for a corrected p-value.

        advisory: Whether the rule is: what is added to be looked at does not make the others less sharp.

        p: Probability of what was measured, or of worse, were the rule kept; None where chance plays no part.
    """

    settle: Callable[[float], RuleVerdict]
    advisory: bool
    p: float | None = None


def decided(verdict: RuleVerdict) -> Weighing:
    """Return a verdict that does not depend on the other rules."""
    return Weighing(settle=lambda _: verdict, advisory=verdict.rule.advisory)


def settled(weighed: Sequence[Sequence[Weighing]], document: LoadDocument) -> tuple[RuleVerdict, ...]:
    """Return a verdict for each rule: that of its worst load, with p-values corrected over all rules and loads.

    Args:
        weighed: Of each rule, its loads; at least one each.

        document: What was measured; nothing passes by a run that is partial or degraded.
    """
    adjusted: dict[int, float] = {}
    for advisory in (False, True):
        tested = [one for loads in weighed for one in loads if one.p is not None and one.advisory == advisory]
        ps = holm([one.p for one in tested if one.p is not None])
        adjusted |= {id(one): p for one, p in zip(tested, ps, strict=True)}
    verdicts = ([one.settle(adjusted.get(id(one), 1.0)) for one in loads] for loads in weighed)
    return tuple(distrusted(_of_all(loads), document) for loads in verdicts)


def _of_all(loads: Sequence[RuleVerdict]) -> RuleVerdict:
    """Return the worst verdict of a rule, with the fewest requests that any of its loads had."""
    worst = worst_of(loads)
    counted = [one.numbers["kept"] + one.numbers["over"] for one in loads if "kept" in one.numbers]
    if len(counted) < 2:
        return worst
    return dataclasses.replace(worst, numbers={**worst.numbers, "fewest_requests": min(counted)})
