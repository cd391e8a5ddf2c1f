"""The embedded file under kill -9, damage, a full disk, a slow neighbour and passing time."""

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.runtime.adapters.sqlite import (
    SqliteBlobs,
    SqliteEventLog,
    SqliteInputs,
    SqlitePublisher,
    SqliteSnapshots,
)
from services.runtime.adapters.sqlite_store import Store
from services.runtime.ports import (
    DamagedError,
    InputGapError,
    Outgoing,
    PortError,
    StorageFullError,
)
from tests.contracts.event_log_contract import read_all
from tests.contracts.snapshots_contract import snapshot

DEADLINE_S = 30
HOUR_MS = 3_600_000

# Appends and publishes for ever; says each number when it is durable.
WRITER = """
import sys
from pathlib import Path
from services.runtime.adapters.sqlite import SqliteEventLog, SqlitePublisher
from services.runtime.adapters.sqlite_store import Store
from services.runtime.ports import Outgoing
store = Store(Path(sys.argv[1]), wall_ms=lambda: 0)
log, publisher = SqliteEventLog(store), SqlitePublisher(store)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    log.append(b"%d" % number)
    publisher.publish([Outgoing("requests", b"k", b"%d" % number), Outgoing("beats", b"k", b"%d" % number)])
    print(number, flush=True)
"""


def write(path: Path, first: int, end: int = 1_000_000) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", WRITER, str(path), str(first), str(end)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def opened(path: Path, **settings: object) -> Iterator[Store]:
    store = Store(path, **{"wall_ms": lambda: 0, **settings})  # type: ignore[arg-type]
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cell.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with opened(path) as store:
        yield store


def stored(store: Store, topic: str) -> list[int]:
    inputs = SqliteInputs(store, [topic])
    found = inputs.read({(topic, 0): 0}, limit=1_000_000, timeout_s=0)
    inputs.close()
    return [int(record.value) for record in found]


def logged(store: Store) -> list[int]:
    log = SqliteEventLog(store)
    found = log.read(0, limit=1_000_000, timeout_s=0)
    log.close()
    assert [record.offset for record in found] == list(range(len(found)))
    return [int(record.value) for record in found]


# --- crashes


@pytest.mark.parametrize("acknowledged", [1, 2, 7, 30, 120])
def test_a_writer_killed_at_any_instant_loses_nothing_that_it_acknowledged(
    path: Path, acknowledged: int
) -> None:
    written = 0
    for _ in range(3):
        with write(path, written) as writer:
            assert writer.stdout is not None
            said = [int(writer.stdout.readline()) for _ in range(acknowledged)]
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read()
        said += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        with opened(path) as store:
            for numbers in (logged(store), stored(store, "requests"), stored(store, "beats")):
                assert numbers[: len(said) + written] == list(range(written)) + said
                assert len(numbers) <= len(said) + written + 1  # The one that was not said yet.
            written = len(logged(store))
            if len(stored(store, "requests")) < written:  # Killed between the two commits.
                publisher = SqlitePublisher(store)
                number = b"%d" % (written - 1)
                publisher.publish(
                    [Outgoing("requests", b"k", number), Outgoing("beats", b"k", number)]
                )
                publisher.close()


