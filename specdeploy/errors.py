"""Every error that specdeploy raises on purpose, and the exit code each one ends the process with.

::

    SpecdeployError
    ├── CheckFailed            1   the gate, the smoke test or the losslessness check failed
    ├── ConfigError            2   the YAML, an option or an input file is wrong
    │   ├── CheckpointError    2   a checkpoint is missing, truncated or not readable
    │   ├── IncompatiblePair   2   target and draft do not belong together
    │   └── RepositoryError    2   a model repository is malformed or not ours to touch
    ├── CannotDecide           3   too few samples, nothing measured, not comparable
    └── EnvironmentFault       4   this machine lacks something, or something outside failed
        ├── ToolMissing        4   a program or package that the step needs is not here
        ├── BuildFailed        4   a build step ended with an error
        └── ServerFault        4   the server did not start, died, or does not answer

Anything else that escapes is a bug of ours and ends with exit code 70.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.findings import Finding

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_CANNOT_DECIDE: Final = 3
EXIT_ENVIRONMENT: Final = 4
EXIT_BUG: Final = 70


class SpecdeployError(Exception):
    """The root of the tree; never raised itself.

    Args:
        message: What happened, with the value that was seen.
        hint: What the reader can do next; shown on a line of its own.
        findings: The findings behind the error, when a checker raised it.
    """

    exit_code: ClassVar[int] = EXIT_BUG

    def __init__(self, message: str, *, hint: str = "", findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.findings = tuple(findings)


class CheckFailed(SpecdeployError):
    """The deployment was measured, and what was measured is not good enough."""

    exit_code = EXIT_FAILED


class ConfigError(SpecdeployError):
    """The configuration, an option or an input file is wrong; the user can mend it."""

    exit_code = EXIT_USAGE


class CheckpointError(ConfigError):
    """A checkpoint folder is missing, incomplete, truncated or in a refused format.

    Args:
        message: What happened, with the value that was seen.
        hint: What the reader can do next.
        findings: The findings behind the error, when there are several.
        code: Stable, as of a finding: one error is one finding of a checker that goes on.
    """

    def __init__(
        self, message: str, *, hint: str = "", findings: Sequence[Finding] = (), code: str = "checkpoint.unreadable"
    ) -> None:
        super().__init__(message, hint=hint, findings=findings)
        self.code = code


class IncompatiblePair(ConfigError):
    """Target and draft do not belong together; ``findings`` says why."""


class RepositoryError(ConfigError):
    """A model repository is malformed, or a directory is not ours to overwrite."""


class CannotDecide(SpecdeployError):
    """There is not enough (or nothing) measured to say pass or fail."""

    exit_code = EXIT_CANNOT_DECIDE


class EnvironmentFault(SpecdeployError):
    """The machine, a tool or a server is at fault, not the configuration."""

    exit_code = EXIT_ENVIRONMENT


class ToolMissing(EnvironmentFault):
    """A program or package that the step needs is not installed here."""


class BuildFailed(EnvironmentFault):
    """A build step ended with an error; nothing was published."""


class ServerFault(EnvironmentFault):
    """The server did not start in time, died, or does not answer."""
