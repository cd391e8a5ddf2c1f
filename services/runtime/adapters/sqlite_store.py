"""The one file of an embedded cell: its tables, its only writer in this process, and what its errors mean.

Many processes share the file (WAL). Whoever writes in this process queues, and the first to get the lock commits for
all that queued: a group commit without a thread. A commit that holds anything durable is synced; one of telemetry
alone is not, and a later synced commit carries it along. A process killed at any instant leaves either the whole
transaction or nothing. It never interprets what it stores.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from services.runtime import topics
from services.runtime.adapters.doorbell import Doorbells
from services.runtime.adapters.sqlite_streams import has_streams, make_streams
from services.runtime.ports import DamagedError, PortError, StorageFullError

# "TIDE": marks the file as ours. user_version is the version of the tables.
APPLICATION_ID: Final = 0x54494445
TABLES_VERSION: Final = 1
BUSY_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.0002
_PAUSE_MAX_S: Final = 0.005
_WRITES_PER_COMMIT: Final = 1_000
_WAL_KEPT_BYTES: Final = 64 << 20
_OTHER_TABLES: Final = """
CREATE TABLE IF NOT EXISTS streams (
    name TEXT PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    oldest INTEGER NOT NULL, next INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blobs (digest BLOB PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (
    id INTEGER PRIMARY KEY, offset INTEGER NOT NULL, head BLOB NOT NULL, term INTEGER NOT NULL,
    fold_version INTEGER NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS snapshot_chunks (
    snapshot INTEGER NOT NULL, chunk INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (snapshot, chunk)
);
"""

_KIND: Final = """
SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),
    (SELECT count(*) FROM sqlite_master)
"""

T = TypeVar("T")


class Store:
    """The file, open for writing. One of these a process; thread-safe."""

    def __init__(
        self,
        path: Path,
        *,
        wall_ms: Callable[[], int],
        partitions: Mapping[str, int] | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """Open or make the file; `partitions` raises the number declared for a topic."""
        self.path = path
        self.wall_ms = wall_ms
        self._busy_timeout_s = busy_timeout_s
        self._queue: deque[_Write] = deque()
        self._committing = threading.Lock()
        self._failed: PortError | None = None
        self._synced = ""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise PortError(
                f"{path}: {error.strerror}. Give a directory that this user may write."
            ) from error
        with mapped(path):
            self._connection = self._open(partitions or {})
        self.bells = Doorbells(path.parent / "bells")

    def write(
        self,
        job: Callable[[sqlite3.Connection], T],
        *,
        written: Collection[str] = (),
        durable: bool = True,
    ) -> T:
        """Run `job` in a transaction with all that wait; answers when it is committed, and rings for `written`.

        Raises PortError with the outcome unknown. A job must only write, and never catch an error of the database.
        """
        mine = _Write(job, written, durable=durable)
        self._queue.append(mine)
        with self._committing:
            while not mine.done:
                self._commit(
                    [
                        self._queue.popleft()
                        for _ in range(min(len(self._queue), _WRITES_PER_COMMIT))
                    ]
                )
        if mine.error is not None:
            raise_mapped(mine.error, self.path)
        result: T = mine.result
        return result

    def connect(self) -> sqlite3.Connection:
        """Another connection, for reading."""
        with mapped(self.path):
            connection = self._connect(busy_timeout_s=self._busy_timeout_s)
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA cache_size = -1024")
        return connection

    def close(self) -> None:
        """Close the file; those who read through `connect` close their connections before."""
        with self._committing, mapped(self.path):
            self._connection.close()
        self.bells.close()

    # --- committing

    def _commit(self, batch: list[_Write]) -> None:
        """Commit these together; each learns the outcome."""
        error: BaseException | None = self._failed
        try:
            if error is None:
                self._transact(batch)
        except BaseException as failure:  # noqa: BLE001 - every writer of the batch raises it
            error = failure
            self._give_up(failure)
        for write in batch:
            write.error, write.done = error, True
        if error is None:
            rung = {topic for write in batch for topic in write.written}
            if rung:
                self.bells.ring(rung)

    def _transact(self, batch: Iterable[_Write]) -> None:
        connection = self._connection
        synced = "FULL" if any(write.durable for write in batch) else "NORMAL"
        if synced != self._synced:
            connection.execute(f"PRAGMA synchronous = {synced}")
            self._synced = synced
        self._patiently(connection, "BEGIN IMMEDIATE")
        for write in batch:
            write.result = write.job(connection)
        connection.execute("COMMIT")

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Execute what needs the file's write lock, which another process holds for milliseconds."""
        deadline = time.monotonic() + self._busy_timeout_s
        pause_s = _PAUSE_S
        while True:
            try:
                return connection.execute(statement)
            except sqlite3.OperationalError as error:
                if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _give_up(self, failure: BaseException) -> None:
        with contextlib.suppress(sqlite3.Error):  # What failed first is what is reported.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        if getattr(failure, "sqlite_errorcode", None) in _SYNC_FAILED:
            # What the kernel could not write it may have dropped, and a second sync would not say so.
            self._failed = DamagedError(
                f"{self.path}: the disk did not take a write ({failure}). Writing has stopped: check the disk, "
                "then start this process again."
            )

    # --- opening

    def _connect(self, *, busy_timeout_s: float) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )

    def _open(self, partitions: Mapping[str, int]) -> sqlite3.Connection:
        connection = self._connect(busy_timeout_s=0)  # We wait with shorter pauses: see _patiently.
        try:
            self._prepare(connection, partitions)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, partitions: Mapping[str, int]) -> None:
        """Make what is missing; a file that has everything is opened without a write, even on a full disk."""
        version = self._check_kind(connection)
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
        wanted = {
            topic: max(topic.partitions, partitions.get(topic.suffix, 0))
            for topic in topics.TOPICS.values()
            if topic not in _KEPT_ELSEWHERE
        }
        if version == TABLES_VERSION and has_streams(connection, wanted):
            return
        self._patiently(connection, "BEGIN IMMEDIATE")
        for statement in _OTHER_TABLES.split(";"):
            connection.execute(statement)
        for topic, count in wanted.items():
            make_streams(connection, topic, count)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {TABLES_VERSION}")
        connection.execute("COMMIT")

    def _check_kind(self, connection: sqlite3.Connection) -> int:
        """It is ours or new, not of a later version, and can be shared; the version of its tables."""
        # One statement sees one state: another process may be making the file at this moment.
        kind, version, tables = self._patiently(connection, _KIND).fetchone()
        if tables and kind != APPLICATION_ID:
            raise DamagedError(f"{self.path} is not the file of a cell. Give another directory.")
        if version > TABLES_VERSION:
            raise PortError(f"{self.path} was made by a newer version. Upgrade this process.")
        (mode,) = self._patiently(connection, "PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise PortError(
                f"{self.path}: this file system cannot share a file (WAL). Use a local disk."
            )
        return int(version)


