"""`tidemilld projector`: flattens the log to one record a fact, for kcat, Connect, SQL and lakehouses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from msgspec import Meta
from prometheus_client import Counter, Gauge

from services.projector.core import Projection
from services.projector.driver import Ports, Projector
from services.runtime.exits import ExitCode
from services.runtime.patience import Patience
from services.runtime.ports import PortError
from services.runtime.projection import FlatFact, ParkedInput
from services.runtime.settings import CellSettings, load
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.topics import LEADER_INPUTS
from services.runtime.wiring import open_cell

TURN_S: Final = 0.5


class ProjectorSettings(CellSettings, frozen=True, kw_only=True):
    """What a projector is told."""

    weather_patience_s: Annotated[
        int, Meta(ge=1, description="Seconds of failing storage or broker after which it ends")
    ] = 60


class Observer:
    """Metrics, health and log lines of a projector."""

    def __init__(self, telemetry: Telemetry) -> None:
        registry = telemetry.registry
        self._log, self._health = telemetry.log, telemetry.health
        self._facts = Counter(
            "tidemill_projector_facts_total", "Facts stored.", ["type"], registry=registry
        )
        self._parked = Counter(
            "tidemill_projector_parked_total", "Copies of parked inputs stored.", registry=registry
        )
        self._offset = Gauge(
            "tidemill_projector_log_offset", "Next record of the log to read.", registry=registry
        )
        self._failures = Counter(
            "tidemill_projector_failures_total", "Turns that weather ended.", registry=registry
        )
        self._health.wait("log", "catching up")

    def projected(
        self, facts: Sequence[FlatFact], parked: Sequence[ParkedInput], projection: Projection
    ) -> None:
        """Count what is stored."""
        for fact in facts:
            self._facts.labels(fact.kind).inc()
        for each in parked:
            self._parked.inc()
            self._log.warning(
                "input_parked", topic=each.topic, partition=each.partition, offset=each.position,
                reason=each.reason, whole=each.whole,
            )  # fmt: skip
        self._offset.set(projection.position)

    def at_end(self, projection: Projection) -> None:
        """Ready: it has caught up once."""
        self._offset.set(projection.position)
        self._health.ready("log")

    def failing(self, error: PortError) -> None:
        """Weather; it tries again."""
        self._failures.inc()
        self._health.wait("weather", str(error))
        self._log.warning("projector_waits", why=str(error))

    def turned(self) -> None:
        """The weather is good."""
        self._health.ready("start")
        self._health.ready("weather")


def main(argv: Sequence[str]) -> int:
    """Run until asked to stop; answers the exit code. Errors that end it say what to do."""
    settings = load(ProjectorSettings, "projector", argv, summary=__doc__ or "")
    shutdown = Shutdown()
    shutdown.install()
    with contextlib.ExitStack() as closing:
        telemetry = Telemetry(settings, "projector")
        closing.callback(telemetry.close)
        run(settings, telemetry, until=lambda: shutdown.asked, wait=shutdown.wait)
    return ExitCode.STOPPED


def run(
    settings: ProjectorSettings,
    telemetry: Telemetry,
    *,
    until: Callable[[], bool],
    wait: Callable[[float], bool],
) -> None:
    """Work until `until` holds; `wait` sleeps between tries in bad weather. Raises SettingsError, PortError."""
    observer = Observer(telemetry)
    with contextlib.ExitStack() as closing:
        cell = open_cell(settings, "projector")
        closing.callback(cell.close)
        inputs = cell.inputs([topic.suffix for topic in LEADER_INPUTS])
        ports = Ports(cell.event_log(), inputs, cell.fact_sink())
        for port in (ports.sink, ports.inputs, ports.log):
            closing.callback(port.close)
        projector = Projector(settings.cell, ports, observer)
        telemetry.log.info("projector_starts", log=settings.log)
        patience = Patience(settings.weather_patience_s, observer.failing)
        _work(projector, observer, patience, until=until, wait=wait)


def _work(
    projector: Projector,
    observer: Observer,
    patience: Patience,
    *,
    until: Callable[[], bool],
    wait: Callable[[float], bool],
) -> None:
    """Turn after turn."""
    while not until():
        try:
            projector.turn(TURN_S)
        except PortError as error:
            wait(patience.failed(error))
        else:
            observer.turned()
            patience.well()
