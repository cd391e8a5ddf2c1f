"""The adapters of the embedded cell keep the contracts; each handle has a store of its own, as another process would."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from services.runtime.adapters.file_lock import FileLock
from services.runtime.adapters.sqlite import (
    SqliteBlobs,
    SqliteEventLog,
    SqliteInputs,
    SqlitePublisher,
    SqliteSnapshots,
)
from services.runtime.adapters.sqlite_store import Store
from services.runtime.ports import Inputs, Publisher, Snapshots
from tests.contracts.blobs_contract import BlobsContract, OpenBlobs
from tests.contracts.event_log_contract import EventLogContract, OpenLog
from tests.contracts.inputs_contract import REPORT_PARTITIONS, InputsContract, TopicsOf
from tests.contracts.leadership_contract import LeadershipContract, Stand
from tests.contracts.publisher_contract import PublisherContract
from tests.contracts.snapshots_contract import SnapshotsContract, SnapshotsOf


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Opener:
    """Opens ports on one file and closes them all at the end, the last first."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self._stack = stack

    def open(self, make: Callable[[Store], C]) -> C:
        store = Store(self.path, wall_ms=lambda: 0, partitions={"reports": REPORT_PARTITIONS})
        self._stack.callback(store.close)
        port = make(store)
        self._stack.callback(port.close)
        return port


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    with ExitStack() as stack:
        yield Opener(tmp_path / "cell.db", stack)


class _Topics:
    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    def inputs(self) -> Inputs:
        return self._opener.open(lambda store: SqliteInputs(store, ["requests", "reports"]))

    def publisher(self) -> Publisher:
        return self._opener.open(SqlitePublisher)

    def drop(self, topic: str, partition: int, before: int) -> None:
        name = f"{topic}/{partition}"
        with sqlite3.connect(self._opener.path) as connection:
            connection.execute(f'DELETE FROM "{name}" WHERE offset < ?', (before,))
            connection.execute("UPDATE streams SET oldest = ? WHERE name = ?", (before, name))
        connection.close()


class _Snapshots:
    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    def open(self) -> Snapshots:
        return self._opener.open(SqliteSnapshots)

    def damage(self, offset: int) -> None:
        with sqlite3.connect(self._opener.path) as connection:
            sql = (
                "UPDATE snapshot_chunks SET data = x'00' "
                "WHERE snapshot = (SELECT id FROM snapshots WHERE offset = ?)"
            )
            assert connection.execute(sql, (offset,)).rowcount
        connection.close()


class TestSqliteEventLog(EventLogContract):
    @pytest.fixture
    def open_log(self, opener: Opener) -> OpenLog:
        return lambda: opener.open(SqliteEventLog)


class TestSqliteInputs(InputsContract):
    @pytest.fixture
    def topics_of(self, opener: Opener) -> TopicsOf:
        return _Topics(opener)


class TestSqlitePublisher(PublisherContract):
    @pytest.fixture
    def topics_of(self, opener: Opener) -> TopicsOf:
        return _Topics(opener)


class TestSqliteSnapshots(SnapshotsContract):
    @pytest.fixture
    def snapshots_of(self, opener: Opener) -> SnapshotsOf:
        return _Snapshots(opener)


class TestSqliteBlobs(BlobsContract):
    @pytest.fixture
    def open_blobs(self, opener: Opener) -> OpenBlobs:
        return lambda: opener.open(SqliteBlobs)


class TestFileLock(LeadershipContract):
    @pytest.fixture
    def stand(self, tmp_path: Path) -> Iterator[Stand]:
        with ExitStack() as stack:

            def stand() -> FileLock:
                candidate = FileLock(tmp_path / "leader.lock")
                stack.callback(candidate.close)
                return candidate

            yield stand
