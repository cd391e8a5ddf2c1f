"""Schedulers on in-memory ports for tests of the driver: one thread, a clock that is moved by hand, faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from services.runtime import codec
from services.runtime.ports import (
    EventLog,
    InputRecord,
    Leadership,
    LogRecord,
    Outgoing,
    PortError,
    Snapshots,
)
from services.runtime.reader import Folded, LogReader
from services.scheduler.core import Step
from services.scheduler.driver import Scheduler
from services.scheduler.phases import Ports, Rules
from statemachines import invariants, snapshot
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.values import JobSpec
from tests.fakes.memory import (
    ManualClock,
    MemoryCell,
    MemoryEventLog,
    MemoryInputs,
    MemoryPublisher,
    MemorySnapshots,
)
from tidemill.v1 import common_pb2, requests_pb2

CELL = "test"


class Crash(BaseException):
    """The process dies here: nothing catches it."""


class Notes:
    """A Watch that remembers."""

    def __init__(self) -> None:
        self.led: list[Entry] = []
        self.voids = 0
        self.weathered: list[str] = []
        self.folded: list[Folded] = []
        self.decided_inputs = 0

    def read(self, folded: Folded) -> None:
        self.folded.append(folded)

    def leads(self, entry: Entry) -> None:
        self.led.append(entry)

    def begins(self) -> None:
        """Nothing is measured."""

    def decided(self, step: Step, inputs: int) -> None:
        self.decided_inputs += inputs

    def confirmed(self, entry: Entry | None) -> None:
        self.voids += entry is None

    def weather(self, what: str, error: PortError) -> None:
        self.weathered.append(f"{what}: {error}")


class Ballot:
    """Leadership as the test says: everyone wins, and holds until it is taken."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.held = True
        self.resigned = False

    def campaign(self, timeout_s: float) -> int | None:
        return self.term if self.held else None

    def holds(self) -> bool:
        return self.held

    def resign(self) -> None:
        self.held, self.resigned = False, True

    def close(self) -> None:
        self.held = False


class FaultyLog:
    """A log whose appends do what the test says, one word an append: ok, before, after (crash), lost, unknown (error)."""

    def __init__(self, log: EventLog, words: Sequence[str] = ()) -> None:
        self._log = log
        self.words = list(words)
        self.appends = 0

    def append(self, value: bytes) -> None:
        word = self.words[self.appends] if self.appends < len(self.words) else "ok"
        self.appends += 1
        if word == "before":
            raise Crash
        if word == "lost":
            raise PortError("the connection was cut before the record was stored")
        self._log.append(value)
        if word == "after":
            raise Crash
        if word == "unknown":
            raise PortError("the connection was cut after the record was stored")

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        return self._log.read(offset, limit=limit, timeout_s=0)

    def close(self) -> None:
        """Nothing to give back."""


class Stage:
    """One cell's storage, and schedulers on it."""

    def __init__(self) -> None:
        self.cell = MemoryCell()
        self.clock = ManualClock()
        self.publisher = MemoryPublisher(self.cell)
        self.requests = 0

    def scheduler(
        self,
        name: str,
        leadership: Leadership,
        *,
        words: Sequence[str] = (),
        notes: Notes | None = None,
        log: EventLog | None = None,
        snapshots: Snapshots | None = None,
        **rules: Any,
    ) -> Scheduler:
        ports = Ports(
            log or FaultyLog(MemoryEventLog(self.cell), words),
            _NoWait(self.cell),
            snapshots or MemorySnapshots(self.cell),
            leadership,
            self.clock,
        )
        return Scheduler(CELL, ports, Rules(name, f"nonce-{name}", **rules), notes or Notes())

    def leader(self, name: str, term: int, **options: Any) -> Scheduler:
        """One that leads."""
        scheduler = self.scheduler(name, Ballot(term), **options)
        turns(scheduler, until=lambda: scheduler.leads)
        return scheduler

    def submit(self, job: str, spec: JobSpec) -> str:
        """A submission in the requests topic; answers its key."""
        wanted = common_pb2.JobSpec(**codec.encode_value(spec))
        return self.ask(requests_pb2.SubmitJob(job=job, spec=wanted))

    def ask(self, kind: Message) -> str:
        self.requests += 1
        key = f"user:alice/{self.requests}"
        request = requests_pb2.Request(
            request=key, principal=common_pb2.Principal(name="user:alice")
        )
        name = next(
            field.name
            for field in request.DESCRIPTOR.oneofs_by_name["kind"].fields
            if field.message_type is kind.DESCRIPTOR
        )
        getattr(request, name).CopyFrom(kind)
        self.publisher.publish([Outgoing("requests", b"", request.SerializeToString())])
        return key

    def read(self) -> Cluster:
        """What any reader makes of the log."""
        cluster = Cluster(CELL)
        LogReader(MemoryEventLog(self.cell), cluster).read_to_end()
        assert invariants.violations(cluster) == []
        return cluster


class _NoWait(MemoryInputs):
    def read(
        self, positions: Mapping[tuple[str, int], int], *, limit: int, timeout_s: float
    ) -> Sequence[InputRecord]:
        return super().read(positions, limit=limit, timeout_s=0)


def turns(scheduler: Scheduler, *, until: Callable[[], bool], most: int = 100) -> None:
    """Turns until something holds; fails when it does not within `most`."""
    for _ in range(most):
        if until():
            return
        scheduler.turn(0)
    raise AssertionError(f"not within {most} turns; the scheduler is {scheduler.phase}")


def settle(scheduler: Scheduler, stage: Stage) -> None:
    """Turns until every input is decided and every entry read back."""

    def settled() -> bool:
        ends = {key: len(records) for key, records in stage.cell.records.items() if records}
        decided = all(
            scheduler.cluster.positions.get(key, 0) == end
            for key, end in ends.items()
            if key[0] in {"requests", "reports", "verdicts"}
        )
        return decided and scheduler.cluster.offset == len(stage.cell.log) - 1

    turns(scheduler, until=settled)


def same(first: Cluster, second: Cluster) -> bool:
    """Equal state digests."""
    return snapshot.digest(first) == snapshot.digest(second)
