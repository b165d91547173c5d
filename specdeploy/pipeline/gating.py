"""What the gate judges by, read from where it lies: smoke test, raw records, baseline; and the baseline's upkeep."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.load_report import RECORDS_FILE
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.baseline import MOST_CHARACTERS, UPDATE, history, parse_baseline, render_baseline, with_run
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.evidence import Evidence
from specdeploy.gate.repeats import share_of
from specdeploy.gate.requests import needs_requests
from specdeploy.gate.rules import LOSSLESS
from specdeploy.gate.verdict import evaluate
from specdeploy.pipeline.loading import known_differences
from specdeploy.pipeline.outputs import resolved
from specdeploy.pipeline.record_files import reading_records
from specdeploy.pipeline.report_files import what_is
from specdeploy.pipeline.subject import read_document
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import explained, require_regular, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.config.load import LoadedConfig
    from specdeploy.gate.baseline import Baseline
    from specdeploy.gate.outcome import Verdict
    from specdeploy.gate.rules import Rule

_SHOWN: Final = 3
#: How a baseline begins, up to where it says what it is.
_BEGINNING: Final = b'{\n  "schema_version": "1.0",\n  "kind": "gate-baseline"'


def preflight(loaded: LoadedConfig, rules: Sequence[Rule]) -> None:
    """Read what rules need that is there before anything was measured: the baseline.

    Raises:
        ConfigError: It cannot be read.
    """
    if _relative(rules):
        read_baseline(loaded)


@contextlib.contextmanager
def evidence_for(
    loaded: LoadedConfig, rules: Sequence[Rule], load: Mapping[str, Any], *, growing: bool = False
) -> Iterator[Evidence]:
    """Read what rules are decided by beside the load test; what no rule asks for is not looked at.

    Args:
        loaded: Where it lies.

        rules: The rules.

        load: The content of ``load.json``.

        growing: Whether the run is looked at again when this look does not decide.

    Raises:
        ConfigError: Something is there and cannot be read.
    """
    look = LoadDocument(load).looks
    place, wanted = workspace(loaded), loaded.config.gate
    lossless = any(rule.metric == LOSSLESS.key for rule in rules)
    with contextlib.ExitStack() as stack:
        records = _records(loaded, load) if needs_requests(rules) else None
        yield Evidence(
            smoke=read_document(place.smoke_json) if lossless else None,
            baseline=read_baseline(loaded) if _relative(rules) else None,
            baseline_at=loaded.config.gate.baseline,
            requests=None if records is None else stack.enter_context(reading_records(records, load)),
            baseline_runs=wanted.baseline_runs,
            confidence=wanted.confidence,
            look=look,
            # A run that has grown was looked at before, whoever looks at it now.
            share=share_of(look) if growing or look > 1 else 1.0,
            can_repeat=not growing,
        )


def judged(loaded: LoadedConfig, rules: Sequence[Rule], load: Mapping[str, Any], *, growing: bool = False) -> Verdict:
    """Judge a load test by rules.

    Args:
        loaded: Where the rest lies that they are decided by.

        rules: The rules.

        load: The content of ``load.json``.

        growing: As for `evidence_for`.

    Raises:
        ConfigError: A document is malformed.
    """
    with evidence_for(loaded, rules, load, growing=growing) as evidence:
        verdict = evaluate(rules, load, evidence)
    other = known_differences(loaded, load)
    return _of_another(verdict, other, str(load.get("created", ""))) if other else verdict


def _of_another(verdict: Verdict, other: Sequence[tuple[str, str, str]], created: str) -> Verdict:
    """Return a verdict that says of each rule that another deployment was measured than the one that is to ship."""
    words = "; ".join(f"{field} was {there} and is {here}" for field, there, here in other[:_SHOWN])
    more = f"; and {len(other) - _SHOWN} more differ" if len(other) > _SHOWN else ""
    reason = f"The load test of {created} measured another deployment: {words}{more}; run `specdeploy load` again."
    rules = (
        dataclasses.replace(one, status="not_comparable", reason=reason, more_decides=False) for one in verdict.rules
    )
    return dataclasses.replace(verdict, rules=tuple(rules))


def _relative(rules: Sequence[Rule]) -> bool:
    return any(rule.reference == "baseline" for rule in rules)


def _records(loaded: LoadedConfig, load: Mapping[str, Any]) -> Path | None:
    """Return the file of raw records beside the document; None when there is none."""
    name = load.get("records_file", RECORDS_FILE)
    if not isinstance(name, str) or Path(name).name != name:
        raise ConfigError(f"load report: its records are in {name!r}, not in a file beside it", hint="Measure again.")
    path = workspace(loaded).reports / name
    # What is there, and is no file, is refused as it is read.
    with explained(path):
        return path if path.exists() else None


def baseline_path(loaded: LoadedConfig) -> Path:
    """Return where the baseline is kept."""
    return loaded.resolve(loaded.config.gate.baseline)


def read_baseline(loaded: LoadedConfig) -> Baseline | None:
    """Return the baseline; None when there is none.

    Raises:
        ConfigError: It cannot be read, or is no baseline.
    """
    path, data = baseline_path(loaded), _baseline_bytes(loaded)
    if data is None:
        return None
    try:
        return parse_baseline(data.decode("utf-8"), source=str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason}", hint="Restore it from its repository.") from None


def _baseline_bytes(loaded: LoadedConfig) -> bytes | None:
    """Return what is in the baseline's file, whatever it is; None when there is no file.

    Raises:
        ConfigError: It cannot be read.
    """
    path = baseline_path(loaded)
    try:
        require_regular(path)
        with path.open("rb") as file:
            # No more than a baseline can have: the reader refuses what is longer.
            return file.read(4 * MOST_CHARACTERS + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="gate.baseline names the file.") from error


def update_baseline(loaded: LoadedConfig, *, label: str = "", reset: bool = False) -> Baseline:
    """Add the last load test to the baseline, or begin a new one with it, and return it.

    Args:
        loaded: Where both are.

        label: What the run was of, such as a commit.

        reset: Whether a new baseline is begun, whatever was there.

    Raises:
        ConfigError: A document cannot be read, the run is in the baseline already or of the future, or the file cannot
            be written.

        CannotDecide: Nothing was measured, or the run is nothing to compare with.
    """
    path = workspace(loaded).load_json
    load = read_document(path)
    if load is None:
        raise CannotDecide(f"there is no {path}: nothing has been measured", hint="run `specdeploy load` first")
    if reset:
        _require_replaceable(loaded)
    now = dt.datetime.fromisoformat(SystemClock().now_iso())
    baseline = with_run(None if reset else read_baseline(loaded), LoadDocument(load), label=label, now=now)
    with explained(baseline_path(loaded)):
        # Half of a surrogate pair, which some server may say, is no UTF-8; written out it is JSON all the same.
        write_atomic(baseline_path(loaded), render_baseline(baseline).encode("utf-8", "backslashreplace"))
    return baseline


def _require_replaceable(loaded: LoadedConfig) -> None:
    """Refuse to begin a new baseline in the place of what is none, such as the configuration.

    Raises:
        ConfigError: Something else is there.
    """
    path = baseline_path(loaded)
    already = what_is(resolved(path, "gate.baseline"), workspace(loaded).reports)
    whole = _baseline_bytes(loaded) or b""
    # A damaged one has to be replaceable: what says that it is one, or is cut off before it could.
    ours = b'"gate-baseline"' in whole or _BEGINNING.startswith(whole.strip())
    if already or not ours:
        raise ConfigError(
            f"gate.baseline: {path} is {f'the file of {already}' if already else 'there, and is no baseline'}",
            hint="name another file as gate.baseline, or move this one away",
        )


def require_baseline(loaded: LoadedConfig) -> Baseline:
    """Return the baseline.

    Raises:
        CannotDecide: There is none.

        ConfigError: It cannot be read, or is no baseline.
    """
    baseline = read_baseline(loaded)
    if baseline is None:
        raise CannotDecide(f"there is no baseline: {baseline_path(loaded)}", hint=f"{UPDATE} begins one.")
    return baseline


def baseline_document(loaded: LoadedConfig, baseline: Baseline) -> dict[str, Any]:
    """Return a baseline as plain data, with how many days it has and needs."""
    return {
        "schema_version": "1.0",
        "kind": "gate-baseline-summary",
        "path": str(baseline_path(loaded)),
        "days": len(baseline.days),
        "needed_days": loaded.config.gate.baseline_runs,
        "fingerprint": dict(baseline.fingerprint),
        "runs": [{"created": run.created, "label": run.label} for run in baseline.runs],
        "series": {key: {"unit": one.unit, "values": list(one.values)} for key, one in baseline.series.items()},
    }


def baseline_history(loaded: LoadedConfig) -> str:
    """Return the runs of the baseline as CSV.

    Raises:
        CannotDecide: There is no baseline.

        ConfigError: It cannot be read, or is no baseline.
    """
    return history(require_baseline(loaded))
