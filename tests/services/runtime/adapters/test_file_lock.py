"""The lock dies with its holder, however it dies; terms never go back."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.adapters.file_lock import FileLock
from services.runtime.ports import DamagedError, PortError

HOLDER = """
import sys, time
from pathlib import Path
from services.runtime.adapters.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.campaign(30), flush=True)
time.sleep(300)
"""


def test_a_killed_leader_frees_the_lock_and_the_next_term_is_higher(tmp_path: Path) -> None:
    path = tmp_path / "leader.lock"
    standby = FileLock(path)
    for term in (1, 3, 5):
        argv = [sys.executable, "-c", HOLDER, str(path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as leader:
            assert leader.stdout is not None
            assert leader.stdout.readline() == f"{term}\n"
            assert standby.campaign(0) is None
            leader.kill()
        assert standby.campaign(30) == term + 1
        standby.close()
        standby = FileLock(path)
    standby.close()


def test_winning_again_while_holding_is_a_new_term(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "leader.lock")
    assert [lock.campaign(0), lock.campaign(0)] == [1, 2]
    lock.close()


def test_a_file_that_holds_no_term_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "leader.lock"
    path.write_text("elephant\n")
    lock = FileLock(path)
    with pytest.raises(DamagedError, match="Write the log's highest term there"):
        lock.campaign(0)
    assert path.read_text() == "elephant\n"
    lock.close()


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PortError, match="Give a directory"):
        FileLock(tmp_path / "file" / "leader.lock")
