"""Where the verdict of the gate is kept for those who run it: Markdown and JUnit XML, and the page of a GitHub job.

``gate.json`` is the gate's own; these are made from it, and are known before anything is judged.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.pipeline import measure
from specdeploy.pipeline.outputs import problem, require_appendable, require_writable
from specdeploy.pipeline.subject import read_document
from specdeploy.pipeline.workspace import workspace
from specdeploy.report.gate_junit import gate_junit
from specdeploy.report.gate_markdown import gate_markdown
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
    """

    markdown: Path | None = None
    junit: Path | None = None
    step_summary: Path | None = None

    def require_writable(self, loaded: LoadedConfig) -> None:
        """Stop while nothing was judged yet when a file could not be kept, or would take the place of another.

        Raises:
            ConfigError: The message names the option, key or variable.
        """
        place = workspace(loaded)
        require_writable(place.gate_json, _REPORTS)
        taken = {
            place.smoke_json: "the smoke test's results",
            place.load_json: "the load test's results",
            place.records_jsonl: "the load test's records",
            place.gate_json: "the gate's own results",
            place.report_html: "the report",
        }
        for option, path in ((_MARKDOWN, self.markdown), (_JUNIT, self.junit)):
            if path is None:
                continue
            already = taken.setdefault(path.resolve(), option)
            if already != option:
                raise ConfigError(f"{option}: {path} is the file of {already}", hint="name another file")
            require_writable(path, option)
        if self.step_summary is not None:
            require_appendable(self.step_summary, STEP_SUMMARY)

    def write(self, gate: Mapping[str, Any], load: Mapping[str, Any] | None, *, name: str) -> tuple[str, ...]:
        """Write the files, each whether or not another can be written; return what went wrong.

        Args:
            gate: The gate's document.

            load: The load test's document; None when there is none.

            name: Of the deployment.
        """
        summary = gate_markdown(gate, load)
        jobs = (
            (_MARKDOWN, self.markdown, lambda path: write_atomic(path, summary)),
            (_JUNIT, self.junit, lambda path: write_atomic(path, gate_junit(gate, name=name))),
            (STEP_SUMMARY, self.step_summary, lambda path: append_text(path, summary)),
        )
        said = (problem(named_by, path, write) for named_by, path, write in jobs if path is not None)
        return tuple(words for words in said if words)


def judge(
    loaded: LoadedConfig,
    rules: Iterable[str],
    files: GateFiles,
    on_document: Callable[[Mapping[str, Any], tuple[str, ...]], None],
    gate: Callable[[LoadedConfig, Iterable[str]], dict[str, Any]] = measure.gate,
) -> dict[str, Any]:
    """Judge the last load test, keep the verdict in every way that was asked for, and return ``gate.json``.

    Where there is nothing to judge the files say so as well: none is left that an earlier run wrote. What the user has
    to mend, a rule or a damaged document, is no verdict, and leaves them as they are.

    Args:
        loaded: The configuration.

        rules: In place of those of the configuration; none takes those.

        files: What to write.

        on_document: Hears of the document, also when there was nothing to judge, and of what could not be written.

        gate: Judges.

    Raises:
        ConfigError: A file cannot be written, a rule or the load document is malformed.

        CannotDecide: Nothing was measured yet.
    """
    files.require_writable(loaded)
    try:
        document = gate(loaded, rules)
    except CannotDecide as error:
        document = unjudged(error.message, created=SystemClock().now_iso())
        on_document(document, files.write(document, None, name=loaded.config.name))
        raise
    load = read_document(workspace(loaded).load_json)
    on_document(document, files.write(document, load, name=loaded.config.name))
    return document
