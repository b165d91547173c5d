"""The client of an OpenAI-compatible server, with the names of ``TritonClient``'s calls where both have them.

So a check that needs no more than text over HTTP runs against either. Every call has a deadline; every failure is a
``RequestFailed`` with a stable label.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, Self

from specdeploy.openai.answers import decode_answer
from specdeploy.openai.body import addressed, make_body
from specdeploy.openai.dialect import Dialect
from specdeploy.openai.redact import Redactor
from specdeploy.openai.replies import read_events, read_object
from specdeploy.triton.client.failures import RequestFailed, http_failure, malformed_answers
from specdeploy.triton.client.http import HttpTransport
from specdeploy.triton.client.replies import read_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdeploy.openai.address import ServerAddress
    from specdeploy.triton.client.http import Transport
    from specdeploy.triton.protocol import Chunk, GenerateRequest

_NO_ROUTE: Final = 404


class OpenAIClient:
    """Talks to one server; a context manager. Any number of threads may share it.

    Args:
        address: Where the server is.

        model: Name of the model, as ``/v1/models`` lists it.

        dialect: What the server offers; see :func:`~specdeploy.openai.dialect.ask_dialect`.

        api_key: Sent as ``Authorization: Bearer``; never part of a message.

        timeout_s: Deadline of a call (seconds).

        transport: Replaces HTTP, in tests.

        monotonic: The clock of deadlines and of ``Chunk.received_s``.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        model: str,
        dialect: Dialect | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        transport: Transport | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._model = model
        self._dialect = dialect or Dialect()
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._redact = Redactor(api_key)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: Transport = transport or HttpTransport(
            address.host, tls=address.tls, headers=headers, monotonic=monotonic
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no connection outlives its request."""

    def live(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server answers at all."""
        return self._status(f"{self._address.api}/models", timeout_s) == 200

    def ready(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server takes requests: by ``/health`` where it has that, else whether it is live."""
        status = self._status(f"{self._address.root}/health", timeout_s)
        return self.live(timeout_s=timeout_s) if status == _NO_ROUTE else status == 200

    def models(self, *, timeout_s: float | None = None) -> tuple[dict[str, Any], ...]:
        """Return what ``/v1/models`` says of each model.

        Raises:
            RequestFailed: It cannot be reached, answers with an error, or with something else.
        """
        with self._redact.failures():
            body = self._get(f"{self._address.api}/models", timeout_s)
            listed = body.get("data")
            if not isinstance(listed, list) or not all(map(_is_named, listed)):
                raise RequestFailed("protocol", f"/v1/models lists no models: {body!r:.200}")
            return tuple(listed)

    def server(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return who owns the model by the server's own account, and the models' names.

        Raises:
            RequestFailed: As ``models``.
        """
        models = self.models(timeout_s=timeout_s)
        owners = [model["owned_by"] for model in models if isinstance(model.get("owned_by"), str)]
        return {"name": owners[0] if owners else "server", "models": [model["id"] for model in models]}

    def model_ready(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Whether the server lists a model."""
        try:
            return any(model["id"] == name for model in self.models(timeout_s=timeout_s))
        except RequestFailed:
            return False

    def metrics_text(self, *, timeout_s: float | None = None) -> str:
        """Return the metrics page in Prometheus' text format, from the server's own port.

        Raises:
            RequestFailed: No connection, or an error.
        """
        with self._redact.failures():
            with self._http.send("GET", f"{self._address.root}/metrics", None, self._limit(timeout_s)) as reply:
                text = read_body(reply).decode(errors="replace")
            if reply.status != 200:
                raise http_failure(reply.status, text)
            return text

    def generate_http(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Chunk:
        """Return the whole answer.

        Raises:
            ConfigError: Such a server has no field for something in the request.

            RequestFailed: Any failure, including an error inside an answer with status 200.
        """
        body = make_body(request, model=model or self._model, dialect=self._dialect, stream=False)
        return self._whole(body, timeout_s, stop_words=bool(request.stop_words))

    def post_generate(
        self, body: Mapping[str, object], *, model: str | None = None, timeout_s: float | None = None
    ) -> Chunk:
        """Send fields as they are, however wrong; those of a Triton front door under their names here.

        Raises:
            RequestFailed: As ``generate_http``.
        """
        sent = addressed(body, model=model or self._model, dialect=self._dialect, stream=False)
        return self._whole(sent, timeout_s, stop_words="stop" in sent)

    def stream_http(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Iterator[Chunk]:
        """Send the request now and return its pieces as they arrive; closing the iterator ends the connection.

        Raises:
            ConfigError: As ``generate_http``.

            RequestFailed: As ``generate_http``; also while iterating.
        """
        body = make_body(request, model=model or self._model, dialect=self._dialect, stream=True)
        with self._redact.failures():
            reply = self._http.send("POST", self._route, json.dumps(body).encode(), self._limit(timeout_s))
        return self._redacted(read_events(reply, self._monotonic, stop_words=bool(request.stop_words)))

    @property
    def _route(self) -> str:
        return f"{self._address.api}/{'chat/completions' if self._dialect.chat else 'completions'}"

    def _whole(self, body: Mapping[str, object], timeout_s: float | None, *, stop_words: bool) -> Chunk:
        with self._redact.failures(), malformed_answers():
            with self._http.send("POST", self._route, json.dumps(body).encode(), self._limit(timeout_s)) as reply:
                answer = read_object(reply.status, read_body(reply))
            return decode_answer(answer, stop_words=stop_words, received_s=self._monotonic(), final=True)

    def _redacted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        with self._redact.failures():
            yield from chunks

    def _status(self, path: str, timeout_s: float | None) -> int | None:
        """Return the status of a page; None without a connection."""
        try:
            with self._http.send("GET", path, None, self._limit(timeout_s)) as reply:
                read_body(reply)
        except RequestFailed:
            return None
        return reply.status

    def _get(self, path: str, timeout_s: float | None) -> dict[str, Any]:
        with self._http.send("GET", path, None, self._limit(timeout_s)) as reply:
            return read_object(reply.status, read_body(reply))

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


def _is_named(model: object) -> bool:
    return isinstance(model, dict) and isinstance(model.get("id"), str)
