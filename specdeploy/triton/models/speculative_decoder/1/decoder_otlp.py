"""Sends spans to an OpenTelemetry collector over OTLP/HTTP in JSON, as Triton sends its own.

Beside the requests, on a thread of its own, and never in their way: what a collector does not take in time is dropped
and counted in the log. Knows the variables of OpenTelemetry's specification for exporters; knows nothing of Triton.
"""

from __future__ import annotations

import collections
import http.client
import json
import math
import threading
import time
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Final

from decoder_settings import SettingsError
from decoder_spans import attribute_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from decoder_spans import Span

_MOST: Final = 8192
"""Spans that wait to be sent; more than a second of a busy decoder's."""

_BATCH: Final = 512
_PERIOD_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_LAST_TIMEOUT_S: Final = 2.0
_COMPLAINT_S: Final = 60.0
_SERVICE: Final = "triton-inference-server"
"""What Triton calls its own service."""

_MOST_ANSWERED: Final = 65536
"""Bytes that are read of what a collector says."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes an answer that sends one elsewhere for an error: behind it is a page to log in at, and no collector."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def traces_endpoint(parameter: str, environment: Mapping[str, str]) -> str:
    """Return where spans go: the model's parameter, or what the environment says; empty for nowhere.

    Raises:
        SettingsError: That is no URL of http or https.
    """
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").rstrip("/")
    endpoint = parameter or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "") or (base and f"{base}/v1/traces")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        where = "parameter 'otlp_traces_endpoint' of config.pbtxt" if parameter else "OTEL_EXPORTER_OTLP_ENDPOINT"
        raise SettingsError(f"{where} is {endpoint!r}; it must be a URL such as http://127.0.0.1:4318/v1/traces")
    return endpoint


def read_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that the environment asks for: ``name=value,...``, with percent signs as in URLs."""
    text = environment.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = [entry.partition("=") for entry in text.split(",") if "=" in entry]
    return {name.strip(): urllib.parse.unquote(value.strip()) for name, _, value in pairs if name.strip()}


class SpanExporter:
    """Sends spans in batches.

    Args:
        endpoint: URL of the collector, such as ``http://127.0.0.1:4318/v1/traces``.
        environment: The process' variables: headers, and the name of the service.
        warn: Takes a line for the log.
    """

    def __init__(self, endpoint: str, environment: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._headers = {**read_headers(environment), "Content-Type": "application/json"}
        self._resource = attribute_list({"service.name": environment.get("OTEL_SERVICE_NAME") or _SERVICE})
        self._warn = warn
        self._waiting: collections.deque[Span] = collections.deque()
        self._changed = threading.Condition()
        self._closing = False
        self._lost = 0
        self._why = ""
        self._complained_s = -math.inf
        self._thread: threading.Thread | None = None

    def add(self, span: Span) -> None:
        """Take a span; returns at once."""
        with self._changed:
            if self._closing:
                return
            full = len(self._waiting) >= _MOST
            if not full:
                self._waiting.append(span)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
                self._thread.start()
            elif len(self._waiting) == _BATCH:
                self._changed.notify()
        if full:
            self._drop(1, "they came faster than they could be sent")

    def close(self) -> None:
        """Send what waits, as far as that is quick, and end; say how many spans were lost and not told yet."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2 * _LAST_TIMEOUT_S)
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
        self._complained_s = -math.inf
        self._drop(left, "the model was unloaded")

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._closing and len(self._waiting) < _BATCH:
                    self._changed.wait(_PERIOD_S)
                closing = self._closing
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST if closing else _BATCH))]
            if batch:
                self._post(batch, _LAST_TIMEOUT_S if closing else _TIMEOUT_S)
            if closing:
                return

    def _post(self, spans: list[Span], timeout_s: float) -> None:
        body = {
            "resourceSpans": [
                {
                    "resource": {"attributes": self._resource},
                    "scopeSpans": [{"scope": {"name": "specdeploy"}, "spans": spans}],
                }
            ]
        }
        request = urllib.request.Request(self._endpoint, json.dumps(body).encode(), self._headers)  # noqa: S310 - checked
        try:
            with _OPENER.open(request, timeout=timeout_s) as response:
                response.read(_MOST_ANSWERED)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._drop(len(spans), f"{self._endpoint} did not take them: {error}")

    def _drop(self, count: int, why: str) -> None:
        """Count spans that are lost, and say so once in a while."""
        with self._changed:
            self._lost += count
            self._why = why if count else self._why
            now_s = time.monotonic()
            if not self._lost or now_s - self._complained_s < _COMPLAINT_S:
                return
            self._complained_s = now_s
            lost, self._lost = self._lost, 0
        self._warn(f"{lost} spans were dropped: {self._why}")
