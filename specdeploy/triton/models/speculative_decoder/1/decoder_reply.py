"""The way back to the client of one request, of one text or several: responses, and exactly one final one.

Knows Triton's response sender; knows nothing of what is answered.
"""

from __future__ import annotations

import json
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import triton_python_backend_utils as pb_utils
from decoder_batch import joined
from decoder_outputs import as_sent
from decoder_request import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from decoder_request import Tensor

# Triton's own classes carry no types.
InferenceRequest: TypeAlias = Any
ResponseSender: TypeAlias = Any

_FINAL: Final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

_CANCEL_CHECK_S: Final = 0.1
"""Asking whether a request is cancelled is a message to the server and back, a tenth of a short round; more rarely than
calls are looked at, it would not be known of them in time."""


def time_limit_s(request: InferenceRequest) -> float:
    """Return how long a request may take (seconds): its ``timeout`` in microseconds, or for ever.

    gRPC and HTTP ``infer`` send it as Triton's own, ``generate`` as a parameter; ensembles pass on both.

    Raises:
        RequestError: It is no such number.
    """
    limit_us = request.timeout() or json.loads(request.parameters() or "{}").get("timeout", 0)
    # A negative one of gRPC arrives as a very large one.
    if isinstance(limit_us, bool) or not isinstance(limit_us, int) or not 0 <= limit_us < 2**63:
        raise RequestError(f"timeout is {limit_us!r}; it must be a whole number of microseconds, 0 for no limit")
    return limit_us / 1e6 if limit_us else math.inf


class Reply:
    """Sends what the rows of a request come to; each row may be answered on a thread of its own.

    A streamed request gets each row's responses as they come; one that is not gets a single response of all rows. An
    error of one row ends the request.

    Args:
        sender: Triton's sender of the request.
        rows: Texts of the request.
        stream: Whether the request is streamed.
    """

    def __init__(self, sender: ResponseSender, *, rows: int = 1, stream: bool = False) -> None:
        self._sender = sender
        self._in_pieces = stream or rows == 1
        self._open = set(range(rows))
        self._answers: dict[int, Mapping[str, Tensor]] = {}
        self._one_at_a_time = threading.Lock()
        self._asked_s = -math.inf
        self._cancelled = False
        self._begun_s = time.monotonic()
        self._limit_s = math.inf

    def send(self, row: int, outputs: Mapping[str, Tensor], *, final: bool) -> None:
        """Answer a row; ``final`` says that it is the row's last response."""
        with self._one_at_a_time:
            if not self._open:
                return
            if final:
                self._open.discard(row)
            if self._in_pieces:
                self._send(outputs, final=not self._open)
                return
            self._answers[row] = outputs
            if not self._open:
                self._send(joined([self._answers[number] for number in sorted(self._answers)]), final=True)

    def fail(self, message: str, code: int) -> None:
        """Answer the whole request with an error, unless it has had its final response."""
        with self._one_at_a_time:
            if self._open:
                self._open.clear()
                self._sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)), flags=_FINAL)

    def limit(self, seconds: float) -> None:
        """Let the request take so long, from when it was taken up."""
        self._limit_s = seconds

    def ended(self) -> str:
        """Say why the answer ends where it is: ``cancelled``, since nobody waits for it, ``timeout``, or empty.

        The server is not asked more often than is worth it.
        """
        now_s = time.monotonic()
        if now_s - self._begun_s >= self._limit_s:
            return "timeout"
        return "cancelled" if self._is_cancelled(now_s) else ""

    def left_s(self) -> float:
        """Return how long the request may still take; not above 0 when its time is up."""
        return self._begun_s + self._limit_s - time.monotonic()

    def _is_cancelled(self, now_s: float) -> bool:
        # After the final response there is nothing left to ask: Triton 2.51 dies of it, and another row may send it.
        with self._one_at_a_time:
            if not self._open:
                return True
            # Every row ends, whichever asked.
            if not self._cancelled and now_s - self._asked_s >= _CANCEL_CHECK_S:
                self._asked_s = now_s
                self._cancelled = bool(self._sender.is_cancelled())
            return self._cancelled

    def _send(self, outputs: Mapping[str, Tensor], *, final: bool) -> None:
        # The stub may not free a tensor before it is sent: hence the named list.
        tensors = [pb_utils.Tensor(name, as_sent(name, value)) for name, value in outputs.items()]
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=_FINAL if final else 0)
