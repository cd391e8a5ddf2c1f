"""The simulated broker: log, topics, snapshots and blobs behind the real ports, with everything a broker may do to us.

An append can land and be acknowledged, land without a word, be refused, land twice, or land later, when its author has
long given up: all that the chain must bear. Readers see a record only some time after it landed, each in the same
order. What any reader has seen stays. Each process gets ports of its own (`BrokerClient`), so a crash between any two
calls is a crash between any two lines of a driver.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from services.runtime import codec, ids
from services.runtime.ports import (
    InputGapError,
    InputRecord,
    LogRecord,
    Outgoing,
    PortError,
    SnapshotRecord,
)
from simulation.kernel import US_PER_MS, Kernel
from statemachines.entry import Entry

_LOG: Final = "log"
# Newest entries of the log that are kept as they were decoded.
_KEPT: Final = 256
# Small numbers, and yet more than one: records of different keys overtake each other.
PARTITIONS: Final[Mapping[str, int]] = {
    "requests": 2, "reports": 3, "verdicts": 2, "signals": 2, "progress": 2,
}  # fmt: skip


class BrokerFaults(msgspec.Struct, frozen=True):
    """Chances, out of a million, that one append ends this way; and delays, in milliseconds."""

    lost: int = 0
    lost_ack: int = 0
    late: int = 0
    duplicated: int = 0
    late_up_to_ms: int = 30_000
    visible_after_ms: tuple[int, int] = (1, 4)
    snapshot_damaged: int = 0


class Broker:
    """All that the cell has stored, shared by its processes. `down` until a time: every call fails."""

    def __init__(self, kernel: Kernel, faults: BrokerFaults) -> None:
        self.kernel = kernel
        self.faults = faults
        self.down = False
        self.records: dict[tuple[str, int], list[tuple[int, bytes, bytes]]] = {}
        self.oldest: dict[tuple[str, int], int] = {}
        self.snapshots: list[SnapshotRecord] = []
        self.blobs: dict[str, bytes] = {}
        self.late_records = 0
        self._entries: dict[int, Entry] = {}
        self._chance = kernel.chance("broker")
        self._wakers: dict[str, list[Callable[[], None]]] = {}
        self.stored: list[Callable[[str, int, bytes], None]] = []

    def on_record(self, topics: Iterable[str], call: Callable[[], None]) -> None:
        """Be called, some time later, when there may be something to read in one of the topics."""
        for topic in topics:
            self._wakers.setdefault(topic, []).append(call)

    def store(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """The record is on disk; readers see it a little later."""
        low, high = self.faults.visible_after_ms
        delay_us = int((low + (high - low) * self._chance.random()) * US_PER_MS)
        visible_us = self.kernel.now_us + delay_us
        stored = self.records.setdefault((topic, partition), [])
        if stored:  # One order for all: nothing is seen before what it follows.
            visible_us = max(visible_us, stored[-1][0])
        stored.append((visible_us, key, value))
        for told in self.stored:
            told(topic, len(stored) - 1, value)
        for call in self._wakers.get(topic, ()):
            self.kernel.post(visible_us, call)

    def append(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """One append with whatever befalls it; raises PortError when its author learns nothing good."""
        if self.down:
            raise PortError("the broker is down: try again")
        faults, draw = self.faults, self._chance.random() * 1_000_000
        if draw < faults.lost:
            raise PortError("no answer from the broker: the outcome is unknown (it was lost)")
        draw -= faults.lost
        if draw < faults.late:
            self.late_records += 1
            delay = self._chance.randint(1, faults.late_up_to_ms) * US_PER_MS
            self.kernel.after(delay, partial(self.store, topic, partition, key, value))
            raise PortError("no answer from the broker: the outcome is unknown (it comes late)")
        draw -= faults.late
        self.store(topic, partition, key, value)
        if draw < faults.lost_ack:
            raise PortError("no answer from the broker: the outcome is unknown (it was stored)")
        draw -= faults.lost_ack
        if draw < faults.duplicated:
            self.store(topic, partition, key, value)

    def read(
        self, topic: str, partition: int, offset: int, limit: int
    ) -> list[tuple[int, bytes, bytes]]:
        """(offset, key, value) of what is visible from `offset` on."""
        if self.down:
            raise PortError("the broker is down: try again")
        stored = self.records.get((topic, partition))
        if not stored or offset >= len(stored):
            return []
        found, now_us = [], self.kernel.now_us
        first = max(offset, self.oldest.get((topic, partition), 0))
        for at in range(first, min(len(stored), offset + limit)):
            visible_us, key, value = stored[at]
            if visible_us > now_us:
                break
            found.append((at, key, value))
        return found

    def entry(self, offset: int, stored: bytes) -> Entry:
        """A record of the log, for readers of ours: decoded once for all that follow closely, for it is a value."""
        entry = self._entries.get(offset)
        if entry is None:
            entry = self._entries[offset] = decoded(offset, stored)
            self._entries.pop(offset - _KEPT, None)
        return entry

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Retention passed: records below `before` are gone."""
        self.oldest[(topic, partition)] = max(before, self.oldest.get((topic, partition), 0))

    def damages_snapshot(self) -> bool:
        """Whether the snapshot at hand is stored damaged."""
        return self._chance.randrange(1_000_000) < self.faults.snapshot_damaged


