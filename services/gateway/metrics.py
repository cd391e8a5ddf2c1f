"""What a gateway measures of itself. No job, node or principal is a label; state gauges are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.gateway.driver import Driver

_WRITE_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_RECORD_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Metrics:
    """Registers everything once; `watch` adds the gauges of a driver."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._requests = Counter(
            "tidemill_gateway_requests", "Calls that ended.", ["method", "code"], registry=registry
        )
        self._write_seconds = Histogram(
            "tidemill_gateway_write_seconds",
            "Time of one durable write.",
            buckets=_WRITE_BUCKETS,
            registry=registry,
        )
        self._write_records = Histogram(
            "tidemill_gateway_write_records",
            "Records that one durable write carried.",
            buckets=_RECORD_BUCKETS,
            registry=registry,
        )
        self._failed_writes = Counter(
            "tidemill_gateway_failed_writes", "Writes that failed.", registry=registry
        )

        self._outside = Counter(
            "tidemill_gateway_outside",
            "Records of the outside topic, by what became of them.",
            ["result"],
            registry=registry,
        )

    def outside(self, result: str) -> None:
        """A record of the outside topic was taken, or refused with a code."""
        self._outside.labels(result).inc()

    def called(self, method: str, code: str) -> None:
        """A call ended; `method` is "/package.Service/Method"."""
        self._requests.labels(method.rpartition(".")[2], code).inc()

    def wrote(self, seconds: float, records: int, *, ok: bool) -> None:
        """A write came to an end."""
        self._write_seconds.observe(seconds)
        self._write_records.observe(records)
        if not ok:
            self._failed_writes.inc()

    def watch(self, driver: Driver) -> None:
        """Gauges of the state of a driver."""
        core = driver.core
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("fold_offset", "Offset of the last record folded.", lambda: core.cluster.offset),
            ("voided_entries", "Records of the log that were void.", lambda: core.cluster.voided),
            ("log_age_seconds", "Since the log was last read to its end.", driver.log_age_s),
            ("attached_nodes", "Nodes attached here.", lambda: len(core.sessions)),
            ("watchers", "Streams that watch jobs.", lambda: len(core.watchers)),
            ("open_requests", "Requests that wait for the log.", lambda: len(core.requests)),
            ("jobs", "Jobs in hot state.", lambda: len(core.cluster.jobs)),
            ("nodes", "Nodes known.", lambda: len(core.cluster.nodes)),
        )
        for name, about, value in gauges:
            gauge = Gauge(f"tidemill_gateway_{name}", about, registry=self._registry)
            gauge.set_function(value)
