"""Is it worse? How a change is measured against what varies by itself: in pairs, or against runs of other days.

A regression is *material* (worse by more than a rule allows) and *real* (more than chance explains); either alone is a
false alarm in the making. Measured with a run-to-run noise of 4 %, an offset of each session of 5 % and a drift of 2 %
a run, a threshold of 5 % alone raises a false alarm in a quarter of comparisons with a stored baseline, and in 2 % of
comparisons of five interleaved pairs with a test beside it (``make bench`` measures both).

**Pairs** share their session, so what is tested is the mean of the logarithms of their ratios, free of what drifted
meanwhile, by Student's t (`bench.abba`, the same numbers as the interval of the speed-up).

**Runs of a baseline** do not share a session with the run that is judged, so their own spread, from day to day, is what
chance can do: the new value is tested against the prediction limit of one more run, ``mean +- t s sqrt(1 + 1/n)``
(Hahn and Meeker 1991, section 4.7), at its worse end. That limit is exact for normally distributed days. Days are not:
now and then one is much slower than the rest, which lies all at the worse end, and no five of them tell how skewed they
are. So p-values are calibrated (`_calibrated`): simulated with the skew of exponential noise, a normal limit at 5 %
raises 9 % of false alarms and one at 0.5 % still 2.7, so that p = 0.015 of Student's t counts as 0.05, and what is
smaller as the less small the more days there are. Normal days then raise 1.5 %. The price is power: ``make bench`` has
both. The usual alternative, three times the scaled median absolute deviation, has no p-value to correct for several
rules, and no constant rate of errors.

Changes are compared as logarithms, in which twice and half are equally far; where a value is 0, as they are.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from specdeploy.bench.abba import mean_log

if TYPE_CHECKING:
    from collections.abc import Sequence

Decision: TypeAlias = Literal["pass", "fail", "blurred", "unproven"]

#: A comparison that would not show a regression of so many times what is allowed does not pass.
RESOLUTION: Final = 2.0
#: Student's p of a run against others that is raised by this share of skewed days at most, whatever their number.
_STUDENTS_P: Final = 0.015
_SKEWED_P: Final = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """How much worse something became, and how sure that is.

    Args:
        worse: By how much, as a share of the reference; negative is better. Infinite where the reference is 0.

        shift: The same on the scale of the test, a logarithm or a difference; positive is worse.

        allowed: How much is allowed, on that scale.

        half: Half of the width of the interval, on that scale: what chance explains, one-sided.

        p: Probability of such a shift or a worse one, were nothing changed; against runs calibrated for skewed days.
    """

    worse: float
    shift: float
    allowed: float
    half: float
    p: float

    @property
    def material(self) -> bool:
        """Whether it is worse by more than is allowed."""
        # Rounding is no regression.
        return self.shift > self.allowed + 1e-12

    @property
    def sharp(self) -> bool:
        """Whether a regression of `RESOLUTION` times what is allowed would have shown."""
        return self.half <= RESOLUTION * self.allowed + max(-self.shift, 0.0) + 1e-12


def of_pairs(
    ratios: Sequence[float],
    control_first: Sequence[bool] = (),
    *,
    higher_is_better: bool,
    allowed: float,
    confidence: float,
) -> Change:
    """Return the change that interleaved pairs show.

    Args:
        ratios: New over old, one for each pair, at least two, all positive.

        control_first: Of each pair, whether the old one was measured first; empty where nobody knows.

        higher_is_better: Direction of the metric.

        allowed: Share by which it may be worse.

        confidence: Of the one-sided interval.
    """
    found, sign = mean_log(ratios, control_first), -1.0 if higher_is_better else 1.0
    limit = _log_allowed(allowed, higher_is_better)
    change = _change(sign * found.mean, found.error, found.freedom, limit, confidence)
    return dataclasses.replace(change, worse=_share(change.shift, sign))


def of_runs(
    value: float, runs: Sequence[float], *, higher_is_better: bool, allowed: float, confidence: float
) -> Change:
    """Return the change of one value against independent runs.

    Args:
        value: Of the run that is judged, 0 or more.

        runs: Of the baseline, at least two, 0 or more.

        higher_is_better: Direction of the metric.

        allowed: Share by which it may be worse.

        confidence: Of the one-sided interval.
    """
    sign, old = (-1.0 if higher_is_better else 1.0), np.asarray(runs, dtype=np.float64)
    logarithm = value > 0 and bool((old > 0).all())
    new = math.log(value) if logarithm else value
    old = np.log(old) if logarithm else old
    centre, n = float(old.mean()), len(runs)
    limit = _log_allowed(allowed, higher_is_better) if logarithm else allowed * centre
    error = float(old.std(ddof=1)) * math.sqrt(1 + 1 / n)
    change = _change(sign * (new - centre), error, n - 1, limit, 1 - _students(1 - confidence, n - 1))
    worse = _share(change.shift, sign) if logarithm else _relative(change.shift, centre)
    return dataclasses.replace(change, worse=worse, p=_calibrated(change.p, n - 1))


def _calibrated(p: float, freedom: int) -> float:
    """Return what Student's p of one more run comes to where days are skewed: a share that is not exceeded.

    ``0.05 (p / 0.015) ** b``, with b from 0.9 of three days to 0.43 of twenty: simulated with days and runs of
    exponential noise, such p-values are at or below a in no more than a of runs, for a from 0.1 down to 0.001. It is
    never less than Student's own, which is what normal days come to.
    """
    return max(float(p), min(float(_SKEWED_P * (p / _STUDENTS_P) ** _slope(freedom)), 1.0))


def _students(p: float, freedom: int) -> float:
    """Return the p of Student's t that is calibrated to a p."""
    return min(float(p), float(_STUDENTS_P * (p / _SKEWED_P) ** (1 / _slope(freedom))))


