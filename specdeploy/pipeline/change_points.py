"""Since when something is otherwise: change points in the runs of a baseline, by Apache Otava's own analysis.

The extra ``otava`` installs it; it is looked for when it is asked for.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.errors import ToolMissing
from specdeploy.gate.baseline import as_time, whole_series
from specdeploy.gate.rules import KNOWN, parse_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.gate.baseline import Baseline

Direction: TypeAlias = Literal["better", "worse"]

_COLUMNS: Final = ("time", "commit", "metric", "unit", "before", "after", "change_percent", "p_value", "direction")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """A number that is otherwise from some run on.

    Args:
        run: Number of the first run that has the new value, from 0.

        metric: The series of the baseline.

        unit: Of both means.

        before: Mean of the runs before, back to the change before this one.

        after: Mean of the runs from this one on, up to the next change.

        p_value: Of Otava's test.

        direction: Whether the new value is better or worse.
    """

    run: int
    metric: str
    unit: str
    before: float
    after: float
    p_value: float
    direction: Direction

    @property
    def change_percent(self) -> float | None:
        """By how many percent it is more; None where it was 0."""
        return 100 * (self.after / self.before - 1) if self.before else None


def find_change_points(baseline: Baseline) -> tuple[ChangePoint, ...]:
    """Return where the numbers of a baseline changed, oldest first, with Otava's usual settings.

    Only numbers that every run has are looked at.

    Raises:
        ToolMissing: Otava is not installed.
    """
    otava = _otava()
    whole = whole_series(baseline)
    series = otava.Series(
        "load",
        None,
        [int(run.moment.timestamp()) for run in baseline.runs],
        {key: otava.Metric(1 if _more_is_better(key) else -1) for key in whole},
        {key: [float(value) for value in one.values if value is not None] for key, one in whole.items()},
        {},
    )
    found = series.analyze(otava.AnalysisOptions()).change_points
    points = [_point(point, key, whole[key].unit) for key in whole for point in found[key]]
    return tuple(sorted(points, key=lambda point: point.run))


def change_table(baseline: Baseline, points: Iterable[ChangePoint]) -> str:
    """Return change points as CSV, with time and label (as ``commit``) of the first run that has the new value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for point in points:
        run = baseline.runs[point.run]
        change = "" if point.change_percent is None else f"{point.change_percent:.4g}"
        numbers = (f"{point.before:.6g}", f"{point.after:.6g}", change, f"{point.p_value:.2g}")
        writer.writerow([as_time(run), run.label or run.created, point.metric, point.unit, *numbers, point.direction])
    return out.getvalue()


def _point(point: Any, key: str, unit: str) -> ChangePoint:  # noqa: ANN401 - Otava's
    before, after = float(point.mean_before()), float(point.mean_after())
    return ChangePoint(
        run=int(point.index),
        metric=key,
        unit=unit,
        before=before,
        after=after,
        p_value=float(point.pvalue()),
        direction="better" if (after > before) == _more_is_better(key) else "worse",
    )


def _more_is_better(key: str) -> bool:
    return KNOWN[parse_rule(f"{key}: 5%").metric].better == "higher"


def _otava() -> Any:  # noqa: ANN401 - a package that may not be there
    try:
        return importlib.import_module("otava.series")
    except ImportError as error:
        raise ToolMissing(
            f"change points are found by Apache Otava, which is not installed here ({error})",
            hint="pip install 'specdeploy[otava]'; or have the history without them, which Otava elsewhere can read",
        ) from error