def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    with opened(path):
        writers = [write(path, who * 1_000, who * 1_000 + 100) for who in range(3)]
        assert [writer.wait(DEADLINE_S) for writer in writers] == [0, 0, 0]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.close()
    with opened(path) as store:
        for numbers in (logged(store), stored(store, "requests")):
            for who in range(3):
                mine = [number for number in numbers if number // 1_000 == who]
                assert mine == list(range(who * 1_000, who * 1_000 + 100))


def test_an_unfinished_snapshot_is_not_there_and_goes_with_the_next(
    store: Store, path: Path
) -> None:
    store.write(
        lambda connection: connection.execute("INSERT INTO snapshot_chunks VALUES (9, 0, x'00')")
    )
    snapshots = SqliteSnapshots(store)
    assert list(snapshots.load()) == []
    snapshots.save(snapshot(1))
    snapshots.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM snapshot_chunks").fetchone() == (1,)


# --- damage


def fill(path: Path, records: int) -> None:
    with opened(path) as store:
        log = SqliteEventLog(store)
        for _ in range(records):
            log.append(b"x" * 3_000)
        log.close()


def test_a_truncated_file_is_damaged_and_the_message_says_how_to_restore(path: Path) -> None:
    fill(path, 50)
    os.truncate(path, path.stat().st_size - 5_000)
    with (
        pytest.raises(DamagedError, match=r"is damaged .* restore a backup or salvage it"),
        opened(path),
    ):
        pytest.fail("opened a truncated file")


def test_bytes_overwritten_inside_are_damage_when_they_are_met(path: Path) -> None:
    fill(path, 200)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xa5" * 65_536)
    with opened(path) as store:
        log = SqliteEventLog(store)
        with pytest.raises(DamagedError):
            log.read(0, limit=1_000, timeout_s=0)
        log.close()


def test_a_torn_tail_of_the_write_ahead_log_ends_at_a_whole_record(path: Path) -> None:
    with write(path, 0) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            writer.stdout.readline()
        writer.kill()
        writer.stdout.read()
    wal = path.with_name("cell.db-wal")
    os.truncate(wal, wal.stat().st_size - 1_000)
    with opened(path) as store:
        numbers = logged(store)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= 49
        log = SqliteEventLog(store)
        log.append(b"%d" % len(numbers))
        log.close()
        assert logged(store) == [*numbers, len(numbers)]


@pytest.mark.parametrize("content", [b"not a database, only text" * 100, b"\0" * 8_192])
def test_a_file_of_something_else_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(PortError, match=r"damaged|not the file of a cell"), opened(path):
        pytest.fail("opened a foreign file")
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (x)")
    with pytest.raises(DamagedError, match="is not the file of a cell"), opened(path):
        pytest.fail("opened a foreign database")


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    with opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(PortError, match="newer version"), opened(path):
        pytest.fail("opened a newer file")


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PortError, match="Give a directory"), opened(tmp_path / "file" / "cell.db"):
        pytest.fail("opened below a file")


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a small tmpfs, which takes root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def append_until_full(log: SqliteEventLog) -> tuple[int, StorageFullError]:
    for number in range(1_000):
        try:
            log.append(b"%d" % number + b" " * 20_000)
        except StorageFullError as error:
            return number, error
    pytest.fail("20 MB on a disk of 4 MiB")


def test_a_full_disk_is_said_loses_nothing_and_is_left_behind_when_space_is_made(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (1 << 20))
    with opened(small_disk / "cell.db") as store:
        log = SqliteEventLog(store)
        kept, error = append_until_full(log)
        assert "make space there and try again" in str(error)
        assert kept > 10
        assert len(logged(store)) in {kept, kept + 1}  # The outcome of the last is unknown.
        ballast.unlink()
        log.append(b"%d" % len(logged(store)))
        numbers = logged(store)
        assert numbers[:kept] == list(range(kept))
        assert numbers == list(range(len(numbers)))
        log.close()
    with opened(small_disk / "cell.db") as store:
        assert logged(store) == numbers


# --- neighbours, groups, time


def test_a_neighbour_that_keeps_the_file_locked_is_waited_for_and_then_reported(path: Path) -> None:
    with opened(path, busy_timeout_s=0.2) as store:
        log = SqliteEventLog(store)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
            neighbour.execute("BEGIN IMMEDIATE")
            with pytest.raises(PortError, match="another process kept it locked"):
                log.append(b"1")
            assert list(log.read(0, limit=1, timeout_s=0)) == []  # Readers are never kept out.
            neighbour.execute("COMMIT")
        log.append(b"0")
        assert logged(store) == [0]
        log.close()


def test_writers_that_wait_are_committed_together_and_each_learns_the_outcome(store: Store) -> None:
    statements: list[str] = []
    store._connection.set_trace_callback(statements.append)
    order = itertools.count(1)
    holding, go = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        holding.set()
        assert go.wait(DEADLINE_S)

    def fast(_connection: sqlite3.Connection) -> int:
        return next(order)

    results: list[int] = []
    threads = [threading.Thread(target=store.write, args=(slow,))]
    threads[0].start()
    assert holding.wait(DEADLINE_S)
    threads += [
        threading.Thread(target=lambda: results.append(store.write(fast))) for _ in range(10)
    ]
    for thread in threads[1:]:
        thread.start()
    while len(store._queue) < 10:
        threads[1].join(0.001)
    go.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(results) == list(range(1, 11))
    assert statements.count("COMMIT") == 2  # Of the slow one, and of all that waited for it.


def test_a_write_that_fails_leaves_nothing_of_its_group(store: Store) -> None:
    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO blobs VALUES (x'00', x'00')")
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        store.write(broken)
    count: Callable[[sqlite3.Connection], object] = lambda c: c.execute(  # noqa: E731
        "SELECT count(*) FROM blobs"
    ).fetchone()
    assert store.write(count) == (0,)


