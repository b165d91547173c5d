"""Baselines: what earlier runs measured, as a small file that is reviewed like code.

One line for each number that is kept, with its values run by run, so that a diff shows what an update changes; and the
fingerprint that all of its runs share. Reads and writes the text of the file, and touches none.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import itertools
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from specdeploy.bench.metrics import METRICS
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.fingerprint import differences, fingerprint_of
from specdeploy.gate.resources import ENGINES, MEMORY, MEMORY_STATS, ROLES
from specdeploy.gate.rules import KEPT_OF_CATEGORY, KEPT_STATS, KNOWN, parse_rule
from specdeploy.gate.units import convert
from specdeploy.unique_keys import RepeatedKey, unique_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.bench.records import LoadPoint
    from specdeploy.gate.document import LoadDocument
    from specdeploy.gate.rules import Rule

SCHEMA_VERSION: Final = "1.0"
#: Runs that a baseline keeps, the newest ones; the rest is in the history of the repository.
MOST_RUNS: Final = 20
#: A larger text is no baseline; nobody could review it.
#: No number that is measured comes near, in any unit.
_MOST_VALUE: Final = 1e24
MOST_CHARACTERS: Final = 8_000_000
#: What adds a run.
UPDATE: Final = "`specdeploy gate baseline update`"
#: How runs that were not measured alike are made comparable.
ALIKE: Final = "measure as the baseline was, or begin another with `specdeploy gate baseline update --reset`"
_DIGITS: Final = 6
#: By how much the clock of the machine that measured may be ahead.
_CLOCKS_DIFFER: Final = dt.timedelta(days=1)
#: No run is from outside of these years; one of the far future would keep out all that come after it.
_YEARS: Final = (2000, 2199)
_LABEL: Final = re.compile(r"[\w.+/:@ -]{0,100}")
_HINT: Final = "Restore the file from its repository, or make a new one: specdeploy gate baseline update --reset."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a baseline.

    Args:
        created: When it began, ISO 8601 with a time zone.

        label: What it was of, such as a commit; may be empty.
    """

    created: str
    label: str = ""

    @property
    def moment(self) -> dt.datetime:
        """When it began, in UTC."""
        return dt.datetime.fromisoformat(self.created).astimezone(dt.UTC)

    @property
    def day(self) -> str:
        """Its date in UTC, such as ``2026-01-31``."""
        return self.moment.date().isoformat()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """A number, run by run.

    Args:
        unit: Of all values.

        values: One for each run; None where it was not measured.
    """

    unit: str
    values: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """What earlier runs measured.

    Args:
        fingerprint: What all of them were measured with.

        runs: Oldest first.

        series: By the selector that a rule has for it, such as ``time_to_first_token.p99@4#speculation``.
    """

    fingerprint: Mapping[str, str]
    runs: tuple[Run, ...]
    series: Mapping[str, Series]

    @property
    def days(self) -> tuple[str, ...]:
        """The dates that there are runs of."""
        return tuple(dict.fromkeys(run.day for run in self.runs))

    def without_day_of(self, created: str) -> Baseline:
        """Return the runs of other days than that of a run, which shares with its own day what days differ by.

        Args:
            created: When the run that is judged began; it may be in the baseline itself by now.

        Raises:
            ConfigError: That is no date.
        """
        day = _run_of(created).day
        return self._with_runs([at for at, run in enumerate(self.runs) if run.day != day])

    def without_run_of(self, created: str) -> Baseline:
        """Return the other runs than one, which is no reference for itself.

        Args:
            created: When the run that is judged began.

        Raises:
            ConfigError: That is no date.
        """
        moment = _run_of(created).moment
        return self._with_runs([at for at, run in enumerate(self.runs) if run.moment != moment])

    def _with_runs(self, kept: Sequence[int]) -> Baseline:
        """Return the runs at some places, and the series that they have a number of."""
        series = {
            key: Series(unit=one.unit, values=tuple(one.values[at] for at in kept)) for key, one in self.series.items()
        }
        left = {key: one for key, one in series.items() if any(value is not None for value in one.values)}
        return dataclasses.replace(self, runs=tuple(self.runs[at] for at in kept), series=left)

    def values(self, rule: Rule, point: LoadPoint | None) -> tuple[float, ...]:
        """Return what a rule compares with, in its unit: the last run of each day, oldest first.

        Runs of one day share what changes from day to day, so that several would pass for more than they know.
        """
        series = self.series.get(series_key(rule, point))
        if series is None:
            return ()
        of_day = {run.day: value for run, value in zip(self.runs, series.values, strict=True) if value is not None}
        return tuple(of_day.values())


