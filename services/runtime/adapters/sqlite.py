"""The storage ports of an embedded cell on its one SQLite file: EventLog, Inputs, Publisher, Snapshots, Blobs.

A partition is a table whose offsets have no gaps. Readers wait on a doorbell and look by themselves twice a second. An
adapter translates and decides nothing. Each reading object serves one thread at a time.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from services.runtime import topics
from services.runtime.adapters.sqlite_store import Store, mapped
from services.runtime.adapters.sqlite_streams import (
    append_rows,
    bounds,
    count_partitions,
    insert_rows,
    prune_slice,
    rows_from,
    stream_name,
)
from services.runtime.ports import (
    DamagedError,
    InputGapError,
    InputRecord,
    LogRecord,
    Outgoing,
    SnapshotRecord,
)

T = TypeVar("T")

_LOOK_EVERY_S: Final = 0.5
_PRUNE_EVERY_S: Final = 60.0
_PRUNE_SLICES: Final = 50
_SNAPSHOTS_KEPT: Final = 2
_DIGESTS_PER_READ: Final = 500
_CHUNK_BYTES: Final = 256 << 10
_LOG_STREAM: Final = stream_name(topics.LOG.suffix, 0)


class _Reader:
    """A connection for reading and the bell to wait for."""

    def __init__(self, store: Store, heard: Sequence[str]) -> None:
        self.store = store
        self._connection = store.connect()
        self._bell = store.bells.listen(heard) if heard else None
        self._using = threading.Lock()
        self._waiting = threading.Lock()
        self._closed = False

    def look(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Answer from one state of the file."""
        with self._using, mapped(self.store.path):
            self._connection.execute("BEGIN")
            try:
                return query(self._connection)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def wait(
        self, query: Callable[[sqlite3.Connection], Sequence[T]], timeout_s: float
    ) -> Sequence[T]:
        """Answer as soon as there is something, or with nothing after `timeout_s` or when it is closed."""
        bell = self._bell
        assert bell is not None, "nothing to wait for"
        deadline = time.monotonic() + timeout_s
        with self._waiting:
            while not self._closed:
                bell.clear()
                found = self.look(query)
                left_s = deadline - time.monotonic()
                if found or left_s <= 0:
                    return found
                bell.wait(min(left_s, _LOOK_EVERY_S))
        return ()

    def close(self) -> None:
        """Take the bell down and close the connection; whoever waits is sent home first. Again: nothing."""
        if self._closed:
            return
        self._closed = True
        if self._bell is not None:
            self._bell.ring()
        with self._waiting, self._using:
            self._connection.close()
            if self._bell is not None:
                self._bell.close()


class SqliteEventLog:
    """EventLog on one table. Offsets begin at 0 and have no gaps."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = _Reader(store, [topics.LOG.suffix])

    def append(self, value: bytes) -> None:
        """Store one record, synced."""
        at_ms = self._store.wall_ms()
        self._store.write(
            lambda connection: append_rows(connection, _LOG_STREAM, [(at_ms, b"", value)]),
            written=[topics.LOG.suffix],
        )

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        """Records from `offset` on."""
        return self._reader.wait(
            lambda connection: [
                LogRecord(at, value)
                for at, _, value in rows_from(connection, _LOG_STREAM, offset, limit)
            ],
            timeout_s,
        )

    def close(self) -> None:
        self._reader.close()


class SqliteInputs:
    """Inputs on one table a partition. `listen` names the topics that will be read."""

    def __init__(self, store: Store, listen: Sequence[str]) -> None:
        self._reader = _Reader(store, listen)
        self._turn = 0

    def partitions(self, topic: str) -> int:
        return self._reader.look(lambda connection: count_partitions(connection, topic))

    def read(
        self, positions: Mapping[tuple[str, int], int], *, limit: int, timeout_s: float
    ) -> Sequence[InputRecord]:
        """Records at or after the positions; another partition comes first at each call, so none starves."""
        wanted = list(positions.items())
        self._turn += 1
        start = self._turn % len(wanted) if wanted else 0

        def query(connection: sqlite3.Connection) -> Sequence[InputRecord]:
            found: list[InputRecord] = []
            for (topic, partition), position in wanted[start:] + wanted[:start]:
                _check_position(connection, topic, partition, position)
                rows = rows_from(
                    connection, stream_name(topic, partition), position, limit - len(found)
                )
                found += [InputRecord(topic, partition, *row) for row in rows]
            return found

        return self._reader.wait(query, timeout_s)

    def end(self, topic: str, partition: int) -> int:
        return self._reader.look(lambda connection: bounds(connection, topic, partition)[1])

    def close(self) -> None:
        self._reader.close()


class SqlitePublisher:
    """Publisher into one table a partition; drops what is past its retention about once a minute."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = _Reader(store, ())
        self._pruned_at: dict[str, float] = {}
        self._partitions: dict[str, int] = {}

    def publish(self, records: Sequence[Outgoing]) -> None:
        """Store the records in one transaction, synced unless all are of lossy topics."""
        at_ms = self._store.wall_ms()
        streams: dict[str, list[tuple[int, bytes, bytes]]] = {}
        for record in records:
            rows = streams.setdefault(stream_name(record.topic, self._partition(record)), [])
            rows.append((at_ms, record.key, record.value))
        written = {record.topic for record in records}

        def job(connection: sqlite3.Connection) -> None:
            for stream, rows in streams.items():
                append_rows(connection, stream, rows)

        durable = not all(topics.TOPICS[topic].lossy for topic in written)
        for topic in written:
            self._prune_now_and_then(topic, at_ms)
        self._store.write(job, written=written, durable=durable)

    def close(self) -> None:
        self._reader.close()

    def _partition(self, record: Outgoing) -> int:
        if record.partition is not None:
            return record.partition
        count = self._partitions.get(record.topic)
        if count is None:
            count = self._reader.look(lambda connection: count_partitions(connection, record.topic))
            self._partitions[record.topic] = count
        return topics.partition_of(record.key, count)

    def _prune_now_and_then(self, topic: str, at_ms: int) -> None:
        retention_ms = topics.TOPICS[topic].retention_ms
        now = time.monotonic()
        if retention_ms < 0 or now - self._pruned_at.setdefault(topic, 0.0) < _PRUNE_EVERY_S:
            return
        self._pruned_at[topic] = now
        for _ in range(_PRUNE_SLICES):  # Short transactions: others write in between.
            drop = partial(prune_slice, topic=topic, before_ms=at_ms - retention_ms)
            if not self._store.write(drop, durable=False):
                return


