"""A log in memory and the cluster that folds it; facts go in as a leader would append them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.runtime import chain, codec
from statemachines.cluster import FOLD_VERSION, Cluster
from statemachines.entry import Entry, Position, Recorded
from statemachines.facts import (
    AttemptStarted,
    Fact,
    GangPlaced,
    JobAdmitted,
    NodeJoined,
    QueueApplied,
    RunStarted,
    TermOpened,
)
from statemachines.values import (
    DeviceSpec,
    Grant,
    Inventory,
    JobId,
    JobSpec,
    NicSpec,
    NodeId,
    Placement,
    QueueId,
    Reason,
    Resources,
    ResumePoint,
    Role,
    RunId,
)
from statemachines.watcher import Watcher

CELL: Final = "test"
START_MS: Final = 1_700_000_000_000
DEFAULT: Final = QueueId("default")
BEGINNING: Final = ResumePoint()


def inventory(devices: int = 4, *, boot_id: str = "boot-1") -> Inventory:
    cards = tuple([DeviceSpec(i, "H100", f"GPU-{i}", 80_000) for i in range(devices)])
    return Inventory(
        "127.0.0.1", 64_000, 65_536, cards, (NicSpec("ib0"), NicSpec("ib1")), (), boot_id
    )


def spec(
    members: int = 1, *, devices: int = 1, queue: QueueId = DEFAULT, overlap_safe: bool = False
) -> JobSpec:
    role = Role("worker", members, Resources(4_000, 1_024, devices))
    return JobSpec("train", queue, 0, (role,), overlap_safe=overlap_safe, launch="ab" * 32)


def placed(
    job: str,
    attempt: int,
    at: Sequence[tuple[str, Sequence[int]]],
    *,
    resume: ResumePoint = BEGINNING,
) -> GangPlaced:
    """The gang with one member on each (node, devices) of `at`."""
    placements = [
        Placement(
            RunId(f"{job}.{attempt}.{rank}"), NodeId(node), rank, "worker",
            tuple([Grant(index, 1000) for index in devices]), 4_000, 1_024,
        )
        for rank, (node, devices) in enumerate(at)
    ]  # fmt: skip
    return GangPlaced(JobId(job), attempt, tuple(placements), resume, 20_000, Reason("fits"))


class World:
    """A cell with a log. Every entry is watched: what an invariant forbids is an assertion here."""

    def __init__(self) -> None:
        self.cluster = Cluster(CELL, track=True)
        self.entries: list[Entry] = []
        self.stored: list[bytes] = []
        self.now_ms = START_MS
        self.term = 0
        self._offset = -1
        self._watcher = Watcher()

    def entry(
        self,
        *facts: Fact,
        by: str = "",
        term: int | None = None,
        prev: bytes | None = None,
        cell: str = CELL,
        consumed: tuple[Position, ...] = (),
    ) -> tuple[Entry, bytes]:
        """An entry that would extend the log, or differs from one as asked, and its stored bytes."""
        term = self.term if term is None else term
        prev = self.cluster.head if prev is None else prev
        body = codec.encode_body(consumed, [Recorded(fact, by) for fact in facts])
        stored = codec.encode_entry(cell=cell, term=term, prev=prev, at_ms=self.now_ms, body=body)
        entry = codec.decode_entry(self._offset + 1, stored)
        digest = chain.entry_digest(prev=prev, cell=cell, term=term, at_ms=self.now_ms, body=body)
        assert entry.digest == digest
        return entry, stored

    def append(self, entry: Entry, stored: bytes) -> bool:
        """Store it at the end of the log, legal or not, and fold it; whether it was accepted."""
        self._offset += 1
        self.entries.append(entry)
        self.stored.append(stored)
        accepted = not self.cluster.void_reason(entry)
        broken = self._watcher.fold(self.cluster, entry)
        assert not broken, broken
        return accepted

    def record(self, *facts: Fact, by: str = "", consumed: tuple[Position, ...] = ()) -> None:
        """One step of the leader, a second after the one before."""
        self.now_ms += 1_000
        assert self.append(*self.entry(*facts, by=by, consumed=consumed))

    def open_term(self, leader: str = "leader-1") -> None:
        self.term += 1
        self.record(TermOpened(self.term, leader, f"nonce-{self.term}", FOLD_VERSION))

    def queue(self, name: QueueId = DEFAULT, parent: str = "", devices: int = -1) -> None:
        self.record(QueueApplied(name, parent, devices, -1, -1))

    def node(self, name: str = "n1", incarnation: int = 1, devices: int = 4) -> None:
        self.record(NodeJoined(NodeId(name), incarnation, inventory(devices)))

    def admit(self, name: str, wanted: JobSpec | None = None, count: int = 0) -> None:
        number = self.cluster.next_number
        job = JobId(name)
        fact = JobAdmitted(job, number, count, wanted or spec(), f"ann/{name}", b"digest")
        self.record(fact, by="ann")

    def start(self, job: str, attempt: int, at: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Place it and let every member start."""
        gang = placed(job, attempt, at)
        self.record(gang)
        self.record(*[RunStarted(placement.run) for placement in gang.placements])
        self.record(AttemptStarted(JobId(job), attempt))


def ready() -> World:
    """A cell with a leader, the default queue and two nodes."""
    world = World()
    world.open_term()
    world.queue()
    world.node("n1")
    world.node("n2")
    return world