def series_key(rule: Rule, point: LoadPoint | None) -> str:
    """Return the key of what a rule compares with under a load; what is of the engines has none."""
    load = "" if point is None else f"@{point.key}"
    return f"{rule.selector}{load}{'' if rule.arm is None else f'#{rule.arm}'}"


def with_run(
    baseline: Baseline | None, load: LoadDocument, *, label: str = "", now: dt.datetime | None = None
) -> Baseline:
    """Return a baseline with one more run, the newest; where there are too many, one that counts least is dropped.

    Args:
        baseline: The baseline so far; None begins a new one.

        load: The run.

        label: What it was of.

        now: The time, with a zone: no later run can be added, since none could be after it. None does not look.

    Raises:
        ConfigError: The run is in the baseline already, older than its last one or of the future, or the label cannot
            be kept.

        CannotDecide: The run is partial or degraded, or was measured with something else than the others.
    """
    if load.partial or load.degraded:
        what = "partial" if load.partial else "degraded by its own load generator"
        raise CannotDecide(f"this run is {what}: nothing can be compared with it", hint="Measure again.")
    if not _LABEL.fullmatch(label):
        raise ConfigError(
            f"the label {label!r} cannot be kept", hint="Letters, digits, blanks and . _ + / : @ -, 100 at most."
        )
    fingerprint = fingerprint_of(load.data)
    measured, run = _summary(load), dataclasses.replace(_run_of(load.created), label=label)
    if now is not None and run.moment > now + _CLOCKS_DIFFER:
        hint = "Set the clock of the machine that measures, and measure again."
        raise ConfigError(f"the run was created {run.created}, which is in the future", hint=hint)
    if not measured:
        raise CannotDecide("this run measured nothing that a baseline keeps", hint="See `specdeploy load`.")
    if baseline is None:
        series = {key: Series(unit=unit, values=(value,)) for key, (unit, value) in measured.items()}
        return Baseline(fingerprint=fingerprint, runs=(run,), series=series)
    if other := differences(fingerprint, baseline.fingerprint):
        raise CannotDecide(
            f"this run cannot be added to the baseline: {differing_words(other)}",
            hint="Measure as before, or begin a new baseline with --reset.",
        )
    if run.moment <= baseline.runs[-1].moment:
        raise ConfigError(
            f"the run of {run.created} is not newer than the baseline's last one, of {baseline.runs[-1].created}",
            hint="A run is added once; measure again for another one.",
        )
    return _extended(baseline, run, measured)


def _extended(baseline: Baseline, run: Run, measured: Mapping[str, tuple[str, float]]) -> Baseline:
    runs, series = (*baseline.runs, run), {}
    for key in dict.fromkeys((*baseline.series, *measured)):
        old = baseline.series.get(key) or Series(unit=measured[key][0], values=(None,) * len(baseline.runs))
        new = measured[key][1] if key in measured else None
        series[key] = Series(unit=old.unit, values=(*old.values, new))
    extended = Baseline(fingerprint=baseline.fingerprint, runs=runs, series=series)
    return extended._with_runs(_worth_keeping(runs))  # noqa: SLF001 - its own module


def _worth_keeping(runs: Sequence[Run]) -> list[int]:
    """Return the places of the runs that are kept: a run is dropped for a later one of its day first, then old days.

    Of a day the last run counts, so that a branch with many runs a day does not drive out the days before.
    """
    last = {run.day: at for at, run in enumerate(runs)}
    superseded = [at for at, run in enumerate(runs) if last[run.day] != at]
    too_many = max(len(runs) - MOST_RUNS, 0)
    dropped = {*superseded[:too_many], *list(last.values())[: max(too_many - len(superseded), 0)]}
    return [at for at in range(len(runs)) if at not in dropped]


def _run_of(created: str) -> Run:
    """Return the run that a load report is of."""
    return Run(created=_moment(created, "the load report"))


def differing_words(fields: Sequence[tuple[str, str, str]], most: int = 6) -> str:
    """Say which fields of the fingerprint differ, with both values."""
    words = [f"{field} is {here!r} here and {there!r} in the baseline" for field, here, there in fields[:most]]
    more = f", and {len(fields) - most} more differ" if len(fields) > most else ""
    return "; ".join(words) + more


