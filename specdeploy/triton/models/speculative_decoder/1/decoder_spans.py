"""OpenTelemetry spans of one text: how it was decoded, and below that each call to the draft and to the target.

Triton traces what it passes to a model and not what the model asks of others: those calls carry no trace. So the spans
are made here, under the one that Triton has for this model, in the JSON of OTLP (opentelemetry-proto 1.x). Knows groups
and what a trace context is; knows nothing of Triton and of how spans are sent.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from decoder_answer import Response
    from decoder_loop import Group

Span: TypeAlias = "Mapping[str, Any]"

_NS: Final = 1_000_000_000
_INTERNAL: Final = 1
_ERROR: Final = 2
# W3C Trace Context, level 1: version, trace id, parent id, flags, of which the last bit says that it is sampled.
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])(-.*)?", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parent:
    """The span that others belong to, and the trace that it is in, as hexadecimal text."""

    trace_id: str
    span_id: str


def read_context(context: str | None) -> Parent | None:
    """Read what Triton says of a request's trace: JSON with a ``traceparent``; None where it is not sampled."""
    try:
        document = json.loads(context or "{}")
    except ValueError:
        return None
    carried = document.get("traceparent") if isinstance(document, dict) else None
    match = _TRACEPARENT.fullmatch(carried) if isinstance(carried, str) else None
    if match is None or not int(match[3], 16) & 1:
        return None
    return Parent(trace_id=match[1], span_id=match[2])


class TextSpans:
    """The spans of one text, each of which is handed on when it ends.

    Args:
        parent: The span that Triton has for this model; None makes no spans.
        send: Takes a span that has ended.
        models: Names of the draft's and the target's models.
        clock_ns: Nanoseconds since 1970.
    """

    def __init__(
        self,
        parent: Parent | None,
        send: Callable[[Span], None],
        *,
        models: Mapping[str, str],
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._parent = parent
        self._send = send
        self._models = models
        self._clock_ns = clock_ns
        self._begun_ns = clock_ns() if parent else 0
        self._own = None if parent is None else Parent(trace_id=parent.trace_id, span_id=secrets.token_hex(8))
        self._attributes: dict[str, str | int | float] = {}
        self._error = ""
        self._rounds = 0

    def rounds(self, groups: Iterable[Group]) -> Iterable[Group]:
        """Pass groups on as they come, with the spans of the calls that each took."""
        return groups if self._own is None else self._seen(groups)

    def note(self, response: Response, *, num_input_tokens: int, batch_index: int) -> None:
        """Say what the last response says of the whole text."""
        if self._own is None:
            return
        counts = response.statistics
        found: dict[str, str | int | float | None] = {
            "gen_ai.usage.input_tokens": num_input_tokens,
            "gen_ai.usage.output_tokens": response.num_output_tokens,
            "specdeploy.batch_index": batch_index,
            "specdeploy.finish_reason": response.finish_reason,
            "specdeploy.bypass_reason": response.bypass_reason,
            "specdeploy.spec_steps": counts.steps,
            "specdeploy.draft_tokens": counts.drafted,
            "specdeploy.accepted_draft_tokens": counts.accepted,
        }
        self._attributes = {name: value for name, value in found.items() if value is not None}

    def fail(self, message: str) -> None:
        """Say that the text could not be decoded."""
        self._error = message

    def end(self) -> None:
        """End the text's own span."""
        if self._parent is not None and self._own is not None:
            self._emit("decode", self._begun_ns, self._clock_ns(), self._attributes, own=self._own, error=self._error)

    def _seen(self, groups: Iterable[Group]) -> Iterator[Group]:
        for group in groups:
            now_ns = self._clock_ns()
            between_ns = now_ns - round(group.target_s * _NS)
            attributes = {"specdeploy.round": self._rounds}
            if group.draft_s:
                proposed = {**attributes, "specdeploy.draft_tokens": group.drafted}
                failed = "the draft failed" if group.draft_failed else ""
                self._emit("draft", between_ns - round(group.draft_s * _NS), between_ns, proposed, error=failed)
            verified = {
                **attributes,
                "specdeploy.draft_tokens": group.drafted,
                "specdeploy.accepted_draft_tokens": group.accepted,
                "gen_ai.usage.output_tokens": int(group.answer.ids.size),
            }
            self._emit("target", between_ns, now_ns, verified)
            self._rounds += 1
            yield group

    def _emit(
        self,
        name: str,
        begun_ns: int,
        ended_ns: int,
        attributes: Mapping[str, str | int | float],
        *,
        own: Parent | None = None,
        error: str = "",
    ) -> None:
        """Hand on a span: the text's ``own``, or one below it."""
        above = self._parent if own else self._own
        if above is None:
            return
        called = {"triton.model_name": self._models[name]} if name in self._models else {}
        self._send(
            {
                "traceId": above.trace_id,
                "spanId": own.span_id if own else secrets.token_hex(8),
                "parentSpanId": above.span_id,
                "name": name,
                "kind": _INTERNAL,
                "startTimeUnixNano": str(begun_ns),
                "endTimeUnixNano": str(ended_ns),
                "attributes": attribute_list({**called, **attributes}),
                "status": {"code": _ERROR, "message": error} if error else {},
            }
        )


def attribute_list(attributes: Mapping[str, str | int | float]) -> list[dict[str, Any]]:
    """Spell attributes as OTLP's JSON does, in which whole numbers are text."""
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: str | float) -> dict[str, str | float]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}