class _Write:
    """One caller's part of a group commit."""

    __slots__ = ("done", "durable", "error", "job", "result", "written")

    def __init__(
        self, job: Callable[[sqlite3.Connection], Any], written: Collection[str], *, durable: bool
    ) -> None:
        self.job, self.written, self.durable = job, written, durable
        self.result: Any = None
        self.done = False
        self.error: BaseException | None = None


_KEPT_ELSEWHERE: Final = (topics.BLOBS, topics.SNAPSHOTS)
_SYNC_FAILED: Final = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
_FREE_BYTES_MIN: Final = 1 << 20


# --- errors


def raise_mapped(error: BaseException, path: Path) -> NoReturn:
    """Raise what an error of the database means to a caller of a port; anything else is a bug and raised as it is."""
    if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorcode"):
        raise _meaning(error, path) from error
    raise error


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[None]:
    """Errors of the database leave this block as what they mean."""
    try:
        yield
    except sqlite3.Error as error:
        raise_mapped(error, path)


def _primary(error: sqlite3.Error) -> int:
    """The primary result code, without what makes it an extended one."""
    return error.sqlite_errorcode & 0xFF


def _meaning(error: sqlite3.Error, path: Path) -> PortError:
    code = _primary(error)
    if code == sqlite3.SQLITE_FULL or (
        code == sqlite3.SQLITE_IOERR and _free_bytes(path) < _FREE_BYTES_MIN
    ):
        return StorageFullError(
            f"{path}: the disk is full. What was acknowledged is safe; make space there and try again."
        )
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return DamagedError(
            f"{path} is damaged ({error}). Stop the cell, keep a copy of the file and its -wal, "
            f"and restore a backup or salvage it with `sqlite3 {path} .recover`."
        )
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return PortError(
            f"{path}: another process kept it locked. Find it with `fuser {path}`; then try again."
        )
    if code in {
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
    }:
        return PortError(f"{path}: {error}. Let this user write the file and its directory.")
    return PortError(f"{path}: {error} ({error.sqlite_errorname}). Check the disk, then try again.")


def _free_bytes(path: Path) -> int:
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize
