"""What a server answers about itself, over HTTP with the standard library alone; and one request to see that it works.

Knows Triton's HTTP API and the headers that its restricted parts want. A part that does not answer is None: who asks
decides what that means.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any, Final

from specdeploy.deploy.access import OPEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.deploy.access import Access
    from specdeploy.triton.server.ports import Endpoints

_TIMEOUT_S: Final = 5.0
# Long enough that a draft has something to propose after the first token: every engine is asked.
_WARM_UP: Final = {"text_input": "Hello", "max_tokens": 4}
_EVENT: Final = "data:"
_INDEX: Final = "/v2/repository/index"


class Api:
    """The HTTP API of one server.

    Args:
        endpoints: Where it listens.
        access: What it asks of clients.
    """

    def __init__(self, endpoints: Endpoints, access: Access = OPEN) -> None:
        self._endpoints = endpoints
        self._access = access

    def is_live(self) -> bool:
        """Say whether the server answers."""
        return self._is_ok("/v2/health/live")

    def is_ready(self) -> bool:
        """Say whether the server reports itself ready."""
        return self._is_ok("/v2/health/ready")

    def index(self) -> list[dict[str, Any]] | None:
        """Return the models of the repository with their versions and states."""
        found = self._json("POST", _INDEX, "model-repository")
        return found if isinstance(found, list) else None

    def statistics(self) -> dict[str, Any] | None:
        """Return the counters of all models."""
        found = self._json("GET", "/v2/models/stats", "statistics")
        return found if isinstance(found, dict) else None

    def metrics(self) -> str | None:
        """Return the metrics page."""
        port = self._endpoints.metrics_port
        answer = self._ask("GET", "/metrics", {}, port=port) if port else None
        return None if answer is None or answer[0] != http.client.OK else answer[1].decode(errors="replace")

    def refusal(self) -> str | None:
        """Return what the server says to who may not ask whether it is ready; None where it answers."""
        for method, path, api in (("GET", "/v2/health/ready", "health"), ("POST", _INDEX, "model-repository")):
            answer = self._ask(method, path, self._access.headers(api))
            if answer is not None and answer[0] == http.client.FORBIDDEN:
                return f"{api}: {answer[1].decode(errors='replace')[:200]}"
        return None

    def warm_up(self, front_door: str, timeout_s: float) -> str | None:
        """Send one short request through a front door; return what went wrong, None when it was answered."""
        body = json.dumps(_WARM_UP).encode()
        path = f"/v2/models/{front_door}/generate_stream"
        started = time.monotonic()
        answer = self._ask("POST", path, self._access.headers("inference"), body=body, timeout_s=timeout_s)
        if answer is None:
            return f"no answer within {time.monotonic() - started:.0f} s"
        return _complaint(*answer)

    def _is_ok(self, path: str) -> bool:
        answer = self._ask("GET", path, self._access.headers("health"))
        return answer is not None and answer[0] == http.client.OK

    def _json(self, method: str, path: str, api: str) -> object:
        answer = self._ask(method, path, self._access.headers(api))
        if answer is None or answer[0] != http.client.OK:
            return None
        try:
            return json.loads(answer[1])
        except ValueError:
            return None

    def _ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        port: int = 0,
        body: bytes = b"",
        timeout_s: float = _TIMEOUT_S,
    ) -> tuple[int, bytes] | None:
        ends = self._endpoints
        connection = http.client.HTTPConnection(ends.reachable_host, port or ends.http_port, timeout=timeout_s)
        try:
            connection.request(method, path, body=body if method == "POST" else None, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def _complaint(status: int, body: bytes) -> str | None:
    """Return the error in the answer to a request; Triton also sends them with status 200, and inside of streams."""
    text = body.decode(errors="replace")
    events = [line.removeprefix(_EVENT) for line in text.splitlines() if line.startswith(_EVENT)]
    for event in events or [text]:
        try:
            answer = json.loads(event)
        except ValueError:
            return f"an answer that is no JSON: {event[:200]!r} (status {status})"
        if isinstance(answer, dict) and "error" in answer:
            return str(answer["error"])
    if status != http.client.OK:
        return f"status {status}"
    return None if events else "an answer without a response"
