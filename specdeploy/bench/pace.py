"""How the last requests of a run went, for those who watch it: rates, time to first token, acceptance."""

from __future__ import annotations

import dataclasses
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.records import Arm, LoadPoint, RequestRecord

#: Requests that are spoken of.
_RECENT: Final = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """What some requests came to.

    Args:
        requests_s: Requests a second; None for a single moment.

        tokens_s: Output tokens a second; None where nobody counts them.

        first_s: Median time to first token, in seconds; None when no token came.

        accepted: Share of accepted drafts; None without drafts.
    """

    requests_s: float | None = None
    tokens_s: float | None = None
    first_s: float | None = None
    accepted: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return what is known, in words."""
        words = (
            (self.requests_s, "{:.3g} requests/s"),
            (self.tokens_s, "{:.0f} tokens/s"),
            (None if self.first_s is None else self.first_s * 1000, "TTFT {:.0f} ms"),
            (self.accepted, "{:.0%} accepted"),
        )
        return ", ".join(form.format(value) for value, form in words if value is not None)


class RecentRequests:
    """The last requests of one arm under one load."""

    def __init__(self) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=_RECENT)

    def add(self, record: RequestRecord) -> None:
        """Take a request; the first of another arm or load lets go of those before."""
        if self._records and _kind(self._records[-1]) != _kind(record):
            self._records.clear()
        self._records.append(record)

    @property
    def pace(self) -> Pace:
        """How they went; nothing where a server counts what no number can hold."""
        try:
            return self._pace()
        except ArithmeticError:
            # Whoever only watches must not end the run.
            return Pace()

    def _pace(self) -> Pace:
        good = [record for record in self._records if record.ok and record.first_s is not None]
        if not good:
            return Pace()
        took_s = max(record.ended_s for record in good) - min(record.sent_s for record in good)
        # A server that counts no tokens was not measured to make none.
        counted = [record.output_tokens for record in good if record.output_tokens is not None]
        drafted = sum(record.draft_tokens or 0 for record in good)
        return Pace(
            requests_s=len(good) / took_s if took_s > 0 and len(good) > 1 else None,
            tokens_s=sum(counted) / took_s if took_s > 0 and counted else None,
            first_s=median((record.first_s or 0.0) - record.sent_s for record in good),
            accepted=sum(record.accepted_tokens or 0 for record in good) / drafted if drafted else None,
        )


def together(paces: Iterable[Pace]) -> Pace:
    """Return the pace of several generators: rates add up, times and shares are the median of theirs."""
    every = tuple(paces)
    requests_s, tokens_s, first_s, accepted = (
        [value for pace in every if (value := getattr(pace, field.name)) is not None]
        for field in dataclasses.fields(Pace)
    )
    return Pace(
        requests_s=sum(requests_s) if requests_s else None,
        tokens_s=sum(tokens_s) if tokens_s else None,
        first_s=median(first_s) if first_s else None,
        accepted=median(accepted) if accepted else None,
    )


def _kind(record: RequestRecord) -> tuple[Arm, LoadPoint]:
    return record.arm, record.point
