"""A signal reaches the very process that was recorded, or nobody."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.local.errors import StackError
from compose.local.stack import process
from compose.local.stack.process import Condition, Identity

STAT = "77 (a) b (c)) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 9 9 9"
WAIT_S = 30.0


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Identity]:
    identity = start(tmp_path, "sleep", "600")
    yield identity
    process.send(identity, signal.SIGKILL)
    assert process.wait_gone(identity, timeout_s=WAIT_S)


def start(folder: Path, *command: str) -> Identity:
    return process.spawn(
        command,
        record=folder / "pid",
        log=folder / "log",
        environment={"PATH": os.environ["PATH"]},
    )


def test_identity_is_read_past_brackets_and_spaces_in_the_name() -> None:
    assert process.parse_identity(f"{STAT}\nboot-1\n") == Identity(77, 4242, "boot-1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "77",
        f"{STAT}",
        f"{STAT}\n",
        "77 no brackets\nboot",
        "x (a) S 1\nboot",
        f"{STAT[:20]}\nb",
    ],
)
def test_a_damaged_identity_file_names_nobody(text: str) -> None:
    assert process.parse_identity(text) is None


def test_a_process_records_itself_and_lives_in_its_own_session(
    sleeper: Identity, tmp_path: Path
) -> None:
    assert process.recorded(tmp_path / "pid") == sleeper == process.current(sleeper.pid)
    assert process.condition(sleeper) is Condition.RUNNING
    assert os.getsid(sleeper.pid) == sleeper.pid != os.getsid(0)
    assert Path(f"/proc/{sleeper.pid}/comm").read_text() == "sleep\n"


@pytest.mark.parametrize("changed", [{"started_ticks": 1}, {"boot": "an earlier boot"}])
def test_a_foreign_process_with_the_recorded_pid_is_down_and_never_signalled(
    sleeper: Identity, changed: dict[str, object]
) -> None:
    stale = dataclasses.replace(sleeper, **changed)  # type: ignore[arg-type]  # Both fields fit.
    assert process.condition(stale) is Condition.DOWN
    assert process.send(stale, signal.SIGKILL) is False
    assert process.wait_gone(stale, timeout_s=0)
    assert process.condition(sleeper) is Condition.RUNNING


def test_a_pid_that_nobody_has_is_down() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process.current(gone.pid) is None
    assert process.send(Identity(gone.pid, 1, "boot"), signal.SIGKILL) is False


def test_paused_resumed_and_killed_are_told_apart(sleeper: Identity) -> None:
    process.send(sleeper, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert process.condition(sleeper) is Condition.PAUSED
    assert process.wait_gone(sleeper, timeout_s=0) is False
    process.send(sleeper, signal.SIGCONT)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED | os.WNOWAIT)
    assert process.condition(sleeper) is Condition.RUNNING
    process.send(sleeper, signal.SIGKILL)
    assert process.wait_gone(sleeper, timeout_s=WAIT_S)
    assert process.condition(sleeper) is Condition.DOWN


def test_a_dead_child_is_collected(tmp_path: Path) -> None:
    identity = start(tmp_path, "true")
    assert process.wait_gone(identity, timeout_s=WAIT_S)
    with pytest.raises(ChildProcessError):
        os.waitpid(identity.pid, os.WNOHANG)


def test_a_program_that_does_not_exist_leaves_its_reason_in_the_log(tmp_path: Path) -> None:
    identity = start(tmp_path, "/no/such/program")
    assert process.wait_gone(identity, timeout_s=WAIT_S)
    assert "/no/such/program" in process.tail(tmp_path / "log")


def test_a_process_that_cannot_record_itself_is_never_started(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"(?s)sleep did not start:.*absent"):
        process.spawn(
            ["sleep", "600"],
            record=tmp_path / "absent" / "pid",
            log=tmp_path / "log",
            environment={},
        )


def test_the_tail_of_a_log_is_its_end_and_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert process.tail(log, lines=2) == f"  | line 99998\n  | line 99999\n  whole log: {log}"
    assert "no log at" in process.tail(tmp_path / "none")
