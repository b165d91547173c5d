"""Where the verdict of the gate is kept for those who run it: Markdown and JUnit XML, and the page of a GitHub job.

``gate.json`` is the gate's own; these are made from it, and are known before anything is judged.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import CannotDecide, ConfigError, SpecdeployError
from specdeploy.pipeline import measure
from specdeploy.pipeline.gate_rules import check_rules
from specdeploy.pipeline.gating import baseline_path
from specdeploy.pipeline.outputs import (
    FolderBusy,
    NotKept,
    discard,
    keep_verdict,
    problem,
    require_appendable,
    require_ours,
    require_writable,
    resolved,
)
from specdeploy.pipeline.report_files import what_is
from specdeploy.pipeline.subject import read_document
from specdeploy.pipeline.workspace import workspace
from specdeploy.report import gate_junit, gate_markdown
from specdeploy.report.gate_outcome import unjudged
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import append_text, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig

#: The variable that names the page of a step of a GitHub job.
STEP_SUMMARY: Final = "GITHUB_STEP_SUMMARY"
_MARKDOWN: Final = "--markdown"
_JUNIT: Final = "--junit"
_REPORTS: Final = "report.path"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateFiles:
    """The files that a run of the gate was asked for; None writes none.

    Args:
        markdown: The summary, as a file of its own.

        junit: The verdict as JUnit XML.

        step_summary: The page of a job, to which the summary is added.

        config: The configuration in use, which none of them may replace.
    """

    markdown: Path | None = None
    junit: Path | None = None
    step_summary: Path | None = None
    config: Path | None = None

    def require_writable(self, loaded: LoadedConfig) -> None:
        """Stop while nothing was judged yet when a file could not be kept, or would take the place of another.

        Raises:
            ConfigError: The message names the option, key or variable.
        """
        place = workspace(loaded)
        require_writable(place.gate_json, _REPORTS)
        taken = {resolved(baseline_path(loaded), "gate.baseline"): "the baseline"}
        if self.config is not None:
            taken[self.config.resolve()] = "the configuration"
        for option, path, beginning, kind in (
            (_MARKDOWN, self.markdown, gate_markdown.BEGINNING, "a summary of the gate"),
            (_JUNIT, self.junit, gate_junit.BEGINNING, "JUnit XML of the gate"),
        ):
            if path is None:
                continue
            _require_free(path, option, place.reports, taken)
            require_writable(path, option)
            require_ours(path, option, beginning, kind)
        if self.step_summary is not None:
            _require_free(self.step_summary, STEP_SUMMARY, place.reports, taken)
            require_appendable(self.step_summary, STEP_SUMMARY)

    def discard(self) -> None:
        """Remove the files, so that none is taken for this run's."""
        for path in (self.markdown, self.junit):
            if path is not None:
                discard(path)

    def write(self, gate: Mapping[str, Any], load: Mapping[str, Any] | None, *, name: str) -> tuple[str, ...]:
        """Write the files, each whether or not another can be written; return what went wrong.

        Args:
            gate: The gate's document.

            load: The load test's document; None when there is none.

            name: Of the deployment.
        """
        summary = gate_markdown.gate_markdown(gate, load)
        jobs = (
            (_MARKDOWN, self.markdown, lambda path: _replace(path, summary)),
            (_JUNIT, self.junit, lambda path: _replace(path, gate_junit.gate_junit(gate, name=name))),
            (STEP_SUMMARY, self.step_summary, lambda path: append_text(path, summary)),
        )
        said = (problem(named_by, path, write) for named_by, path, write in jobs if path is not None)
        return tuple(words for words in said if words)


def _require_free(path: Path, option: str, reports: Path, taken: dict[Path, str]) -> None:
    """Refuse a file that is another one's, and note that it is taken."""
    file = resolved(path, option)
    already = what_is(file, reports) or taken.setdefault(file, option)
    if already != option:
        raise ConfigError(f"{option}: {path} is the file of {already}", hint="name another file")


def judge(
    loaded: LoadedConfig,
    rules: Iterable[str],
    files: GateFiles,
    on_document: Callable[[Mapping[str, Any], tuple[str, ...]], None],
    gate: Callable[[LoadedConfig, Iterable[str]], dict[str, Any]] = measure.gate,
) -> dict[str, Any]:
    """Judge the last load test, keep the verdict in every way that was asked for, and return ``gate.json``.

    Where nothing can be judged, for want of a load test, by a damaged document, a server that is not there, a signal
    or a bug of ours, the files and ``gate.json`` say so: none is left that an earlier run wrote. Of a gate that
    measures on and is stopped they have its last look. A rule or a file's name that the user has to mend, or another
    command that measures into the folder, is found before anything is read, and leaves them as they are.

    Args:
        loaded: The configuration.

        rules: In place of those of the configuration; none takes those.

        files: What to write.

        on_document: Hears of the document, also when there was nothing to judge, and of what could not be written.

        gate: Judges.

    Raises:
        ConfigError: A file cannot be written, a rule or a document is malformed.

        CannotDecide: Nothing was measured yet.

        EnvironmentFault: More was to be measured, and cannot be.
    """
    files.require_writable(loaded)
    given = tuple(rules)
    said: tuple[str, ...] = ()
    check_rules(loaded, given)
    place = workspace(loaded)
    before = _signature(place.gate_json)
    try:
        document = gate(loaded, given)
    except NotKept as error:
        document, said = error.document, (error.message,)
    except FolderBusy:
        raise
    except SpecdeployError as error:
        _say_unjudged(loaded, files, on_document, error)
        raise
    except Exception as error:
        bug = SpecdeployError(f"the gate failed: {type(error).__name__}: {error}", hint="Please report it.")
        _say_unjudged(loaded, files, _ignore, bug)
        raise
    except BaseException:
        # A signal, which stays one whatever goes wrong here.
        with contextlib.suppress(SpecdeployError):
            if _signature(place.gate_json) == before:
                _say_unjudged(loaded, files, _ignore, CannotDecide("the gate was stopped before it judged anything"))
            else:
                looked = read_document(place.gate_json) or {}
                files.write(looked, read_document(place.load_json), name=loaded.config.name)
        raise
    load = read_document(place.load_json)
    try:
        written = files.write(document, load, name=loaded.config.name)
    except Exception:
        # What cannot be made of this verdict is not left of an earlier one.
        files.discard()
        raise
    on_document(document, (*said, *written))
    return document


def _signature(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from the one that takes its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _ignore(document: Mapping[str, Any], said: tuple[str, ...]) -> None:
    del document, said


def _say_unjudged(
    loaded: LoadedConfig,
    files: GateFiles,
    on_document: Callable[[Mapping[str, Any], tuple[str, ...]], None],
    why: SpecdeployError,
) -> None:
    """Keep and tell that nothing was judged, in every way that was asked for."""
    document = unjudged(why, created=SystemClock().now_iso())
    said: tuple[str, ...] = ()
    try:
        keep_verdict(workspace(loaded).gate_json, document)
    except NotKept as error:
        said = (error.message,)
    on_document(document, (*said, *files.write(document, None, name=loaded.config.name)))


def _replace(path: Path, text: str) -> None:
    """Write a file; where that cannot be done, what an earlier run wrote is not left to be taken for it."""
    try:
        write_atomic(path, text)
    except OSError:
        discard(path)
        raise
