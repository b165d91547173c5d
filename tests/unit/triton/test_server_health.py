"""What counts as an answer to the first request, and which headers go where; on an HTTP server that says anything."""

from __future__ import annotations

import contextlib
import http.server
import threading
from typing import TYPE_CHECKING

import pytest

from specdeploy.deploy.access import Access, Restriction
from specdeploy.triton.server.health import Api
from specdeploy.triton.server.ports import Endpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN = Access()
CLOSED = Access(
    http=(
        Restriction(apis=("health", "statistics"), header="x-one", secret="1"),
        Restriction(apis=("inference",), header="x-two", secret="2"),
    )
)


@contextlib.contextmanager
def answering(status: int, body: bytes, *, access: Access = OPEN) -> Iterator[tuple[Api, list[dict[str, str]]]]:
    """Answer every request in one way; yield the API and the headers of each request."""
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            seen.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815 - names of the standard library

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        port = server.server_address[1]
        try:
            yield Api(Endpoints(host="127.0.0.1", http_port=port, grpc_port=1, metrics_port=port), access), seen
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (200, b'data: {"text_output":"a"}\n\ndata: {"text_output":"b"}\n\n', None),
        (200, b'data: {"text_output":"a"}\n\ndata: {"error":"stub died"}\n\n', "stub died"),
        (200, b'{"error":"generate expects model to produce exactly 1 response"}', "generate expects model"),
        (400, b'data: {"error":"no such input"}\n\n', "no such input"),
        (404, b'{"error":"unknown model"}', "unknown model"),
        (403, b"{}", "status 403"),
        (200, b"{}", "an answer without a response"),
        (200, b"<html>", "an answer that is no JSON: '<html>' (status 200)"),
        (200, b"", "an answer that is no JSON: '' (status 200)"),
    ],
)
def test_only_a_response_without_an_error_is_an_answer(status: int, body: bytes, complaint: str | None) -> None:
    """Triton hides errors in answers with status 200, and inside of streams that began well."""
    with answering(status, body) as (api, _):
        told = api.warm_up("ensemble", 10)

    assert (told is None) if complaint is None else (told or "").startswith(complaint)


def test_nobody_there_is_no_answer() -> None:
    """And nothing is raised: who asks decides what it means."""
    with answering(200, b"") as (api, _):
        pass

    assert (api.warm_up("ensemble", 1) or "").startswith("no answer within")
    assert not api.is_live()
    assert not api.is_ready()
    assert api.index() is None
    assert api.statistics() is None
    assert api.metrics() is None


def test_each_part_of_the_api_gets_its_own_header() -> None:
    """A secret goes to nobody who did not ask for it."""
    with answering(200, b"{}", access=CLOSED) as (api, seen):
        api.is_ready()
        api.statistics()
        api.index()
        api.metrics()
        api.warm_up("ensemble", 10)

    secrets = {entry["path"]: {name: entry[name] for name in entry if name.startswith("x-")} for entry in seen}
    assert secrets == {
        "/v2/health/ready": {"x-one": "1"},
        "/v2/models/stats": {"x-one": "1"},
        "/v2/repository/index": {},
        "/metrics": {},
        "/v2/models/ensemble/generate_stream": {"x-two": "2"},
    }


def test_a_refusal_is_told_from_a_server_that_is_not_ready() -> None:
    """403 means that our header is not the one that the server wants, and the server's words say which part."""
    with answering(403, b'{"error":"This API is restricted"}', access=CLOSED) as (api, seen):
        told = api.refusal()
    with answering(503, b"") as (busy, _):
        not_ready = busy.refusal()
    with answering(200, b"[]") as (fine, _):
        answered = fine.refusal()

    assert told == 'health: {"error":"This API is restricted"}'
    assert seen[0]["x-one"] == "1"
    assert not_ready is None
    assert answered is None


@pytest.mark.parametrize("body", [b"not json", b'{"an": "object"}'])
def test_an_index_that_is_none_is_not_taken_for_an_empty_one(body: bytes) -> None:
    """An empty index would mean that no model has to be ready."""
    with answering(200, body) as (api, _):
        assert api.index() is None