def _summary(load: LoadDocument) -> dict[str, tuple[str, float]]:
    """Return the numbers of a run that a baseline keeps: those that can get better or worse."""
    found: dict[str, tuple[str, float]] = {}
    for arm, point in load.entries:
        place = f"@{point.key}#{arm}"
        for selector, key, stat, category in _kept(load.categories(arm=arm, point=point)):
            value = load.metric(key, stat, arm=arm, point=point, category=category)
            if value is not None:
                found[selector + place] = KNOWN[key].unit, as_kept(value)
    for point in load.points:
        interval = load.speedup(point)
        if interval is not None:
            found[f"speedup@{point.key}"] = METRICS["speedup"].unit, as_kept(interval.avg)
    return found | _of_engines(load)


def _of_engines(load: LoadDocument) -> dict[str, tuple[str, float]]:
    """Return the numbers of the engines; to the byte, since nothing but the engines changes them."""
    places = [(f"{key}[{role}]" if role else key, key, role) for key in ENGINES for role in (None, *ROLES)]
    values = ((place, ENGINES[key].unit, load.engine(key, role)) for place, key, role in places)
    return {place: (unit, value) for place, unit, value in values if value is not None}


def _kept(categories: Sequence[str]) -> Iterator[tuple[str, str, str, str | None]]:
    for key, metric in METRICS.items():
        if metric.better != "none":
            for stat in KEPT_STATS:
                if stat in metric.stats:
                    yield (key if stat == "avg" else f"{key}.{stat}"), key, stat, None
    for key in MEMORY:
        for stat in MEMORY_STATS:
            yield (key if stat == "avg" else f"{key}.{stat}"), key, stat, None
    for category in categories:
        # A name that no rule can say, or that cannot be shown, is not kept.
        sayable = category == category.strip() and category.isprintable() and not set(category) & set("[]")
        for key in KEPT_OF_CATEGORY if category and sayable else ():
            yield f"{key}[{category}]", key, "avg", category


def as_kept(value: float) -> float:
    """Return a number as a baseline keeps it."""
    return float(f"{value:.{_DIGITS}g}")


def render_baseline(baseline: Baseline) -> str:
    """Return the text of a baseline's file: a line for each field, run and number."""
    runs = [_line({"created": run.created, "label": run.label}) for run in baseline.runs]
    series = [
        f"{_line(key)}: {_line({'unit': one.unit, 'values': list(one.values)})}" for key, one in baseline.series.items()
    ]
    fields = [f"{_line(field)}: {_line(value)}" for field, value in baseline.fingerprint.items()]
    return (
        "{\n"
        f'  "schema_version": {_line(SCHEMA_VERSION)},\n'
        '  "kind": "gate-baseline",\n'
        f'  "fingerprint": {_block(fields, "{}")},\n'
        f'  "runs": {_block(runs, "[]")},\n'
        f'  "series": {_block(series, "{}")}\n'
        "}\n"
    )


def _block(lines: Sequence[str], around: str) -> str:
    inner = ",\n".join(f"    {line}" for line in lines)
    return f"{around[0]}\n{inner}\n  {around[1]}"


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def history(baseline: Baseline) -> str:
    """Return the runs as CSV: ``time``, ``commit`` (the label), and a column for each number that every run has.

    Apache Otava reads it with ``type: csv``, ``time_column: time`` and ``attributes: [commit]``; it has no word for
    what was not measured, so a number that a run lacks is left out.
    """
    whole = whole_series(baseline)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time", "commit", *whole])
    for at, run in enumerate(baseline.runs):
        writer.writerow([as_time(run), run.label or run.created, *(one.values[at] for one in whole.values())])
    return out.getvalue()


def whole_series(baseline: Baseline) -> dict[str, Series]:
    """Return the numbers that every run has."""
    return {key: one for key, one in baseline.series.items() if None not in one.values}


def as_time(run: Run) -> str:
    """Return when a run began as the history has it."""
    return run.moment.strftime("%Y-%m-%d %H:%M:%S %z")


def parse_baseline(text: str, *, source: str) -> Baseline:
    """Read the text of a baseline's file.

    Args:
        text: The text.

        source: What it is called, for messages.

    Raises:
        ConfigError: It is no baseline, one of another schema, or holds what no run can have measured.
    """
    try:
        return _Reader(source).baseline(text)
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply", hint=_HINT) from None