def _slope(freedom: int) -> float:
    return 0.36 + 1.4 / (freedom + 0.6)


def centre_of(runs: Sequence[float]) -> float:
    """Return what runs are summed up by: their geometric mean, or the mean where one is 0."""
    if min(runs) > 0:
        return math.exp(math.fsum(math.log(run) for run in runs) / len(runs))
    return math.fsum(runs) / len(runs)


def decide(change: Change, p: float, confidence: float) -> Decision:
    """Say what a change is.

    ``fail`` is material and real. ``pass`` is not material, in a comparison that would have shown a regression twice as
    large as is allowed; where it would not, it is ``blurred``. ``unproven`` is material, and may be chance.

    Args:
        change: The change.

        p: Its p-value, corrected for the other rules.

        confidence: 1 - alpha.
    """
    if change.material:
        return "fail" if p <= 1 - confidence else "unproven"
    return "pass" if change.sharp else "blurred"


def _change(shift: float, error: float, freedom: int, allowed: float, confidence: float) -> Change:
    """Return a change without its share of the reference, from the standard error of the shift."""
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415 - slow to import, and most verbs never need it

    if error < 1e-12:
        # What never varies: any difference is real, such as in counts of greedy decoding.
        return Change(worse=0.0, shift=shift, allowed=allowed, half=0.0, p=0.0 if shift > 1e-12 else 1.0)
    half = float(stdtrit(freedom, confidence)) * error
    return Change(worse=0.0, shift=shift, allowed=allowed, half=half, p=float(stdtr(freedom, -shift / error)))


def _share(shift: float, sign: float) -> float:
    """Worse by 5 % is 0.95 of what should be large, and 1.05 of what should be small."""
    return sign * math.expm1(min(sign * shift, 700.0))


def _relative(shift: float, centre: float) -> float:
    if centre or not shift:
        return shift / centre if shift else 0.0
    return math.copysign(math.inf, shift)


def _log_allowed(allowed: float, higher_is_better: bool) -> float:
    return -math.log1p(-allowed) if higher_is_better else math.log1p(allowed)
