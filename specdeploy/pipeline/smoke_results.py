"""Where the outcome of a smoke test is kept: ``smoke.json`` and JUnit XML, each as a whole or not at all.

A run of some checks has a file of its own, so that a readiness gate does not take the place of the whole.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.pipeline.outputs import problem, require_writable
from specdeploy.pipeline.subject import deployment
from specdeploy.pipeline.workspace import workspace
from specdeploy.smoke.junit import junit as junit_xml
from specdeploy.system.files import write_atomic, write_json_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig

_JUNIT = "--junit"
_REPORTS = "report.path"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """What the results say of the server, and where they are kept; known before the server is asked for anything.

    Args:
        identity: What they say of it, under ``deployment``.

        results: The file of the whole document.

        junit: The file of the JUnit XML; None writes none.
    """

    identity: Mapping[str, Any]
    results: Path
    junit: Path | None = None

    def of_part(self, part: str) -> Place:
        """Return the place of the results of a part of the checks; empty is the whole."""
        if not part:
            return self
        return dataclasses.replace(self, results=self.results.with_stem(f"{self.results.stem}-{part}"))

    def require_writable(self) -> None:
        """Stop while nothing was asked yet when an outcome could not be kept.

        Raises:
            ConfigError: A file cannot be written; the message names the option or key.
        """
        require_writable(self.results, _REPORTS)
        if self.junit is not None:
            require_writable(self.junit, _JUNIT)

    def write(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """Write the files, each whether or not the other can be written; return what went wrong."""
        problems = [problem(_REPORTS, self.results, lambda path: write_json_atomic(path, document))]
        if self.junit is not None:
            problems.append(problem(_JUNIT, self.junit, lambda path: write_atomic(path, junit_xml(document))))
        return tuple(said for said in problems if said)


def own_place(loaded: LoadedConfig, junit: Path | None = None) -> Place:
    """Return the place of the deployment's own results."""
    return Place(identity=deployment(loaded), results=workspace(loaded).smoke_json, junit=junit)


def other_place(loaded: LoadedConfig, *, kind: str, url: str, junit: Path | None = None) -> Place:
    """Return the place of the results of a server that is not ours: beside the deployment's own."""
    return Place(
        identity={"name": "", "profile": kind, "url": url},
        results=workspace(loaded).reports / f"smoke-{kind}.json",
        junit=junit,
    )
