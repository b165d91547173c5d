"""The outcome of a smoke test, as values and as the document that is kept."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Mapping

Status: TypeAlias = Literal["pass", "fail", "skip"]
SCHEMA_VERSION: Final = "1.0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check's outcome.

    Args:
        name: The check's name in the registry.

        status: ``pass``, ``fail`` or ``skip``.

        duration_s: How long it took; 0 when skipped before it began.

        reason: Why it failed or was skipped; what was seen when it passed.

        details: Plain data for the reader who wants to know more.
    """

    name: str
    status: Status
    duration_s: float
    reason: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """The outcomes of all checks, in the order in which they ran.

    Args:
        checks: One for each selected check.

        server_lost: Why the rest was skipped when the server could not be reached; empty when it could.
    """

    checks: tuple[CheckResult, ...]
    server_lost: str = ""

    def count(self, status: Status) -> int:
        """Return how many checks ended so."""
        return sum(check.status == status for check in self.checks)

    @property
    def exit_code(self) -> int:
        """4: the server was lost; 1: a check failed; 3: nothing was checked; 0: the deployment is as it should be."""
        if self.server_lost:
            return EXIT_ENVIRONMENT
        if self.count("fail"):
            return EXIT_FAILED
        return EXIT_OK if self.count("pass") else EXIT_CANNOT_DECIDE

    def as_dict(self) -> dict[str, Any]:
        """Return the document for ``smoke.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "smoke",
            "passed": self.exit_code == EXIT_OK,
            "exit_code": self.exit_code,
            "server_lost": self.server_lost,
            "counts": {status: self.count(status) for status in ("pass", "fail", "skip")},
            "checks": [dataclasses.asdict(check) for check in self.checks],
        }
