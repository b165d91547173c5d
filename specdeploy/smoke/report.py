"""The outcome of a smoke test, as values and as the document that is kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final, Literal, TypeAlias

from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_OK

Status: TypeAlias = Literal["pass", "fail", "undecided", "skip"]
STATUSES: Final[tuple[Status, ...]] = ("pass", "fail", "undecided", "skip")
SCHEMA_VERSION: Final = "1.1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check's outcome.

    Args:
        name: The check's name in the registry.

        status: ``pass``, ``fail``, ``undecided`` (it ran, and what it saw is too little to tell) or ``skip``.

        duration_s: How long it took; 0 when skipped before it began.

        reason: Why it failed, could not decide or was skipped; what was seen when it passed.

        hint: What to do next, when it failed or could not decide.

        details: Plain data for the reader who wants to know more.
    """

    name: str
    status: Status
    duration_s: float
    reason: str = ""
    hint: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """The outcomes of all checks, in the order in which they ran.

    Args:
        checks: One for each selected check.

        server_lost: Why the rest was skipped when the server could not be reached; empty when it could.

        interrupted: What the process ends with when a signal ended the run (128 and the signal's number); 0 when none
            did.
    """

    checks: tuple[CheckResult, ...]
    server_lost: str = ""
    interrupted: int = 0

    def count(self, status: Status) -> int:
        """Return how many checks ended so."""
        return sum(check.status == status for check in self.checks)

    @property
    def exit_code(self) -> int:
        """4: the server was lost; 1: a check failed; 3: one could not decide, or none ran; 0: all is well.

        A run that a signal ended says nothing about the whole, and has the code of the signal.
        """
        if self.interrupted:
            return self.interrupted
        if self.server_lost:
            return EXIT_ENVIRONMENT
        if self.count("fail"):
            return EXIT_FAILED
        return EXIT_OK if self.count("pass") and not self.count("undecided") else EXIT_CANNOT_DECIDE

    def as_dict(self) -> dict[str, Any]:
        """Return the document for ``smoke.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "smoke",
            "passed": self.exit_code == EXIT_OK,
            "exit_code": self.exit_code,
            "server_lost": plain(self.server_lost),
            "interrupted": bool(self.interrupted),
            "duration_s": sum(check.duration_s for check in self.checks),
            "counts": {status: self.count(status) for status in STATUSES},
            "checks": [plain(dataclasses.asdict(check)) for check in self.checks],
        }


def plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return what a check saw as data that JSON and UTF-8 can hold, whatever a server made of it.

    What is no number in JSON (NaN, infinities) becomes None, half of a surrogate pair is written out, and what is no
    data at all becomes its text.
    """
    if isinstance(value, Mapping):
        return {_scalar(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return _scalar(value)


def _scalar(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value).encode("utf-8", "backslashreplace").decode()
