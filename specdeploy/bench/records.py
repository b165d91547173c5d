"""RequestRecord: what one request of a load test was and what came of it, and its line of JSON.

Knows the fields and how they survive a round trip through JSON Lines. Does not know who fills them in or what is made
of them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias

from specdeploy.errors import ConfigError
from specdeploy.unique_keys import unique_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdeploy.bench.server_window import ServerWindow

Arm: TypeAlias = Literal["control", "speculation"]

CONTROL: Final[Arm] = "control"
SPECULATION: Final[Arm] = "speculation"
ARMS: Final[tuple[Arm, ...]] = (CONTROL, SPECULATION)
WARMUP_PAIR: Final = -1

#: Label of a request that was in flight when the run was stopped from our side; the server is not to blame.
INTERRUPTED: Final = "interrupted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """How much load: so many requests in flight (a closed loop), or so many a second (an open one).

    Args:
        concurrency: Requests in flight; None in an open loop.

        rate: Requests per second; None in a closed loop.
    """

    concurrency: int | None = None
    rate: float | None = None

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key: closed loops first, then by load."""
        return self.rate is not None, self.rate or self.concurrency or 0

    @property
    def key(self) -> str:
        """Key of a document's mapping: ``4``, or ``5/s``."""
        return str(self.concurrency) if self.rate is None else f"{self.rate:g}/s"

    def __str__(self) -> str:
        """Return it for people: ``concurrency 4``, or ``5 requests/s``."""
        return f"concurrency {self.concurrency}" if self.rate is None else f"{self.rate:g} requests/s"

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, as they stand in every entry of a document that belongs to it."""
        return {"concurrency": self.concurrency, "rate": self.rate}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request. Times are seconds of one monotonic clock and only their differences mean anything.

    Args:
        arm: ``control`` (the target alone) or ``speculation``.

        pair: Number of the pair within its concurrency, or `WARMUP_PAIR`.

        index: Position within the block; the two arms of a pair send the same prompt at the same index.

        concurrency: Requests in flight that the block asked for; None in an open loop.

        rate: Requests per second that an open loop offered; None in a closed one.

        prompt_id: The prompt's ``id``.

        category: The prompt's ``category``.

        intended_s: When the schedule wanted it sent; in a closed loop, when its worker became free.

        sent_s: When it was sent.

        first_s: When the first tokens came; None if none did.

        last_s: When the last tokens came; None if none did.

        ended_s: When the worker was done with it, whatever came of it.

        chunk_s: Arrival of each response that held tokens.

        chunk_tokens: Tokens in each of those responses, as counted by the server.

        output_ids: The tokens.

        input_tokens: Prompt tokens as counted by the server; None if it did not say.

        output_tokens: Answer tokens as counted by the server; None if it did not say.

        num_spec_steps: Verify steps (S); None if the server did not say. The same holds for the next two.

        draft_tokens: Drafted tokens (D).

        accepted_tokens: Accepted drafted tokens (A).

        histogram: Entry j is the number of verify steps that accepted exactly j drafts.

        finish_reason: Why the server stopped.

        bypass_reason: Why the request did not speculate; empty when it did.

        error: Stable label of what went wrong; None when nothing did.

        error_message: The words that came with the error.
    """

    arm: Arm
    pair: int
    index: int
    concurrency: int | None
    prompt_id: str
    category: str
    intended_s: float
    sent_s: float
    first_s: float | None
    last_s: float | None
    ended_s: float
    chunk_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    num_spec_steps: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    histogram: tuple[int, ...] = ()
    finish_reason: str = ""
    bypass_reason: str = ""
    error: str | None = None
    error_message: str = ""
    rate: float | None = None

    @property
    def point(self) -> LoadPoint:
        """The load under which it was sent."""
        return LoadPoint(concurrency=self.concurrency, rate=self.rate)

    @property
    def ok(self) -> bool:
        """Whether the request ended without an error."""
        return self.error is None

    @property
    def counts(self) -> bool:
        """Whether statistics use it; warm-up requests and those that we cut off ourselves are only kept."""
        return self.pair != WARMUP_PAIR and self.error != INTERRUPTED

    def to_dict(self) -> dict[str, Any]:
        """Return plain data whose keys are the field names."""
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RequestRecord:
        """Rebuild a record from `to_dict`'s data.

        Raises:
            ConfigError: A field is missing, one is not a field of ours, or its value is none of its values.
        """
        values: dict[str, Any] = {}
        for key, value in data.items():
            # An unknown key is refused below, with the words of the constructor.
            if key in _TYPES and type(value) not in _TYPES[key]:
                _refuse(key, value)
            if key in _ENTRIES:
                if not _ENTRIES[key].issuperset(map(type, value)):
                    _refuse(key, value)
                values[key] = tuple(value)
            else:
                values[key] = utf8(value) if type(value) is str else value
        try:
            record = cls(**values)
        except TypeError as error:
            raise ConfigError(f"not a request record: {error}", hint="Measure again with this version.") from error
        record._require_sense()
        record._require_order()
        return record

    def _require_sense(self) -> None:
        """Refuse what has the right type, and is beyond what statistics can use.

        Raises:
            ConfigError: A value is.
        """
        if self.arm not in ARMS:
            _refuse("arm", self.arm)
        if not WARMUP_PAIR <= self.pair <= _LARGEST_NUMBER:
            _refuse("pair", self.pair)
        if not 0 <= self.index <= _LARGEST_NUMBER:
            _refuse("index", self.index)
        if self.concurrency is not None and not 0 <= self.concurrency <= _LARGEST_NUMBER:
            _refuse("concurrency", self.concurrency)
        if self.rate is not None and not 0 < self.rate < math.inf:
            _refuse("rate", self.rate)
        if (self.concurrency is None) == (self.rate is None):
            _refuse("rate", self.rate)
        for key in _TIMES:
            # No comparison is true of NaN.
            if (moment_s := getattr(self, key)) is not None and not -_LARGEST_S <= moment_s <= _LARGEST_S:
                _refuse(key, moment_s)
        times = self.chunk_s
        if times and not (min(times) >= -_LARGEST_S and max(times) <= _LARGEST_S and math.isfinite(sum(times))):
            _refuse("chunk_s", times)

    def _require_order(self) -> None:
        """Refuse what came before it was sent: a latency below zero keeps every limit.

        Raises:
            ConfigError: Something did.
        """
        for key in ("first_s", "last_s", "ended_s"):
            if (moment_s := getattr(self, key)) is not None and moment_s < self.sent_s:
                _refuse(key, moment_s)
        if self.chunk_s and min(self.chunk_s) < self.sent_s:
            _refuse("chunk_s", self.chunk_s)


