"""A collector of OpenTelemetry spans over OTLP/HTTP in JSON, on a free port."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Collector:
    """Keeps what it is sent as (headers, body), and answers with ``status``."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[tuple[dict[str, str], Any]] = queue.SimpleQueue()
        self.status = 200
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.put((dict(self.headers), json.loads(body)))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def spans_of(body: Any) -> Iterator[dict[str, Any]]:
    """Yield the spans of a request."""
    for entry in body["resourceSpans"]:
        for scope in entry["scopeSpans"]:
            yield from scope["spans"]


def attributes_of(span: dict[str, Any]) -> dict[str, object]:
    """Return a span's attributes; whole numbers are text, as OTLP's JSON has them."""
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}