def test_after_a_failed_sync_nothing_more_is_written(store: Store) -> None:
    def unsynced(_: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error

    with pytest.raises(PortError, match="SQLITE_IOERR_FSYNC"):
        store.write(unsynced)
    log = SqliteEventLog(store)
    with pytest.raises(DamagedError, match="Writing has stopped: check the disk"):
        log.append(b"0")
    assert list(log.read(0, limit=1, timeout_s=0)) == []
    log.close()


def test_decisions_are_synced_and_telemetry_alone_is_not(store: Store) -> None:
    publisher = SqlitePublisher(store)
    synced = []
    for topics in (["beats"], ["requests"], ["beats", "progress"], ["beats", "verdicts"]):
        publisher.publish([Outgoing(topic, b"k", b"v") for topic in topics])
        synced.append(store._connection.execute("PRAGMA synchronous").fetchone()[0] == 2)
    assert synced == [False, True, False, True]
    publisher.close()


def test_retention_drops_old_records_of_its_topic_alone_and_says_what_is_gone(path: Path) -> None:
    now_ms = 0
    with opened(path, wall_ms=lambda: now_ms) as store:
        log = SqliteEventLog(store)
        log.append(b"for ever")
        publisher = SqlitePublisher(store)
        publisher.publish([Outgoing(topic, b"k", b"old") for topic in ("beats", "requests")])
        publisher.close()
        now_ms = 2 * HOUR_MS
        publisher = SqlitePublisher(store)  # A new one looks at once; an old one every minute.
        publisher.publish([Outgoing(topic, b"k", b"new") for topic in ("beats", "requests")])
        inputs = SqliteInputs(store, ["beats"])
        with pytest.raises(InputGapError, match=r"beats/0: inputs 0\.\.0 are gone"):
            inputs.read({("beats", 0): 0}, limit=9, timeout_s=0)
        (record,) = inputs.read({("beats", 0): 1}, limit=9, timeout_s=0)
        assert (record.offset, record.value) == (1, b"new")
        assert len(inputs.read({("requests", 0): 0}, limit=9, timeout_s=0)) == 2
        assert len(read_all(log, 1)) == 1
        for port in (inputs, publisher, log):
            port.close()


def test_a_position_past_the_end_is_damage_not_patience(store: Store) -> None:
    inputs = SqliteInputs(store, ["requests"])
    with pytest.raises(DamagedError, match="position 5 is past the end 0"):
        inputs.read({("requests", 0): 5}, limit=1, timeout_s=DEADLINE_S)
    inputs.close()


def test_a_deleted_blob_is_not_in_the_file_any_more(path: Path) -> None:
    secret = b"hunter2-" * 5_000
    with opened(path) as store:
        blobs = SqliteBlobs(store)
        (digest,) = blobs.put([secret])
        blobs.put([b"another" * 1_000])
        blobs.delete(digest)
        blobs.close()
    assert b"hunter2" not in path.read_bytes()


def test_a_damaged_blob_is_not_given_out(store: Store) -> None:
    blobs = SqliteBlobs(store)
    (digest,) = blobs.put([b"good"])
    store.write(lambda connection: connection.execute("UPDATE blobs SET data = x'bad0'"))
    with pytest.raises(DamagedError, match=f"blob {digest} is damaged"):
        blobs.get(digest)
    blobs.close()


def test_a_foreign_writer_that_rings_no_bell_is_still_seen(store: Store, path: Path) -> None:
    log = SqliteEventLog(store)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(int(r.value) for r in read_all(log, 1)))
    reader.start()
    with contextlib.closing(sqlite3.connect(path)) as foreign, foreign:
        foreign.execute("INSERT INTO \"log/0\" VALUES (0, 0, x'', x'37')")
        foreign.execute("UPDATE streams SET next = 1 WHERE name = 'log/0'")
    reader.join(DEADLINE_S)
    assert found == [7]
    log.close()


def test_closing_sends_home_whoever_waits(store: Store) -> None:
    log = SqliteEventLog(store)
    answers: list[object] = []
    reader = threading.Thread(
        target=lambda: answers.append(list(log.read(0, limit=1, timeout_s=10 * DEADLINE_S)))
    )
    reader.start()
    while not log._reader._waiting.locked():
        reader.join(0.001)
    log.close()
    reader.join(DEADLINE_S)
    assert answers == [[]]
