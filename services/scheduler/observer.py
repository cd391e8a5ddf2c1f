"""What looks on while a scheduler works: log lines and metrics, behind the Watch that the driver calls."""

from __future__ import annotations

import time
from typing import Final

from services.runtime.ports import Inputs, PortError
from services.runtime.reader import Folded
from services.runtime.telemetry import Telemetry
from services.runtime.topics import LEADER_INPUTS
from services.scheduler.core import Step
from services.scheduler.driver import Scheduler
from services.scheduler.metrics import CellCollector, Metrics
from services.scheduler.narrator import Narrator
from statemachines.cluster import Cluster
from statemachines.entry import Entry

_LAG_EVERY_S: Final = 5.0


class Observer:
    """A Watch on one scheduler; `attach` it once the scheduler is made."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._log = telemetry.log
        self._metrics = Metrics(telemetry.registry)
        self._narrator = Narrator(telemetry.log, time.monotonic)
        self._scheduler: Scheduler | None = None
        self._lag_at = 0.0
        self._phase = ""

    def attach(self, scheduler: Scheduler) -> None:
        """Say how it recovered, and serve the state of its cell."""
        self._scheduler = scheduler
        recovered, cluster = scheduler.recovered, scheduler.cluster
        for why in recovered.passed_over:
            self._log.warning("snapshot_passed_over", why=why)
        self._log.info(
            "recovered",
            snapshot_offset=recovered.snapshot_offset,
            records=recovered.records,
            offset=cluster.offset,
            term=cluster.term,
            jobs=len(cluster.jobs),
        )
        self._telemetry.registry.register(CellCollector(lambda: scheduler.cluster))

    @property
    def _cluster(self) -> Cluster:
        assert self._scheduler is not None, "attach comes before the first turn"
        return self._scheduler.cluster

    # --- Watch

    def read(self, folded: Folded) -> None:
        """A standby folds in silence; what is void is counted and, being rare, said."""
        if folded.void:
            self._void(folded.entry.offset, folded.entry.term, folded.void)

    def leads(self, entry: Entry) -> None:
        """Our term has begun."""
        self._metrics.leader.set(1)
        self._narrator.tell(entry)
        self._metrics.accepted(entry, self._cluster)

    def begins(self) -> None:
        """The clock of a decision starts."""
        self._metrics.begins()

    def decided(self, step: Step, inputs: int) -> None:
        """Counted; what was decided is said once it is in the log."""
        self._metrics.decided(step, inputs)

    def confirmed(self, entry: Entry | None) -> None:
        """Ours: said and counted. None: a void record."""
        if entry is None:
            self._void(self._cluster.offset, 0, "does not extend the chain")
            return
        self._narrator.tell(entry)
        self._metrics.accepted(entry, self._cluster)

    def weather(self, what: str, error: PortError) -> None:
        """It will be tried again."""
        self._metrics.weather.labels(what).inc()
        self._log.warning("weather", what=what, error=str(error))

    # --- the shell

    def turned(self, inputs: Inputs) -> None:
        """A turn went well: readiness, phase and, now and then, how far behind the inputs we are."""
        assert self._scheduler is not None, "attach comes before the first turn"
        health, phase = self._telemetry.health, self._scheduler.phase
        health.ready("weather")
        if phase != self._phase:
            self._phase = phase
            self._metrics.leader.set(phase == "leading")
            self._log.info(
                "phase", phase=phase, term=self._cluster.term, offset=self._cluster.offset
            )
        health.ready()
        if self._scheduler.leads and time.monotonic() - self._lag_at >= _LAG_EVERY_S:
            self._lag_at = time.monotonic()
            self._measure_lag(inputs)

    def failing(self, error: PortError) -> None:
        """A turn failed: not ready until one goes well again."""
        self.weather("turn", error)
        self._telemetry.health.wait("weather", str(error))

    def ended(self, error: BaseException, code: int) -> None:
        """The process ends."""
        self._log.error("scheduler_ends", code=code, why=str(error) or type(error).__name__)

    def _measure_lag(self, inputs: Inputs) -> None:
        positions = self._cluster.positions
        for topic in LEADER_INPUTS:
            behind = 0
            for partition in range(inputs.partitions(topic.suffix)):
                end = inputs.end(topic.suffix, partition)
                behind += max(0, end - positions.get((topic.suffix, partition), 0))
            self._metrics.lag.labels(topic.suffix).set(behind)

    def _void(self, offset: int, term: int, why: str) -> None:
        self._metrics.voids.labels(_reason(why)).inc()
        self._log.warning("void_entry", offset=offset, term=term, why=why)


def _reason(why: str) -> str:
    """A label of few values: the words before what differs from record to record."""
    if why.startswith("term"):
        return "term over"
    if why.startswith("of cell"):
        return "other cell"
    return why.split(":", maxsplit=1)[0]
