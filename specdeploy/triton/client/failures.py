"""Every way in which a request can fail, under a stable label that records and reports can count."""

from __future__ import annotations

import contextlib
import http.client
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from specdeploy.errors import ServerFault
from specdeploy.triton.protocol import MalformedResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: What reading an answer raises that is not the protocol: not JSON, not UTF-8, wrong shape, nested too deep.
MALFORMED: Final = (MalformedResponse, ValueError, RecursionError)

Label: TypeAlias = Literal[
    "timeout",
    "connection",
    "invalid_argument",
    "unavailable",
    "internal",
    "cancelled",
    "protocol",
    "model_error",
    "empty_stream",
    "stream_ended_early",
]

#: label -> what the reader can do.
HINTS: Final[Mapping[Label, str]] = {
    "timeout": "The server was too slow, or a model process died (readiness does not show that): see the server's log.",
    "connection": "Is the server running, and are host and port right?",
    "invalid_argument": "Mend the request; sending it again will not help.",
    "unavailable": "The server refuses work for now: too many requests, or a model is loading or dead.",
    "internal": "See the server's log.",
    "cancelled": "",
    "protocol": "Is this the kind of server that was asked for, with a model that answers text?",
    "model_error": "The model refused the request or failed; the message is its own.",
    "empty_stream": "See the server's log.",
    "stream_ended_early": "See the server's log; does a proxy in front of it end answers early?",
}

#: gRPC status -> label. Test: every status of grpcio is here.
GRPC_LABELS: Final[Mapping[str, Label]] = {
    "OK": "protocol",
    "CANCELLED": "cancelled",
    "UNKNOWN": "internal",
    "INVALID_ARGUMENT": "invalid_argument",
    "DEADLINE_EXCEEDED": "timeout",
    "NOT_FOUND": "invalid_argument",
    "ALREADY_EXISTS": "invalid_argument",
    "PERMISSION_DENIED": "invalid_argument",
    "UNAUTHENTICATED": "invalid_argument",
    "RESOURCE_EXHAUSTED": "unavailable",
    "FAILED_PRECONDITION": "invalid_argument",
    "ABORTED": "internal",
    "UNIMPLEMENTED": "invalid_argument",
    "INTERNAL": "internal",
    # Triton reports its own refusals inside the stream; the status of the call is the channel's.
    "UNAVAILABLE": "connection",
    "DATA_LOSS": "internal",
    "OUT_OF_RANGE": "invalid_argument",
}

#: HTTP statuses that say more than their hundred does.
HTTP_LABELS: Final[Mapping[int, Label]] = {
    408: "timeout",
    429: "unavailable",
    499: "cancelled",
    501: "invalid_argument",
    503: "unavailable",
    504: "timeout",
}

#: What Triton says, lower case, once it was told to stop: of its schedulers, and of models that it has unloaded.
_LEAVING: Final = ("server is stopping", "has no available versions")
#: Messages of Triton's core, lower case. It sends bad JSON as 500, and errors within a stream without any status.
_MESSAGES: Final[tuple[tuple[str, Label], ...]] = (
    *((words, "unavailable") for words in _LEAVING),
    ("unable to parse", "invalid_argument"),
    ("failed to parse the request json", "invalid_argument"),
    ("unknown model", "invalid_argument"),
    ("expected number of inputs", "invalid_argument"),
    ("missing required input", "invalid_argument"),
    ("unexpected inference input", "invalid_argument"),
    ("data-type is", "invalid_argument"),
    ("unexpected shape for input", "invalid_argument"),
    ("unexpected total byte size", "invalid_argument"),
    ("doesn't support models with decoupled transaction policy", "invalid_argument"),
    ("expects model to produce exactly 1 response", "protocol"),
    ("is not healthy", "unavailable"),
    ("model version not ready", "unavailable"),
    ("is not available", "unavailable"),
    ("exceeds maximum queue size", "unavailable"),
    ("request timeout expired", "unavailable"),
)


class RequestFailed(ServerFault):
    """One request failed.

    Args:
        label: Stable name of the kind of failure.

        said: What the server or the transport said, in its own words.

        status: The HTTP status, when there was one.
    """

    def __init__(self, label: Label, said: str, *, status: int | None = None) -> None:
        shown = f" (HTTP {status})" if status else ""
        super().__init__(f"{label}: {said}{shown}", hint=HINTS[label])
        self.label = label
        self.said = said
        self.status = status


def label_of_message(message: str, otherwise: Label) -> Label:
    """Return the label of a message that Triton's core writes, else ``otherwise``."""
    lower = message.lower()
    return next((label for text, label in _MESSAGES if text in lower), otherwise)


def is_leaving(message: str) -> bool:
    """Say whether the server says that it was told to stop: nothing more will be answered."""
    lower = message.lower()
    return any(words in lower for words in _LEAVING)


def stream_failure(message: str) -> RequestFailed:
    """Return the failure for an error that came inside a stream or a 200: it has a message and no status."""
    return RequestFailed(label_of_message(message, "model_error"), message)


def http_failure(status: int, message: str) -> RequestFailed:
    """Return the failure for an HTTP answer that is not a 200."""
    by_hundred: Label = {4: "invalid_argument", 5: "internal"}.get(status // 100, "protocol")  # type: ignore[assignment]
    label = label_of_message(message, HTTP_LABELS.get(status, by_hundred))
    return RequestFailed(label, message, status=status)


def grpc_failure(status: str, message: str) -> RequestFailed:
    """Return the failure for the status (by name) that ended a gRPC call."""
    return RequestFailed(label_of_message(message, GRPC_LABELS.get(status, "internal")), message)


@contextlib.contextmanager
def socket_failures(where: str) -> Iterator[None]:
    """Turn what sockets and ``http.client`` raise into ``RequestFailed``."""
    try:
        yield
    except TimeoutError as error:
        raise RequestFailed("timeout", f"{where} did not answer in time") from error
    except (OSError, http.client.IncompleteRead, http.client.RemoteDisconnected) as error:
        raise RequestFailed("connection", f"{where}: {_told(error)}") from error
    except UnicodeError as error:
        # A name that no host can have (`a..b`), or a path that HTTP cannot carry.
        raise RequestFailed("connection", f"{where} cannot be asked for: {_told(error)}") from error
    except http.client.HTTPException as error:
        raise RequestFailed("protocol", f"{where} does not speak HTTP: {_told(error)}") from error


@contextlib.contextmanager
def malformed_answers() -> Iterator[None]:
    """Turn an answer that is not the protocol into ``RequestFailed``."""
    try:
        yield
    except MALFORMED as error:
        raise RequestFailed("protocol", str(error)) from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
