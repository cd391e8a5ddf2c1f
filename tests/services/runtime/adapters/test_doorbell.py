"""Bells wake whom they concern, at once, and never anyone else; a dead owner's bell is taken down."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.runtime.adapters.doorbell import Bell, Doorbells
from services.runtime.adapters.sqlite import SqliteEventLog
from services.runtime.adapters.sqlite_store import Store

DEADLINE_S = 30.0


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[Doorbells]:
    bells = Doorbells(tmp_path / "bells")
    yield bells
    bells.close()


def rang(bell: Bell, timeout_s: float = 0.0) -> bool:
    began = time.monotonic()
    bell.wait(timeout_s or 0.001)
    return bool(bell._poll.poll(0)) and time.monotonic() - began < DEADLINE_S


def test_a_ring_before_the_wait_is_kept_and_clear_forgets_it(bells: Doorbells) -> None:
    bell = bells.listen(["log"])
    assert not rang(bell)
    for _ in range(100):  # More than a socket's queue takes: never blocks.
        bells.ring(["log"])
    assert rang(bell, DEADLINE_S)
    bell.clear()
    assert not rang(bell)
    bell.close()


def test_only_those_who_wait_for_the_topic_are_woken(bells: Doorbells) -> None:
    log, inputs = bells.listen(["log"]), bells.listen(["requests", "reports"])
    bells.ring(["reports", "beats"])
    assert rang(inputs, DEADLINE_S)
    assert not rang(log)
    log.close()
    inputs.close()


def test_the_bell_of_a_killed_process_is_taken_down(bells: Doorbells, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from services.runtime.adapters.doorbell import Doorbells\n"
        "bell = Doorbells(Path(sys.argv[1])).listen(['log']); print('up', flush=True); time.sleep(300)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "bells")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert len(list((tmp_path / "bells").iterdir())) == 1
        owner.kill()
    bells.ring(["log"])
    assert list((tmp_path / "bells").iterdir()) == []


def test_bells_work_however_deep_the_directory_lies(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-long-directory-name"] * 10)
    bells = Doorbells(deep)
    bell = bells.listen(["log"])
    bells.ring(["log"])
    assert rang(bell, DEADLINE_S)
    bell.close()
    bells.close()


def test_a_reader_in_another_thread_has_the_record_long_before_it_would_look(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "cell.db", wall_ms=lambda: 0)
    writer, log = SqliteEventLog(store), SqliteEventLog(store)
    waits: list[float] = []

    def read() -> None:
        for offset in range(50):
            (record,) = log.read(offset, limit=1, timeout_s=DEADLINE_S)
            waits.append(time.monotonic() - float(record.value))
            taken.set()

    taken = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        writer.append(b"%f" % time.monotonic())
        assert taken.wait(DEADLINE_S)
        taken.clear()
    reader.join(DEADLINE_S)
    assert (
        sorted(waits)[25] < 0.1
    )  # Less than a millisecond on a quiet machine; looking takes half a second.
    for port in (writer, log):
        port.close()
    store.close()


def test_a_waiting_reader_uses_next_to_no_cpu(tmp_path: Path) -> None:
    store = Store(tmp_path / "cell.db", wall_ms=lambda: 0)
    log = SqliteEventLog(store)
    log.read(0, limit=1, timeout_s=0)
    before = time.thread_time()
    log.read(0, limit=1, timeout_s=2.0)
    assert time.thread_time() - before < 0.02
    log.close()
    store.close()
