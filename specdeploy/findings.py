"""Finding: what every checker returns, one per thing noticed, all of them at once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity: TypeAlias = Literal["error", "warning", "info"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a checker noticed.

    Args:
        severity: ``error`` stops the stage, ``warning`` and ``info`` do not.
        code: Stable and greppable, ``<room>.<what>`` such as ``tokenizer.vocabulary-differs``.
        message: What was seen, with the values.
        hint: The cure; empty when there is nothing to do.
        where: File, model or key path that it is about.
    """

    severity: Severity
    code: str
    message: str
    hint: str = ""
    where: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for ``--json``."""
        return dataclasses.asdict(self)


def has_errors(findings: Iterable[Finding]) -> bool:
    """Say whether any finding stops the stage."""
    return any(finding.severity == "error" for finding in findings)
