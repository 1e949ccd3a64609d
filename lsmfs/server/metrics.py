"""The server's counts in Prometheus' format, summed over its workers.

    lsmfs_requests_total{operation,status}     lsmfs_request_seconds{operation}     lsmfs_requests_in_flight
    lsmfs_request_bytes_total                  lsmfs_response_bytes_total           lsmfs_errors_total{operation}

Each worker counts into files of its own in a folder that all share, and any of them sums them up when asked, also
those of workers that have ended. prometheus_client decides that when it is imported, by PROMETHEUS_MULTIPROC_DIR:
so `lsmfs.server.worker` sets it before, and without it (in a test) the counts are of this process alone.

`operation` is one of a fixed set of names that the application chooses, never a path: a label's values stay few.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from lsmfs.asgi import Send

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# A stat from memory is below a millisecond; a large body takes its time.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SERVER_ERROR = 500


class _Sum(Collector):
    """The counts of all processes, by their files. A worker that has just begun, or was killed as it did, has a file
    without a byte in it, on which prometheus_client's own collector fails."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Metric]:
        files = [str(path) for path in self._folder.glob("*.db") if _size_of(path)]
        summed: Iterable[Metric] = MultiProcessCollector.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
        return summed


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a gauge of a worker that has ended
        return 0


class Metrics:
    """The counts of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "lsmfs_requests", "Requests answered.", ("operation", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "lsmfs_request_seconds",
            "From the request's headers to the end of its answer.",
            ("operation",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._errors = Counter(
            "lsmfs_errors", "Requests answered with 5xx, or not at all.", ("operation",), registry=self.registry
        )
        self._received = Counter("lsmfs_request_bytes", "Bytes of bodies received.", registry=self.registry)
        self._sent = Counter("lsmfs_response_bytes", "Bytes of bodies sent.", registry=self.registry)
        self.in_flight = Gauge(
            "lsmfs_requests_in_flight", "Requests under way.", registry=self.registry, multiprocess_mode="livesum"
        )
        # labels() costs more than counting does.
        self._of: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, operation: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count a request."""
        known = self._of.get((operation, status))
        if known is None:
            known = self._requests.labels(operation, str(status)), self._seconds.labels(operation)
            self._of[operation, status] = known
        known[0].inc()
        known[1].observe(seconds)
        if received:
            self._received.inc(received)
        if sent:
            self._sent.inc(sent)
        if status >= SERVER_ERROR:
            self._errors.labels(operation).inc()

    def text(self) -> bytes:
        """What /metrics answers: the sum over all workers."""
        registry = self.registry
        if folder := os.environ.get(FOLDER_VARIABLE):
            registry = CollectorRegistry()
            registry.register(_Sum(folder))
        return generate_latest(registry)

    async def endpoint(self, scope: Any, receive: Any, send: Send) -> None:
        """The ASGI application of /metrics. Whether the caller may ask is for the application to say."""
        body = self.text()
        headers = [
            (b"content-type", CONTENT_TYPE_LATEST.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