_NONE: Final = type(None)
_NUMBER: Final = frozenset({int, float})
_COUNT: Final = frozenset({int, _NONE})
_LIST: Final = frozenset({list, tuple})
_TEXT: Final = frozenset({str})
#: Which types a value may have that was read. A truth value is no number.
_TYPES: Final[dict[str, frozenset[type]]] = {
    "arm": _TEXT,
    "pair": frozenset({int}),
    "index": frozenset({int}),
    "concurrency": _COUNT,
    "rate": _NUMBER | {_NONE},
    "prompt_id": _TEXT,
    "category": _TEXT,
    "intended_s": _NUMBER,
    "sent_s": _NUMBER,
    "first_s": _NUMBER | {_NONE},
    "last_s": _NUMBER | {_NONE},
    "ended_s": _NUMBER,
    "chunk_s": _LIST,
    "chunk_tokens": _LIST,
    "output_ids": _LIST,
    "input_tokens": _COUNT,
    "output_tokens": _COUNT,
    "num_spec_steps": _COUNT,
    "draft_tokens": _COUNT,
    "accepted_tokens": _COUNT,
    "histogram": _LIST,
    "finish_reason": _TEXT,
    "bypass_reason": _TEXT,
    "error": _TEXT | {_NONE},
    "error_message": _TEXT,
}
#: The same of what is in a list.
_ENTRIES: Final[dict[str, frozenset[type]]] = {
    "chunk_s": _NUMBER,
    "chunk_tokens": frozenset({int}),
    "output_ids": frozenset({int}),
    "histogram": frozenset({int}),
}
_TIMES: Final = ("intended_s", "sent_s", "first_s", "last_s", "ended_s")
#: Some 1500 years: together with the present still a date.
_LARGEST_S: Final = 5e10
_LARGEST_NUMBER: Final = 2**53
_SHOWN: Final = 60


def _refuse(key: str, value: object) -> NoReturn:
    shown = repr(value)
    raise ConfigError(
        f"not a request record: {key} is {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}...'}",
        hint="The file was changed or damaged; measure again.",
    )


def utf8(text: str) -> str:
    """Return a text that can be written anywhere: halves of surrogate pairs, which JSON may hold, are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadRun:
    """What a run measured.

    Args:
        records: Every request, the warm-up included, in the order in which they ended; perhaps a table of them.

        windows: The same blocks, seen from the server; empty when it was not asked.

        started_s: When it began, on the clock of the records.

        stop_reason: Why the plan was not carried out to its end; empty when it was.

        duration_s: Of the whole run.

        block_starts_s: When each block began that did, in the order of the plan, on the clock of the records.
    """

    records: Sequence[RequestRecord]
    windows: tuple[ServerWindow, ...] = ()
    started_s: float = 0.0
    stop_reason: str = ""
    duration_s: float = 0.0
    block_starts_s: tuple[float, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether the plan was not carried out to its end."""
        return bool(self.stop_reason)


def records_to_jsonl(records: Iterable[RequestRecord]) -> str:
    """Return one line of JSON per record, in order; `records_from_jsonl` reads them back."""
    return "".join(map(record_to_line, records))


def record_to_line(record: RequestRecord) -> str:
    """Return a record as one line of JSON, its end included."""
    return json.dumps(record.to_dict(), allow_nan=False, separators=(",", ":")) + "\n"


def records_from_jsonl(text: str) -> tuple[RequestRecord, ...]:
    """Read the lines of `records_to_jsonl`; blank lines are skipped.

    Raises:
        ConfigError: A line is not a record; names its number.
    """
    lines = enumerate(text.splitlines(), start=1)
    return tuple(record_from_line(number, line) for number, line in lines if line.strip())


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


# NaN and Infinity, which Python would read, are no JSON. Made once: that takes longer than to read a line.
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=unique_keys)


def record_from_line(number: int, line: str | bytes) -> RequestRecord:
    """Read one line.

    Args:
        number: Which it is in its file, from 1; for messages.

        line: The line.

    Raises:
        ConfigError: It is not a record.
    """
    try:
        data = _DECODER.decode(line if isinstance(line, str) else line.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"records line {number} is not JSON: {error}", hint="The file was cut; measure again."
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"records line {number} is {type(data).__name__}, not an object", hint="Measure again.")
    try:
        return RequestRecord.from_dict(data)
    except ConfigError as error:
        raise ConfigError(f"records line {number} is {error.message}", hint=error.hint) from error
