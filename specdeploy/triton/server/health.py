"""Whether a server answers, and which of its models are ready; over HTTP with the standard library alone."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from specdeploy.triton.server.ports import Endpoints

_TIMEOUT_S: Final = 5.0


def is_ready(endpoints: Endpoints) -> bool:
    """Say whether the server is up and reports itself ready."""
    answer = _ask(endpoints, "GET", "/v2/health/ready")
    return answer is not None and answer[0] == http.client.OK


def model_states(endpoints: Endpoints) -> dict[str, str] | None:
    """Return model -> state (``READY``, ``UNAVAILABLE``, ...), None when the server does not answer."""
    answer = _ask(endpoints, "POST", "/v2/repository/index")
    if answer is None or answer[0] != http.client.OK:
        return None
    try:
        return {str(entry["name"]): str(entry.get("state", "")) for entry in json.loads(answer[1])}
    except (ValueError, KeyError, TypeError):
        return None


def _ask(endpoints: Endpoints, method: str, path: str) -> tuple[int, bytes] | None:
    connection = http.client.HTTPConnection(endpoints.reachable_host, endpoints.http_port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body=b"" if method == "POST" else None)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
