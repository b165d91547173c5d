"""The server's own view of a load test: its counters between blocks, and its gauges every second."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from typing import TYPE_CHECKING, Final, Self

from specdeploy.bench.server_window import GaugeLog
from specdeploy.deploy.counts import gauges, read_counts
from specdeploy.deploy.metrics import parse_metrics
from specdeploy.errors import SpecdeployError
from specdeploy.pipeline.subject import connect
from specdeploy.system.gpus import GpuTelemetry
from specdeploy.triton.client.http import host_and_port

if TYPE_CHECKING:
    from types import TracebackType

    from specdeploy.deploy.counts import ServerCounts
    from specdeploy.deploy.metrics import Sample
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.system.clock import Clock
    from specdeploy.triton.client import TritonClient

#: A server that does not tell its counters in this time is not waited for.
_TIMEOUT_S: Final = 2.0
#: Triton counts a request a moment after its answer is on the way.
_SETTLE_S: Final = 0.01
_READS: Final = 10


class ServerSide:
    """Reads what a Triton server counts and measures; a context manager, within which gauges are read.

    Args:
        endpoints: Where it answers.

        clock: The clock of the records.

        period_s: Seconds between two readings of the gauges; 0 reads none.
    """

    def __init__(self, endpoints: Addresses, clock: Clock, *, period_s: float) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._period_s = period_s
        # The GPUs of this machine are the server's only where the server is.
        self._here = _is_here(host_and_port(endpoints.http_url, 8000)[0])
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.readings = GaugeLog()

    def __enter__(self) -> Self:
        """Begin to read gauges."""
        if self._period_s:
            self._thread = threading.Thread(target=self._read_gauges, name="server-gauges", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Read no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * _TIMEOUT_S)

    def counts(self) -> ServerCounts | None:
        """Return the counters, once two readings agree; None when the server does not tell them."""
        last = self._counts()
        for _ in range(_READS):
            if last is None or self._over.wait(_SETTLE_S):
                return last
            found = self._counts()
            if found == last:
                return found
            last = found
        return last

    def _counts(self) -> ServerCounts | None:
        try:
            with connect(self._endpoints, _TIMEOUT_S) as client:
                return read_counts(client.every_statistics(), self._samples(client))
        except SpecdeployError:
            return None

    def _samples(self, client: TritonClient) -> tuple[Sample, ...]:
        """Return what the metrics page says; nothing when there is none."""
        if self._endpoints.metrics_url is None:
            return ()
        try:
            return parse_metrics(client.metrics_text())
        except SpecdeployError:
            return ()

    def _read_gauges(self) -> None:
        with GpuTelemetry() if self._here else contextlib.nullcontext() as gpus:
            while not self._over.wait(self._period_s):
                with connect(self._endpoints, _TIMEOUT_S) as client:
                    values = gauges(self._samples(client))
                values |= gpus.read() if gpus is not None else {}
                if values:
                    self.readings.add(self._clock.monotonic(), values)


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
