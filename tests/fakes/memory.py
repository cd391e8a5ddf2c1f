"""The storage and leadership ports in memory, for unit tests of what stands on them. Held to tests/contracts."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from services.runtime.ports import InputGapError, InputRecord, LogRecord, Outgoing, SnapshotRecord
from services.runtime.topics import TOPICS, partition_of

T = TypeVar("T")


class MemoryCell:
    """What the ports of one cell share."""

    def __init__(self, partitions: Mapping[str, int] | None = None) -> None:
        self.changed = threading.Condition()
        self.log: list[bytes] = []
        self.records: dict[tuple[str, int], list[InputRecord]] = {}
        self.oldest: dict[tuple[str, int], int] = {}
        self.snapshots: dict[int, SnapshotRecord] = {}
        self.blobs: dict[str, bytes] = {}
        self.term = 0
        self.leader: object | None = None
        for topic in TOPICS.values():
            for partition in range(max(topic.partitions, (partitions or {}).get(topic.suffix, 0))):
                self.records[(topic.suffix, partition)] = []
                self.oldest[(topic.suffix, partition)] = 0

    def wait(self, look: Callable[[], Sequence[T]], timeout_s: float) -> Sequence[T]:
        """What `look` finds, as soon as it finds something."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not (found := look()) and (left := deadline - time.monotonic()) > 0:
                self.changed.wait(left)
            return found

    def drop(self, topic: str, partition: int, before: int) -> None:
        """Let retention pass."""
        with self.changed:
            self.oldest[(topic, partition)] = before


class MemoryEventLog:
    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell

    def append(self, value: bytes) -> None:
        with self._cell.changed:
            self._cell.log.append(value)
            self._cell.changed.notify_all()

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        def look() -> Sequence[LogRecord]:
            values = self._cell.log[offset : offset + limit]
            return [LogRecord(at, value) for at, value in enumerate(values, offset)]

        return self._cell.wait(look, timeout_s)

    def close(self) -> None:
        """Nothing to give back."""


class MemoryInputs:
    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell
        self._turn = 0

    def partitions(self, topic: str) -> int:
        return sum(name == topic for name, _ in self._cell.records)

    def read(
        self, positions: Mapping[tuple[str, int], int], *, limit: int, timeout_s: float
    ) -> Sequence[InputRecord]:
        wanted = list(positions.items())
        self._turn += 1
        start = self._turn % len(wanted) if wanted else 0

        def look() -> Sequence[InputRecord]:
            found: list[InputRecord] = []
            for key, position in wanted[start:] + wanted[:start]:
                if position < self._cell.oldest[key]:
                    raise InputGapError(*key, position, self._cell.oldest[key])
                found += self._cell.records[key][position : position + limit - len(found)]
            return found

        return self._cell.wait(look, timeout_s)

    def end(self, topic: str, partition: int) -> int:
        return len(self._cell.records[(topic, partition)])

    def close(self) -> None:
        """Nothing to give back."""


class MemoryPublisher:
    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell

    def publish(self, records: Sequence[Outgoing]) -> None:
        with self._cell.changed:
            for record in records:
                self._add(record)
            self._cell.changed.notify_all()

    def close(self) -> None:
        """Nothing to give back."""

    def _add(self, record: Outgoing) -> None:
        partition = record.partition
        if partition is None:
            count = sum(name == record.topic for name, _ in self._cell.records)
            partition = partition_of(record.key, count)
        line = self._cell.records[(record.topic, partition)]
        line.append(InputRecord(record.topic, partition, len(line), record.key, record.value))


class MemorySnapshots:
    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell

    def save(self, snapshot: SnapshotRecord) -> None:
        kept = {**self._cell.snapshots, snapshot.offset: snapshot}
        self._cell.snapshots = {offset: kept[offset] for offset in sorted(kept)[-2:]}

    def load(self) -> Iterator[SnapshotRecord]:
        for _, snapshot in sorted(self._cell.snapshots.items(), reverse=True):
            if hashlib.sha256(snapshot.data).digest() == snapshot.digest:
                yield snapshot

    def close(self) -> None:
        """Nothing to give back."""


class MemoryBlobs:
    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell

    def put(self, blobs: Sequence[bytes]) -> Sequence[str]:
        digests = [hashlib.sha256(blob).hexdigest() for blob in blobs]
        self._cell.blobs.update(zip(digests, blobs, strict=True))
        return digests

    def get(self, digest: str) -> bytes | None:
        return self._cell.blobs.get(digest)

    def delete(self, digest: str) -> None:
        self._cell.blobs.pop(digest, None)

    def close(self) -> None:
        """Nothing to give back."""


class MemoryLeadership:
    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell
        self._over = False

    def campaign(self, timeout_s: float) -> int | None:
        def look() -> Sequence[bool]:
            return [True] if not self._over and self._cell.leader in {None, self} else []

        with self._cell.changed:  # Held again by wait: the lock of a condition is re-entrant.
            if not self._cell.wait(look, timeout_s):
                return None
            self._cell.leader = self
            self._cell.term += 1
            return self._cell.term

    def holds(self) -> bool:
        return not self._over and self._cell.leader is self

    def resign(self) -> None:
        with self._cell.changed:
            self._over = True
            if self._cell.leader is self:
                self._cell.leader = None
            self._cell.changed.notify_all()

    def close(self) -> None:
        self.resign()


class ManualClock:
    """A clock that a test moves by hand."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000) -> None:
        self.wall, self.monotonic = wall_ms, monotonic_ms

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.monotonic += ms
