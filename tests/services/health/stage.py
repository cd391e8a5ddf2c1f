"""A whole health processor on ports in memory, with a log that a test writes and a clock that it moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import Message

from services.health.driver import Processor
from services.health.judge import Ports
from services.health.messages import Verdict
from services.health.rules import Rules
from services.runtime import topics
from services.runtime.ports import InputGapError, Outgoing
from tests.fakes.memory import (
    ManualClock,
    MemoryCell,
    MemoryEventLog,
    MemoryInputs,
    MemoryPublisher,
    MemorySnapshots,
)
from tests.services.health.bed import TABLE
from tests.statemachines.world import CELL, World
from tidemill.v1 import telemetry_pb2, verdicts_pb2

RULES: Final = Rules(judge="judge-1")


class Notes:
    """A Watch that keeps what it was told."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.dropped: list[tuple[str, str]] = []
        self.gaps: list[InputGapError] = []
        self.verdicts: list[Verdict] = []

    def observed(self, topic: str, count: int) -> None:
        self.counts[topic] = self.counts.get(topic, 0) + count

    def unreadable(self, topic: str, why: str) -> None:
        self.dropped.append((topic, why))

    def skipped(self, gap: InputGapError) -> None:
        self.gaps.append(gap)

    def judged(self, verdicts: Sequence[Verdict]) -> None:
        self.verdicts += verdicts


class Stage:
    """One cell with one node, n1, unless a test says more."""

    def __init__(self, partitions: int = 1) -> None:
        self.cell = MemoryCell({topics.BEATS.suffix: partitions})
        self.clock = ManualClock()
        self.world = World()
        self.world.open_term()
        self.world.queue()
        self.world.node("n1")
        self.publisher = MemoryPublisher(self.cell)
        self.notes = Notes()
        self._logged = 0

    def log(self) -> None:
        """What the world recorded is in the log."""
        log = MemoryEventLog(self.cell)
        for stored in self.world.stored[self._logged :]:
            log.append(stored)
        self._logged = len(self.world.stored)

    def ports(self, **others: Any) -> Ports:
        ports: dict[str, Any] = {
            "log": MemoryEventLog(self.cell),
            "snapshots": MemorySnapshots(self.cell),
            "inputs": MemoryInputs(self.cell),
            "publisher": self.publisher,
            "clock": self.clock,
        }
        return Ports(**(ports | others))

    def processor(self, **others: Any) -> Processor:
        self.log()
        return Processor(CELL, self.ports(**others), RULES, TABLE, self.notes)

    def run(self, processor: Processor, for_ms: int, beating: Sequence[str] = ()) -> None:
        """Seconds pass: the gateway is heard, and who is beating beats every other second."""
        for second in range(for_ms // 1000):
            self.clock.advance(1000)
            self.beat(*(beating if second % 2 else ()))
            self.log()
            processor.turn(0)

    # --- telemetry

    def beat(self, *nodes: str, incarnation: int = 1, partition: int = 0) -> None:
        """One gateway's batch."""
        beats = [telemetry_pb2.Beat(node=node, incarnation=incarnation) for node in nodes]
        self.publish(topics.BEATS.suffix, telemetry_pb2.BeatBatch(beats=beats), partition)

    def signal(self, kind: str, at_ms: int = 0, **fields: Any) -> None:
        number = telemetry_pb2.SignalKind.Value(f"SIGNAL_KIND_{kind}")
        at_ms = at_ms or self.clock.wall_ms()
        signal = telemetry_pb2.Signal(node="n1", incarnation=1, kind=number, at_ms=at_ms, **fields)
        self.publish(topics.SIGNALS.suffix, signal)

    def step(self, job: str, step: int, rank: int = 0) -> None:
        said = telemetry_pb2.Progress(job=job, attempt=1, rank=rank, step=step)
        self.publish(topics.PROGRESS.suffix, said)

    def publish(self, topic: str, message: Message, partition: int | None = 0) -> None:
        self.publisher.publish([Outgoing(topic, b"k", message.SerializeToString(), partition)])

    def verdicts(self) -> list[tuple[bytes, verdicts_pb2.Verdict]]:
        """What was published, by key."""
        stored = self.cell.records[topics.VERDICTS.suffix, 0]
        return [(each.key, verdicts_pb2.Verdict.FromString(each.value)) for each in stored]

    def kinds(self) -> list[str | None]:
        return [verdict.WhichOneof("kind") for _, verdict in self.verdicts()]
