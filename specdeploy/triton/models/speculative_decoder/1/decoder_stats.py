"""Counts what speculation did for one whole request: steps, drafted and accepted tokens, and the histogram.

A *step* is a target call that carried at least one draft token. With S steps, D drafted and A accepted tokens, draft
length k and h[j] steps that accepted exactly j drafts, these hold at every moment, and :meth:`StepCounter.record`
refuses what would break them::

    sum(h) = S        sum(j * h[j]) = A        A <= D <= k * S        S <= D

An engine that drafts on its own (Medusa and its kind) reports only D and A of a call, or nothing: what is not known is
None then, never 0.

Knows nothing of tokens, engines or Triton.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """The counts of one request so far.

    Attributes:
        steps: Verify calls that carried drafts (S).
        drafted: Draft tokens sent to the target (D).
        accepted: Draft tokens that the target accepted (A), before any cut at a stop word.
        histogram: ``histogram[j]`` steps accepted exactly ``j`` drafts; ``k + 1`` entries.
    """

    steps: int | None
    drafted: int | None
    accepted: int | None
    histogram: tuple[int, ...] | None

    @property
    def acceptance_rate(self) -> float | None:
        """A / D, and 0.0 when nothing was drafted, so read it together with ``drafted``; None when neither is known."""
        if self.accepted is None or self.drafted is None:
            return None
        return self.accepted / self.drafted if self.drafted else 0.0


class StepCounter:
    """Adds up the steps of one request.

    Args:
        longest_draft: The most draft tokens that a step of this request can carry (k); 0 when the target is alone.
    """

    def __init__(self, longest_draft: int) -> None:
        self._drafted = 0
        self._histogram = [0] * (longest_draft + 1)

    def record(self, *, drafted: int, accepted: int) -> None:
        """Count one step.

        Raises:
            ValueError: The step breaks an invariant of the module's docstring.
        """
        longest = len(self._histogram) - 1
        if not (1 <= drafted <= longest and 0 <= accepted <= drafted):
            raise ValueError(f"a step accepted {accepted} of {drafted} drafts where at most {longest} can be drafted")
        self._drafted += drafted
        self._histogram[accepted] += 1

    def snapshot(self) -> Statistics:
        """Return the counts so far, which later steps do not change."""
        return Statistics(
            steps=sum(self._histogram),
            drafted=self._drafted,
            accepted=sum(accepted * steps for accepted, steps in enumerate(self._histogram)),
            histogram=tuple(self._histogram),
        )


class ReportCounter:
    """Adds up what an engine that drafts on its own reports, call by call."""

    def __init__(self) -> None:
        self._drafted: int | None = 0
        self._accepted: int | None = 0

    def record(self, reported: tuple[int, int] | None) -> None:
        """Add the drafted and accepted tokens of one call; one that does not say makes the sums unknown."""
        if reported is None or self._drafted is None or self._accepted is None:
            self._drafted = self._accepted = None
        else:
            self._drafted += reported[0]
            self._accepted += reported[1]

    def snapshot(self) -> Statistics:
        """Return the sums so far; steps and their histogram are the engine's own affair."""
        return Statistics(steps=None, drafted=self._drafted, accepted=self._accepted, histogram=None)
