"""The services of a cell as simulated processes: the real scheduler, health processor and gateway core on simulated ports."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from importlib import resources

from google.protobuf.message import Message

from services.gateway.auth import Caller
from services.gateway.core import GatewayCore
from services.gateway.effects import Now, Outbox, Write
from services.gateway.refusal import Refusal
from services.health.driver import Ports as HealthPorts
from services.health.driver import Processor
from services.health.rules import Rules as HealthRules
from services.health.table import parse
from services.runtime import codec
from services.runtime.ports import InputGapError, PortError
from services.runtime.reader import Folded
from services.scheduler.core import Step
from services.scheduler.driver import Scheduler
from services.scheduler.exits import SchedulerExitError
from services.scheduler.phases import Leading, Ports, Rules
from simulation.election import Election, SimLeadership
from simulation.process import Process, SimClock
from simulation.storage import Broker, SimBlobs, SimEventLog, SimInputs, SimPublisher, SimSnapshots
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.policy import Policy

_RETRY_MS = 100
# A standby stands for election this often; a leader without work looks this often.
_LOOK_MS = 500


class SchedulerProcess(Process):
    """The real driver. `ends` is told why it ended itself."""

    def __init__(
        self,
        broker: Broker,
        election: Election,
        name: str,
        clock: SimClock,
        *,
        cell: str,
        policy: Policy,
        crash_ppm: int,
    ) -> None:
        super().__init__(broker.kernel, name, crash_ppm=crash_ppm)
        self.scheduler: Scheduler | None = None
        self.exits: list[str] = []
        self._broker, self._election, self._clock = broker, election, clock
        self._cell, self._policy = cell, policy
        self._nonce = itertools.count(1)
        broker.on_record(self._woken)

    @property
    def leads(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.up and self.scheduler is not None and self.scheduler.leads

    def begin(self) -> None:
        """Recover and stand by."""
        self.scheduler = None
        ports = Ports(
            log=SimEventLog(self._broker, self.point),
            inputs=SimInputs(self._broker, self.point, {}),
            snapshots=SimSnapshots(self._broker, self.point),
            leadership=SimLeadership(self._election),
            clock=self._clock,
        )
        rules = Rules(
            leader=self.name,
            nonce=f"{self.name}/{next(self._nonce)}",
            policy=self._policy,
            snapshot_entries=400,
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
            self.exits.append(type(why).__name__)
            self.kernel.note(f"{self.name} ends: {type(why).__name__}")
            self.crash()
            return
        except PortError:
            wait_ms = _RETRY_MS
        self.wake(wait_ms)

    def ended(self) -> None:
        """A crash leaves its lease to run out."""
        self.scheduler = None

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

    def _woken(self, topic: str) -> None:
        if self.up and topic in _SCHEDULER_READS:
            self.wake(1)


_SCHEDULER_READS = frozenset({"log", "requests", "reports", "verdicts"})


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
            inputs=SimInputs(self._broker, self.point, {}),
            publisher=SimPublisher(self._broker, self.point, {}),
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


class GatewayProcess(Process):
    """The real core with a driver on virtual time: one write after the other, the log read when it grows."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        clock: SimClock,
        *,
        cell: str,
        cell_key: bytes,
        crash_ppm: int,
    ) -> None:
        super().__init__(broker.kernel, name, crash_ppm=crash_ppm)
        self.core: GatewayCore | None = None
        self._broker, self._clock, self._cell, self._key = broker, clock, cell, cell_key
        self._ids = itertools.count(1)
        self._calls: dict[int, Callable[[Message | Refusal], None]] = {}
        self._numbers = itertools.count(1)
        self._drains: dict[Outbox, Callable[[Message | None], None]] = {}
        self._waiting: list[Write] = []
        self._writing = False
        self._tick_at_ms = -1
        self.lost: list[Callable[[], None]] = []
        broker.on_record(self._woken)

    def begin(self) -> None:
        """Fold the log from its start."""
        cluster = Cluster(self._cell, track=True)
        self.core = GatewayCore(
            cluster,
            name=self.name,
            cell_key=self._key,
            new_id=lambda: f"{self.name}-{next(self._ids)}",
        )
        self._log = SimEventLog(self._broker, self.point)
        self._publisher = SimPublisher(self._broker, self.point, {})
        self._blobs = SimBlobs(self._broker, self.point)
        self._calls, self._drains, self._waiting, self._writing = {}, {}, [], False
        self._tick_at_ms = -1

    def turn(self) -> None:
        """Follow the log."""
        assert self.core is not None, "begun"
        try:
            while records := self._log.read(self.core.cluster.offset + 1, limit=256, timeout_s=0):
                for record in records:
                    self.core.fold(_decoded(record.offset, record.value))
            self.core.log_read(self.now())
        except PortError:
            self.wake(_RETRY_MS)
        self.perform()
        self.wake(1_000)

    def ended(self) -> None:
        """Connections break."""
        self.core = None
        lost, self.lost = self.lost, []
        for each in lost:
            each()

    def now(self) -> Now:
        """The time of an input."""
        return Now(self._clock.wall_ms(), self._clock.monotonic_ms())

    def call(
        self,
        ask: Callable[[GatewayCore, int, Now], None],
        answered: Callable[[Message | Refusal], None],
    ) -> None:
        """A unary call arrives; `answered` is called once, unless the process ends first."""
        assert self.core is not None, "only called while up"
        number = next(self._numbers)
        self._calls[number] = answered
        try:
            ask(self.core, number, self.now())
        except Refusal as refusal:
            self._calls.pop(number)(refusal)
        self.perform()

    def drain(self, outbox: Outbox, send: Callable[[Message | None], None]) -> None:
        """Give what the stream has to send to `send`; None when it was cut."""
        self._drains[outbox] = send

    def perform(self) -> None:
        """Do what the core asked for. Called after every input."""
        core = self.core
        if core is None:
            return
        writes, answers, ready = core.effects.take()
        self._waiting += writes
        if self._waiting and not self._writing:
            self._writing = True
            self.later(2, self._commit)
        for number, result in answers:
            answered = self._calls.pop(number, None)
            if answered is not None:
                answered(result)
        for outbox in ready:
            self._pull(outbox)
        due_ms = core.effects.due_ms()
        if due_ms is not None:
            self._tick_by(due_ms)

    def _pull(self, outbox: Outbox) -> None:
        send = self._drains.get(outbox)
        if send is None:
            return
        try:
            while (message := outbox.pull(self.now())) is not None:
                send(message)
        except Refusal:
            del self._drains[outbox]
            send(None)

    def _commit(self) -> None:
        batch, self._waiting = self._waiting, []
        outcome: PortError | None = None
        try:
            blobs = [blob for write in batch for blob in write.blobs]
            if blobs:
                self._blobs.put(blobs)
            self._publisher.publish([record for write in batch for record in write.records])
        except PortError as error:
            outcome = error
        self.later(2, lambda: self._committed(batch, outcome))

    def _committed(self, batch: list[Write], outcome: PortError | None) -> None:
        assert self.core is not None, "of this life"
        self._writing = False
        for write in batch:
            self.core.effects.written(write.id, outcome, self.now())
        self.perform()

    def _tick_by(self, due_ms: int) -> None:
        now_ms = self.kernel.now_ms
        if now_ms < self._tick_at_ms <= due_ms:
            return  # A tick that comes too early looks again.
        self._tick_at_ms = max(due_ms, now_ms + 1)
        self.later(self._tick_at_ms - now_ms, self._ticked)

    def _ticked(self) -> None:
        assert self.core is not None, "of this life"
        self._tick_at_ms = -1
        self.core.effects.tick(self.now())
        self.perform()

    def _woken(self, topic: str) -> None:
        if self.up and topic == "log":
            self.wake(1)


def _decoded(offset: int, stored: bytes) -> Entry:
    try:
        return codec.decode_entry(offset, stored)
    except codec.CodecError:
        return codec.unreadable(offset)


ADMIN = Caller("user:admin", "token", frozenset({"admin"}))
AGENT = Caller("service:agent", "node-token", frozenset({"node"}))
