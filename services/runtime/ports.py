"""The ports of a cell: what the cores and drivers ask of a broker, a lock service, a disk and a clock.

A port promises only what its weakest adapter keeps; the contract suite of each port (tests/contracts) runs on every
adapter. All calls are synchronous and may block up to the timeout they are given, so an event loop calls them from a
thread, and a simulation calls them with timeout 0. Weather raises PortError or a subclass; anything else is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

# The value of one record, and one blob: what the adapter that takes least takes. Whoever makes one keeps to it.
RECORD_BYTES_MAX: Final = 1_000_000
# A record for the leader to decide on; a larger one it parks unread, as what comes of it might not fit an entry.
INPUT_BYTES_MAX: Final = 512 * 1024


class PortError(Exception):
    """Weather: a lost broker, a full disk, an expired lease. The message says what to do."""


class StorageFullError(PortError):
    """Nothing can be written until space is made; what was acknowledged is safe."""


class DamagedError(PortError):
    """Stored bytes are not what was written. Stop; the message says how to restore."""


class InputGapError(PortError):
    """Inputs between our position and the oldest kept are gone. Never skipped by ourselves."""

    def __init__(self, topic: str, partition: int, position: int, oldest: int) -> None:
        if oldest > position:
            lost, flag = (
                f"inputs {position}..{oldest - 1} are gone: retention passed our position",
                "",
            )
        else:
            lost = f"the topic was made anew: it ends before our position {position}"
            flag = " --made-anew"
        super().__init__(
            f"{topic}/{partition}: {lost}. Nothing was skipped. If what is lost is acceptable, record it: "
            f"`tidemilld gap accept {topic} {partition} {oldest}{flag} --message WHY`"
        )
        self.topic, self.partition, self.position, self.oldest = topic, partition, position, oldest


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One stored record of the log; `value` is a serialised tidemill.v1.Entry."""

    offset: int
    value: bytes


class InputRecord(msgspec.Struct, frozen=True, gc=False):
    """One stored record of another topic. `topic` is the suffix declared in topics.proto ("requests")."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A record to publish. `partition` None: chosen from the key."""

    topic: str
    key: bytes
    value: bytes
    partition: int | None = None


class SnapshotRecord(msgspec.Struct, frozen=True, gc=False):
    """A stored snapshot: the state after the entry at `offset`, and what proves it.

    `data` is the canonical encoding of the state, `digest` its SHA-256: the state digest.
    """

    offset: int
    head: bytes
    term: int
    fold_version: int
    digest: bytes
    data: bytes


class EventLog(Protocol):
    """The ordered log of a cell.

    Order: records are read in one order, the same by every reader; offsets grow, gaps are possible. Durability: a
    record that any reader has seen stays. Idempotence: none promised; the chain voids duplicates. After an error or a
    crash the outcome of an append is unknown, and is settled by reading.
    """

    def append(self, value: bytes) -> None:
        """Store one record atomically; returns when it is durable, or raises PortError with the outcome unknown."""

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        """Up to `limit` records from `offset` on; empty when nothing came within `timeout_s`.

        An empty answer means that the end was seen at some moment during the call.
        """

    def close(self) -> None:
        """Give back files, sockets and threads."""


class Inputs(Protocol):
    """Topics of one cell other than the log, to read from explicit positions. No consumer group decides anything."""

    def partitions(self, topic: str) -> int:
        """Number of partitions now; may grow, never shrinks."""

    def read(
        self, positions: Mapping[tuple[str, int], int], *, limit: int, timeout_s: float
    ) -> Sequence[InputRecord]:
        """Up to `limit` records at or after the positions, each partition in order without gaps or repeats.

        Keys of `positions` are all (topic, partition) wanted; a value is the next offset. Raises InputGapError when a
        position is below what is kept. Compacted or aborted offsets are not a gap.
        """

    def end(self, topic: str, partition: int) -> int:
        """Offset that the next record will have, at some moment during the call."""

    def close(self) -> None:
        """Give back files, sockets and threads."""


class Publisher(Protocol):
    """Writes records to topics other than the log."""

    def publish(self, records: Sequence[Outgoing]) -> None:
        """Store the records, those of one partition in the order given; returns when all are durable.

        None has a value above RECORD_BYTES_MAX: it could never be stored, nor could what is published with it.
        On PortError each record may or may not have been stored; publishing again may repeat it. Records of lossy
        topics (telemetry) may be lost in a crash shortly after.
        """

    def close(self) -> None:
        """Give back files, sockets and threads."""


class Snapshots(Protocol):
    """Caches of the state; losing them costs time, never truth."""

    def save(self, snapshot: SnapshotRecord) -> None:
        """Store it whole or not at all; older ones beyond the two newest may go."""

    def load(self) -> Iterator[SnapshotRecord]:
        """Stored snapshots, newest first. Damaged ones are left out."""

    def close(self) -> None:
        """Give back files, sockets and threads."""


class Blobs(Protocol):
    """Content-addressed bytes that may have to be forgotten: command lines, environments, scripts."""

    def put(self, blobs: Sequence[bytes]) -> Sequence[str]:
        """Store each durably, of RECORD_BYTES_MAX at most; answers their SHA-256 in lower-case hex. Storing again is free."""

    def get(self, digest: str) -> bytes | None:
        """The bytes, or None when they were never stored or have been deleted."""

    def delete(self, digest: str) -> None:
        """Forget them; not an error when absent."""

    def close(self) -> None:
        """Give back files, sockets and threads."""


class Leadership(Protocol):
    """Who tries to lead. Only the chain decides who does: two at once cost throughput, never correctness."""

    def campaign(self, timeout_s: float) -> int | None:
        """Stand for election for up to `timeout_s`; the term when won. A term is higher than all before it."""

    def holds(self) -> bool:
        """Whether we still may try, judged locally and at once; False for ever after it was False once."""

    def resign(self) -> None:
        """Let another try at once. Call after the last append, never before."""

    def close(self) -> None:
        """Give back files, sockets and threads; resigns."""


class Clock(Protocol):
    """Time as drivers see it; cores are given numbers."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds that only grow, suspended time included (CLOCK_BOOTTIME)."""
