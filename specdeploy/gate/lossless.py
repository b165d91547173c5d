"""What is known of losslessness: answers that differ from the target's own, from the smoke test and the load test.

The smoke test judges each difference by the target's logits (a tie, or a divergence). The load test compares answers
and judges none of them; what differs there counts among the ties, which have a budget, since somebody has to look.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.gate.document import Outputs

_HINT: Final = "Run `specdeploy smoke` of this version again."
_MAJOR: Final = "1"
#: More answers than any test compares.
_MOST: Final = 10**12
_PREFIX: Final = "lossless-"
_BUGS: Final = ("divergence", "not judged")
_TIES: Final = ("tie", "unstable")
_STATUSES: Final = ("pass", "fail", "undecided", "skip")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losslessness:
    """What came of comparing answers with the target's own.

    Args:
        divergences: Answers that differ and are no numerics; None when the smoke test judged none. A check that failed
            by something else, such as the distribution of sampled answers, counts as one.

        ties: Answers that differ where the target has two tokens as good as each other; None when none were compared.

        judged: Answers that the smoke test compared.

        compared: Answers that the load test compared.

        unjudged: Those of them that differ.

        unsure: Names of checks that could not decide, and words for a smoke test that did not end.

        failed: Names of checks that failed.
    """

    divergences: int | None
    ties: int | None
    judged: int
    compared: int
    unjudged: int
    unsure: tuple[str, ...]
    failed: tuple[str, ...] = ()


def losslessness(smoke: Mapping[str, Any] | None, outputs: Outputs | None) -> Losslessness:
    """Sum up what was compared.

    Args:
        smoke: The content of ``smoke.json``; None when there is none.

        outputs: Of the load test.

    Raises:
        ConfigError: The document is none of a smoke test, or of another schema.
    """
    checks = [] if smoke is None else list(_checks(smoke))
    counted = [(check, _counts(check)) for check in checks]
    judged = sum(counts["compared"] for _, counts in counted)
    failed = [counts for check, counts in counted if check["status"] == "fail" and not _sum(counts, _BUGS)]
    bugs = sum(_sum(counts, _BUGS) for _, counts in counted) + len(failed)
    ties = sum(_sum(counts, _TIES) for _, counts in counted)
    compared = 0 if outputs is None else outputs.compared
    unjudged = 0 if outputs is None else outputs.compared - outputs.identical
    return Losslessness(
        divergences=bugs if judged or bugs else None,
        ties=ties + unjudged if judged or compared else None,
        judged=judged,
        compared=compared,
        unjudged=unjudged,
        unsure=(*_named(checks, "undecided"), *_ended(smoke or {})),
        failed=_named(checks, "fail"),
    )


def _named(checks: Sequence[Mapping[str, Any]], status: str) -> tuple[str, ...]:
    return tuple(str(check["name"]) for check in checks if check["status"] == status)


def _ended(smoke: Mapping[str, Any]) -> Iterator[str]:
    if smoke.get("interrupted"):
        yield "the smoke test was interrupted"
    if smoke.get("server_lost"):
        yield "the smoke test lost the server"


def _checks(smoke: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    version = smoke.get("schema_version")
    if smoke.get("kind") != "smoke" or not isinstance(version, str) or version.partition(".")[0] != _MAJOR:
        kind = f"kind {smoke.get('kind')!r}, schema {version!r}"
        raise ConfigError(f"not the result of a smoke test that this gate reads: {kind}", hint=_HINT)
    checks = smoke.get("checks")
    if not isinstance(checks, list) or not all(isinstance(check, dict) for check in checks):
        raise ConfigError(f"smoke report: checks are {checks!r}, not a list of objects", hint=_HINT)
    for check in checks:
        if str(check.get("name", "")).startswith(_PREFIX):
            # A list is no member of a set: it cannot even be looked for.
            if check.get("status") not in _STATUSES:
                raise ConfigError(f"smoke report: {check['name']} is {check.get('status')!r}", hint=_HINT)
            yield check


def _counts(check: Mapping[str, Any]) -> dict[str, int]:
    """Return how many answers were compared, and how many differ of each kind."""
    details = {} if check.get("details") is None else check["details"]
    kinds = details.get("kinds", {}) if isinstance(details, dict) else None
    if not isinstance(kinds, dict):
        raise ConfigError(f"smoke report: the details of {check['name']} are {details!r}", hint=_HINT)
    if unknown := set(kinds) - {*_BUGS, *_TIES}:
        raise ConfigError(f"smoke report: {check['name']} has differences of kind {min(unknown)!r}", hint=_HINT)
    counts = {**kinds, "compared": details.get("compared", 0)}
    for kind, count in counts.items():
        if type(count) is not int or not 0 <= count <= _MOST:
            raise ConfigError(f"smoke report: {check['name']} has {count!r} answers of {kind}", hint=_HINT)
    if check["status"] == "skip" and any(counts.values()):
        raise ConfigError(f"smoke report: {check['name']} was skipped, and has answers of {counts!r}", hint=_HINT)
    if sum(kinds.values()) > counts["compared"]:
        differ = f"{sum(kinds.values())} of {counts['compared']} answers differ"
        raise ConfigError(f"smoke report: {check['name']} says that {differ}", hint=_HINT)
    return counts


def _sum(counts: Mapping[str, int], kinds: tuple[str, ...]) -> int:
    return sum(counts.get(kind, 0) for kind in kinds)