class SqliteSnapshots:
    """Snapshots in pieces, so that saving a large one holds up nobody; the last write makes it visible."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = _Reader(store, ())

    def save(self, snapshot: SnapshotRecord) -> None:
        identity = secrets.randbits(62)
        for number, start in enumerate(range(0, len(snapshot.data), _CHUNK_BYTES)):
            chunk = snapshot.data[start : start + _CHUNK_BYTES]
            self._store.write(partial(_save_chunk, row=(identity, number, chunk)), durable=False)
        self._store.write(partial(_finish_snapshot, identity=identity, snapshot=snapshot))

    def load(self) -> Iterator[SnapshotRecord]:
        """Newest first; one whose bytes are not what was saved is left out."""
        sql = "SELECT * FROM snapshots ORDER BY offset DESC"
        rows = self._reader.look(lambda connection: connection.execute(sql).fetchall())
        for identity, offset, head, term, fold_version, digest in rows:
            data = self._reader.look(partial(_snapshot_data, identity=identity))
            if hashlib.sha256(data).digest() == digest:
                yield SnapshotRecord(offset, head, term, fold_version, digest, data)

    def close(self) -> None:
        self._reader.close()


class SqliteBlobs:
    """Blobs by digest. Deleted bytes are overwritten in the file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = _Reader(store, ())

    def put(self, blobs: Sequence[bytes]) -> Sequence[str]:
        digests = [hashlib.sha256(blob).digest() for blob in blobs]
        known = self._reader.look(partial(_known_blobs, digests=digests))
        new = {d: blob for d, blob in zip(digests, blobs, strict=True) if d not in known}
        if new:
            self._store.write(
                partial(
                    insert_rows, insert="INSERT OR IGNORE INTO blobs VALUES", rows=list(new.items())
                )
            )
        return [digest.hex() for digest in digests]

    def get(self, digest: str) -> bytes | None:
        return self._get(bytes.fromhex(digest))

    def delete(self, digest: str) -> None:
        def job(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("DELETE FROM blobs WHERE digest = ?", (bytes.fromhex(digest),))
            connection.execute("PRAGMA secure_delete = OFF")

        self._store.write(job)

    def close(self) -> None:
        self._reader.close()

    def _get(self, digest: bytes) -> bytes | None:
        sql = "SELECT data FROM blobs WHERE digest = ?"
        row = self._reader.look(lambda connection: connection.execute(sql, (digest,)).fetchone())
        if row is None:
            return None
        data: bytes = row[0]
        if hashlib.sha256(data).digest() != digest:
            raise DamagedError(
                f"{self._store.path}: blob {digest.hex()} is damaged. Restore a backup of the file."
            )
        return data


def _known_blobs(connection: sqlite3.Connection, digests: Sequence[bytes]) -> set[bytes]:
    known: set[bytes] = set()
    for start in range(0, len(digests), _DIGESTS_PER_READ):
        some = digests[start : start + _DIGESTS_PER_READ]
        marks = ", ".join("?" * len(some))
        sql = f"SELECT digest FROM blobs WHERE digest IN ({marks})"  # noqa: S608 - only marks
        known.update(digest for (digest,) in connection.execute(sql, some))
    return known


def _check_position(
    connection: sqlite3.Connection, topic: str, partition: int, position: int
) -> None:
    oldest, end = bounds(connection, topic, partition)
    if position < oldest:
        raise InputGapError(topic, partition, position, oldest)
    if position > end:
        raise DamagedError(
            f"{topic}/{partition}: position {position} is past the end {end}: the file is older than the log that "
            "was read. Restore the newer file."
        )


def _save_chunk(connection: sqlite3.Connection, row: tuple[int, int, bytes]) -> None:
    connection.execute("INSERT INTO snapshot_chunks VALUES (?, ?, ?)", row)


def _finish_snapshot(
    connection: sqlite3.Connection, identity: int, snapshot: SnapshotRecord
) -> None:
    """Make it visible; drop what it replaces, what is older, and pieces of one that was never finished."""
    connection.execute("DELETE FROM snapshots WHERE offset = ?", (snapshot.offset,))
    connection.execute(
        "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)",
        (
            identity,
            snapshot.offset,
            snapshot.head,
            snapshot.term,
            snapshot.fold_version,
            snapshot.digest,
        ),
    )
    connection.execute(
        "DELETE FROM snapshots WHERE id NOT IN (SELECT id FROM snapshots ORDER BY offset DESC LIMIT ?)",
        (_SNAPSHOTS_KEPT,),
    )
    connection.execute(
        "DELETE FROM snapshot_chunks WHERE snapshot NOT IN (SELECT id FROM snapshots)"
    )


def _snapshot_data(connection: sqlite3.Connection, identity: int) -> bytes:
    sql = "SELECT data FROM snapshot_chunks WHERE snapshot = ? ORDER BY chunk"
    return b"".join([data for (data,) in connection.execute(sql, (identity,))])