class _Reader:
    """Reads one file, whose name is in every message."""

    def __init__(self, source: str) -> None:
        self._source = source

    def baseline(self, text: str) -> Baseline:
        data = self._object(self._json(text), "the file")
        version = data.get("schema_version")
        if data.get("kind") != "gate-baseline":
            self._refuse(f"is no baseline: kind is {data.get('kind')!r}")
        if not isinstance(version, str) or version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            self._refuse(f"has schema {version!r}; this gate reads {SCHEMA_VERSION.partition('.')[0]}.x")
        fingerprint = self._object(data.get("fingerprint"), "fingerprint")
        if not fingerprint:
            self._refuse("has an empty fingerprint, which agrees with every run")
        for field, value in fingerprint.items():
            if not isinstance(value, str):
                self._refuse(f"has {value!r} for {field} in its fingerprint, which is not text")
        runs = self._runs(data.get("runs"))
        series = {
            key: self._series(key, value, len(runs))
            for key, value in self._object(data.get("series"), "series").items()
        }
        if not series:
            self._refuse("holds no series")
        return Baseline(fingerprint=fingerprint, runs=runs, series=series)

    def _json(self, text: str) -> object:
        if len(text) > MOST_CHARACTERS:
            self._refuse(f"has {len(text):,} characters; {MOST_CHARACTERS:,} are the most")
        try:
            return json.loads(text, parse_constant=self._constant, object_pairs_hook=self._pairs)
        except ValueError as error:
            self._refuse(f"is not JSON: {error}")

    def _constant(self, name: str) -> NoReturn:
        self._refuse(f"holds {name}, which was not measured")

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        try:
            return unique_keys(pairs)
        except RepeatedKey as error:
            self._refuse(f"has {error.key!r} twice")

    def _runs(self, value: object) -> tuple[Run, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MOST_RUNS:
            count = len(value) if isinstance(value, list) else repr(value)
            self._refuse(f"has {count} for runs; a baseline has from 1 to {MOST_RUNS}")
        runs = tuple(self._run(entry) for entry in value)
        moments = [run.moment for run in runs]
        if any(after <= before for before, after in itertools.pairwise(moments)):
            self._refuse("has runs that are not in the order of their time, or one twice")
        return runs

    def _run(self, value: object) -> Run:
        entry = self._object(value, "a run")
        label = entry.get("label", "")
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            self._refuse(f"has a run with the label {label!r}")
        return Run(created=_moment(entry.get("created"), self._source), label=label)

    def _series(self, key: str, value: object, runs: int) -> Series:
        entry = self._object(value, key)
        try:
            # A key is what a rule says before its colon, so that whatever can be asked for has one spelling.
            rule = parse_rule(f"{key}: 5%")
        except ConfigError as error:
            raise ConfigError(f"{self._source}: the series {key!r} is none: {error.message}", hint=_HINT) from error
        if (rule.point is None and not rule.is_of_engines) or series_key(rule, rule.point) != key:
            self._refuse(f"has a series {key!r}, which does not say where it was measured")
        unit, values = entry.get("unit"), entry.get("values")
        if not isinstance(unit, str):
            self._refuse(f"has no unit for {key}")
        if not isinstance(values, list) or len(values) != runs:
            self._refuse(f"has {runs} runs and not as many values for {key}")
        where = f"{self._source}: {key}"
        return Series(unit=rule.unit, values=tuple(self._value(rule, number, unit, where) for number in values))

    def _value(self, rule: Rule, number: object, unit: str, where: str) -> float | None:
        if number is None:
            return None
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= _MOST_VALUE:
            raise ConfigError(f"{where} is {number!r}, which was not measured", hint=_HINT)
        converted = convert(float(number), unit, rule.unit, where=where)
        largest = KNOWN[rule.metric].largest(rule.stat)
        if not math.isfinite(converted) or (largest is not None and converted > largest):
            raise ConfigError(f"{where} is {number}, more than it can be", hint=_HINT)
        return converted

    def _object(self, value: object, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(f"holds {_short(value)} for {what}, not an object")
        return value

    def _refuse(self, words: str) -> NoReturn:
        raise ConfigError(f"{self._source} {words}", hint=_HINT)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _moment(created: object, source: str) -> str:
    """Check that a date has a time and a zone, and return it."""
    try:
        moment = dt.datetime.fromisoformat(str(created))
    except ValueError:
        moment = dt.datetime.min  # noqa: DTZ901 - has no zone, as what is refused
    try:
        if moment.tzinfo is None:
            raise ConfigError(
                f"{source}: a run was created {created!r}, which is no date with a time zone", hint="Measure again."
            )
        year = moment.astimezone(dt.UTC).year
    except OverflowError:
        year = 0
    if not _YEARS[0] <= year <= _YEARS[1]:
        raise ConfigError(f"{source}: a run was created {created!r}, which is no date of a run", hint=_HINT)
    return str(created)
