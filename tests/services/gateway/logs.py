"""Logs and snapshots in memory for tests that look back, and a cell that has something to look back on."""

from __future__ import annotations

import typing
from collections.abc import Sequence

from services.runtime import codec
from services.runtime.ports import LogRecord, SnapshotRecord
from statemachines.entry import Position, Recorded
from statemachines.facts import Fact
from tests.services.gateway.world import CELL, World
from tidemill.v1 import job_service_pb2 as jobs


class Log:
    """Records in memory, as an EventLog."""

    def __init__(self, records: Sequence[LogRecord]) -> None:
        self.records = list(records)

    def append(self, value: bytes) -> None:
        self.records.append(LogRecord(len(self.records), value))

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        return self.records[offset : offset + limit]

    def close(self) -> None:
        pass


class Kept:
    """Snapshots in memory, newest first."""

    def __init__(self, *records: SnapshotRecord) -> None:
        self.records = records

    def save(self, record: SnapshotRecord) -> None:
        raise AssertionError("nobody saves here")

    def load(self) -> typing.Iterator[SnapshotRecord]:
        return iter(self.records)

    def close(self) -> None:
        pass


class Chain(Log):
    """A log to which entries are appended by hand, legal or not for the fold."""

    def __init__(self) -> None:
        super().__init__([])
        self.head = bytes(32)

    def append_entry(
        self, *facts: Fact, term: int = 1, prev: bytes | None = None, at_ms: int = 1
    ) -> bytes:
        """The digest of what was appended; the next one extends it unless it says otherwise."""
        body = codec.encode_body(
            (Position("requests", 0, 0, 0),), [Recorded(fact) for fact in facts]
        )
        value = codec.encode_entry(
            cell=CELL, term=term, prev=self.head if prev is None else prev, at_ms=at_ms, body=body
        )
        self.append(value)
        digest = codec.decode_entry(len(self.records) - 1, value).digest
        if prev is None:
            self.head = digest
        return digest


class Asked(Chain):
    """A log that remembers where it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        self.asked.append(offset)
        return super().read(offset, limit=limit, timeout_s=timeout_s)


def lived() -> World:
    """A job that ran on n1 and ended, one that was held, and one that waits."""
    world = World()
    stream = world.attach("n1")
    world.settle()
    job = world.admitted("r1")
    world.finished(stream, "n1", f"{job}.1.0", sequence=1)
    world.settle()
    held = world.admitted("r2", held=True)
    world.change(jobs.ReleaseJobRequest(job=held))
    world.settle()
    return world


def log_of(world: World) -> Log:
    return Log(world.log)