def decoded(offset: int, stored: bytes) -> Entry:
    """What a reader makes of a stored record."""
    try:
        return codec.decode_entry(offset, stored)
    except codec.CodecError:
        return codec.unreadable(offset)


class SimEventLog:
    """EventLog over the broker. `point` is called before and after each effect: a crash may be raised there."""

    def __init__(self, broker: Broker, point: Callable[[str], None]) -> None:
        self._broker = broker
        self._point = point

    def append(self, value: bytes) -> None:
        """See EventLog."""
        self._point("before append")
        self._broker.append(_LOG, 0, b"", value)
        self._point("after append")

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:  # noqa: ARG002 - no time passes
        """See EventLog; never waits."""
        self._point("before log read")
        return [LogRecord(at, value) for at, _, value in self._broker.read(_LOG, 0, offset, limit)]

    def close(self) -> None:
        """Nothing to give back."""


class SimInputs:
    """Inputs over the broker."""

    def __init__(self, broker: Broker, point: Callable[[str], None]) -> None:
        self._broker = broker
        self._point = point

    def partitions(self, topic: str) -> int:
        """See Inputs."""
        return PARTITIONS.get(topic, 1)

    def read(
        self,
        positions: Mapping[tuple[str, int], int],
        *,
        limit: int,
        timeout_s: float,  # noqa: ARG002 - no time passes
    ) -> Sequence[InputRecord]:
        """See Inputs; never waits."""
        self._point("before input read")
        broker, found = self._broker, list[InputRecord]()
        if broker.down:
            raise PortError("the broker is down: try again")
        news = [
            item for item in positions.items() if item[1] < len(broker.records.get(item[0], ()))
        ]
        for (topic, partition), offset in sorted(news):
            oldest = broker.oldest.get((topic, partition), 0)
            if offset < oldest:
                raise InputGapError(topic, partition, offset, oldest)
            for at, key, value in broker.read(topic, partition, offset, limit - len(found)):
                found.append(InputRecord(topic, partition, at, key, value))
        return found

    def end(self, topic: str, partition: int) -> int:
        """See Inputs."""
        return len(self._broker.records.get((topic, partition), []))

    def close(self) -> None:
        """Nothing to give back."""


class SimPublisher:
    """Publisher over the broker."""

    def __init__(self, broker: Broker, point: Callable[[str], None]) -> None:
        self._broker = broker
        self._point = point

    def publish(self, records: Sequence[Outgoing]) -> None:
        """See Publisher."""
        for record in records:
            self._point("before publish")
            count = PARTITIONS.get(record.topic, 1)
            partition = (
                record.partition if record.partition is not None else zlib.crc32(record.key) % count
            )
            self._broker.append(record.topic, partition, record.key, record.value)
        self._point("after publish")

    def close(self) -> None:
        """Nothing to give back."""


class SimSnapshots:
    """Snapshots over the broker; a damaged one is stored and left out on loading, as the port says."""

    def __init__(self, broker: Broker, point: Callable[[str], None]) -> None:
        self._broker = broker
        self._point = point

    def save(self, snapshot: SnapshotRecord) -> None:
        """See Snapshots."""
        self._point("before snapshot")
        if self._broker.down:
            raise PortError("the broker is down: try again")
        if not self._broker.damages_snapshot():
            self._broker.snapshots = [*self._broker.snapshots, snapshot][-2:]
        self._point("after snapshot")

    def load(self) -> Iterator[SnapshotRecord]:
        """See Snapshots."""
        if self._broker.down:
            raise PortError("the broker is down: try again")
        yield from reversed(self._broker.snapshots)

    def close(self) -> None:
        """Nothing to give back."""


class SimBlobs:
    """Blobs over the broker."""

    def __init__(self, broker: Broker, point: Callable[[str], None]) -> None:
        self._broker = broker
        self._point = point

    def put(self, blobs: Sequence[bytes]) -> Sequence[str]:
        """See Blobs."""
        self._point("before blob")
        if self._broker.down:
            raise PortError("the broker is down: try again")
        digests = [ids.blob_digest(blob) for blob in blobs]
        self._broker.blobs.update(zip(digests, blobs, strict=True))
        return digests

    def get(self, digest: str) -> bytes | None:
        """See Blobs."""
        return self._broker.blobs.get(digest)

    def delete(self, digest: str) -> None:
        """See Blobs."""
        self._broker.blobs.pop(digest, None)

    def close(self) -> None:
        """Nothing to give back."""
