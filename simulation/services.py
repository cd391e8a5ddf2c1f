"""Scheduler and health as simulated processes: the real drivers, cores and rules on simulated ports."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from importlib import resources

from services.health.driver import Processor
from services.health.judge import Ports as HealthPorts
from services.health.rules import Rules as HealthRules
from services.health.table import parse
from services.runtime.ports import InputGapError, PortError
from services.runtime.reader import Folded
from services.scheduler.core import Step
from services.scheduler.driver import Scheduler
from services.scheduler.exits import SchedulerExitError
from services.scheduler.phases import Leading, Ports, Rules
from simulation.election import Election, SimLeadership
from simulation.process import Process, SimClock
from simulation.storage import Broker, SimEventLog, SimInputs, SimPublisher, SimSnapshots
from statemachines.cluster import Cluster
from statemachines.entry import Entry, Recorded
from statemachines.policy import Policy

_RETRY_MS = 100
# A standby stands for election this often; a leader without work looks this often, a third of its lease.
_LOOK_MS = 1_000
_LEADER_READS = ("requests", "reports", "verdicts")


def _nothing(_cluster: Cluster) -> tuple[Recorded, ...]:
    return ()


class SchedulerProcess(Process):
    """The real driver. `exits` says why it ended itself, each time."""

    def __init__(
        self,
        broker: Broker,
        election: Election,
        name: str,
        clock: SimClock,
        *,
        cell: str,
        policy: Policy,
        snapshot_entries: int,
        crash_ppm: int,
    ) -> None:
        super().__init__(broker.kernel, name, crash_ppm=crash_ppm)
        self.scheduler: Scheduler | None = None
        self.exits: list[str] = []
        # What an operator lets the next leader record, and the gap that made it necessary.
        self.said: Callable[[Cluster], tuple[Recorded, ...]] = _nothing
        self.gap: InputGapError | None = None
        self._broker, self._election, self._clock = broker, election, clock
        self._cell, self._policy, self._snapshot_entries = cell, policy, snapshot_entries
        self._nonce = itertools.count(1)
        broker.on_record(("log",), self._woken)
        broker.on_record(_LEADER_READS, self._fed)

    @property
    def leads(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.up and self.scheduler is not None and self.scheduler.leads

    def begin(self) -> None:
        """Recover and stand by."""
        self.scheduler = None
        ports = Ports(
            log=SimEventLog(self._broker, self.point),
            inputs=SimInputs(self._broker, self.point),
            snapshots=SimSnapshots(self._broker, self.point),
            leadership=SimLeadership(self._election),
            clock=self._clock,
        )
        rules = Rules(
            leader=self.name,
            nonce=f"{self.name}/{next(self._nonce)}",
            policy=self._policy,
            snapshot_entries=self._snapshot_entries,
            said=self.said,
        )
        try:
            self.scheduler = Scheduler(self._cell, ports, rules, _Silent())
        except PortError:
            self.crash()

    def turn(self) -> None:
        """One turn of the driver."""
        if self.scheduler is None:
            return
        wait_ms = _LOOK_MS
        try:
            self.scheduler.turn(0.0)
            wait_ms = self._idle_ms()
        except SchedulerExitError as why:
            self._ends(type(why).__name__)
            return
        except InputGapError as gap:  # An end of the process, as its exit code says.
            self._ends("InputGapError")
            self.gap = gap
            return
        except PortError:
            wait_ms = _RETRY_MS
        self.wake(wait_ms)

    def ended(self) -> None:
        """A crash leaves its lease to run out."""
        self.scheduler = None

    def _ends(self, why: str) -> None:
        self.exits.append(why)
        self.kernel.note(f"{self.name} ends: {why}")
        self.crash()

    def _idle_ms(self) -> int:
        assert self.scheduler is not None, "only called while it runs"
        phase = self.scheduler._phase  # noqa: SLF001 - a simulation looks inside
        if not isinstance(phase, Leading):
            return 5 if self.scheduler.phase == "opening" else _LOOK_MS
        core = phase._core  # noqa: SLF001
        if core.in_flight:
            return 5
        now_ms = phase.now_ms()
        due_ms = core.next_due_ms(now_ms)
        return _LOOK_MS if due_ms is None else max(1, min(_LOOK_MS, due_ms - now_ms))

    def _woken(self) -> None:
        if self.up:
            self.wake(1)

    def _fed(self) -> None:
        if self.leads:
            self.wake(1)


class _Silent:
    """Looks on and says nothing."""

    def read(self, folded: Folded) -> None:
        """See Watch."""

    def leads(self, entry: Entry) -> None:
        """See Watch."""

    def begins(self) -> None:
        """See Watch."""

    def decided(self, step: Step, inputs: int) -> None:
        """See Watch."""

    def confirmed(self, entry: Entry | None) -> None:
        """See Watch."""

    def weather(self, what: str, error: PortError) -> None:
        """See Watch."""

    def observed(self, topic: str, count: int) -> None:
        """See health's Watch."""

    def unreadable(self, topic: str, why: str) -> None:
        """See health's Watch."""

    def skipped(self, gap: InputGapError) -> None:
        """See health's Watch."""

    def judged(self, verdicts: object) -> None:
        """See health's Watch."""


class HealthProcess(Process):
    """The real processor; it looks once a second, and when telemetry comes."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        clock: SimClock,
        *,
        cell: str,
        rules: HealthRules,
        crash_ppm: int,
    ) -> None:
        super().__init__(broker.kernel, name, crash_ppm=crash_ppm)
        self.processor: Processor | None = None
        self._broker, self._clock, self._cell, self._rules = broker, clock, cell, rules
        shipped = resources.files("services.health").joinpath("signals.toml")
        self._table = parse(shipped.read_text(encoding="utf-8"), "signals.toml")

    def begin(self) -> None:
        """Fold the log, find the ends of telemetry."""
        self.processor = None
        ports = HealthPorts(
            log=SimEventLog(self._broker, self.point),
            snapshots=SimSnapshots(self._broker, self.point),
            inputs=SimInputs(self._broker, self.point),
            publisher=SimPublisher(self._broker, self.point),
            clock=self._clock,
        )
        try:
            self.processor = Processor(self._cell, ports, self._rules, self._table, _Silent())
        except PortError:
            self.crash()

    def turn(self) -> None:
        """Read and judge."""
        if self.processor is None:
            return
        with contextlib.suppress(PortError):  # Tried again at the next look.
            self.processor.turn(0.0)
        self.wake(1_000)

    def ended(self) -> None:
        """All in memory is gone."""
        self.processor = None
