"""The process executor on real processes: ends, trees, output, adoption, and what a hostile run can do."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.runtime.adapters import process_tree
from services.runtime.adapters.process import ProcessExecutor, ProcessSettings
from services.runtime.executor import Found, Launch, RunEnd, StartError
from statemachines.values import Evidence, RunId

R = RunId("job.1.0")
BASE = (("PATH", "/usr/bin:/bin"),)
SETTINGS = ProcessSettings(log_bytes_max=64 << 10, processes_max=512, ended_runs_kept=3)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ProcessExecutor]:
    made = ProcessExecutor(tmp_path, SETTINGS)
    yield made
    for run in supervised(made):
        made.kill(run)
    until(lambda: not supervised(made))
    made.close()


def supervised(executor: ProcessExecutor) -> list[RunId]:
    return [run for run, alive in executor.kept().items() if alive]


def until(met: Callable[[], object], within_s: float = 60.0) -> None:
    """Look again and again until it is so."""
    give_up = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < give_up, "it never came to be"
        time.sleep(0.01)


def start(executor: ProcessExecutor, *argv: str, run: RunId = R, **fields: Any) -> None:
    executor.start(Launch(run, argv, (BASE,), **fields))


def sh(executor: ProcessExecutor, script: str, **fields: Any) -> None:
    start(executor, "sh", "-c", script, **fields)


def end_of(executor: ProcessExecutor, run: RunId = R) -> RunEnd:
    found: dict[RunId, RunEnd] = {}

    def ended() -> bool:
        found.update((end.run, end) for end in executor.ends(1.0))
        return run in found

    until(ended)
    return found[run]


def printed(executor: ProcessExecutor, run: RunId = R) -> bytes:
    text = b""
    for file in executor.output(run):
        with file:
            text += file.read()
    return text


def lives(pid: int) -> bool:
    process = process_tree.look(pid)
    return process is not None and not process.dead


def read_pid(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


# --- how a run ends


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, 0), ("exit 16", 16, 0), ("kill -9 $$", 0, 9), ("kill -SEGV $$", 0, 11)],
)
def test_exit_code_and_signal_are_kept(
    executor: ProcessExecutor, script: str, code: int, number: int
) -> None:
    sh(executor, script)
    assert end_of(executor) == RunEnd(R, Evidence.EXIT_STATUS, code, number)


def test_what_a_run_left_unsent_comes_with_its_end_and_nothing_else_does(
    executor: ProcessExecutor,
) -> None:
    sh(
        executor,
        "cd $TIDEMILL_SPOOL_DIR; mkdir rank-0 rank-1; printf two > rank-0/2.report; printf one > rank-0/1.report; "
        "printf three > rank-1/1.report; printf torn > rank-0/3.report.tmp; ln -s /etc/passwd rank-0/4.report; "
        "mkfifo rank-0/5.report; head -c 70000 /dev/zero > rank-0/6.report; ln -s rank-0 rank-2; exit 3",
    )
    assert end_of(executor) == RunEnd(
        R, Evidence.EXIT_STATUS, exit_code=3, left=(b"one", b"two", b"three")
    )


@pytest.mark.parametrize("kept", [f"{1 << 31} 0 exit_status ", "-1 0 exit_status ", "0", "", "x y"])
def test_an_end_that_no_supervisor_wrote_is_not_believed(
    executor: ProcessExecutor, tmp_path: Path, kept: str
) -> None:
    folder = tmp_path / "runs" / R
    folder.mkdir()
    (folder / "pid").touch()
    (folder / "exit").write_text(kept)
    assert executor.adopt(R) is Found.ENDED
    end = end_of(executor)
    assert (end.evidence, end.exit_code) == (Evidence.KILLED_AND_REAPED, 0)


def test_what_a_run_put_beside_its_folder_is_no_run(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    sh(executor, "mkdir ../.cache '../my files'; touch ../-x")
    end_of(executor)
    assert list(executor.kept()) == [R]
    executor.forget(R)


def test_a_spool_of_anything_gives_what_can_be_read(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    sh(executor, "cd $TIDEMILL_SPOOL_DIR/..; rmdir spool; ln -s spool spool; exit 3")
    assert end_of(executor) == RunEnd(R, Evidence.EXIT_STATUS, exit_code=3)


def test_a_process_that_may_not_be_signalled_does_not_end_the_agent() -> None:
    child = os.fork()
    if child == 0:  # Whoever may not signal the first process of the host.
        outcome = 1
        with contextlib.suppress(Exception):
            if os.geteuid() == 0:
                os.setresuid(65_534, 65_534, 65_534)
            first = process_tree.look(1)
            assert first is not None
            process_tree.send(first, signal.SIGCONT)
            outcome = 0
        os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_terminate_reaches_the_main_process_and_no_other(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    sh(
        executor,
        f"trap 'exit 5' TERM; sh -c 'trap \"echo hit\" TERM; echo $$ > {child}; "
        "while :; do sleep 1; done' & wait",
    )
    pid = read_pid(child)
    executor.terminate(R)
    assert end_of(executor).exit_code == 5
    assert not lives(pid)
    assert b"hit" not in printed(executor)


def test_a_run_that_ignores_sigterm_is_killed(executor: ProcessExecutor) -> None:
    sh(executor, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    until(lambda: b"deaf" in printed(executor))
    executor.terminate(R)
    assert executor.ends(0.5) == []
    assert executor.kill(R)
    assert end_of(executor).signal == signal.SIGKILL


def test_what_a_run_leaves_behind_dies_with_it(executor: ProcessExecutor, tmp_path: Path) -> None:
    left, daemon = tmp_path / "left", tmp_path / "daemon"
    sh(
        executor,
        f"sleep 1000 & echo $! > {left}; setsid sh -c 'echo $$ > {daemon}; exec sleep 1000' & "
        f"while [ ! -s {daemon} ]; do sleep 0.01; done; exit 0",
    )
    pids = [read_pid(left), read_pid(daemon)]
    assert end_of(executor) == RunEnd(R, Evidence.EXIT_STATUS)
    assert [pid for pid in pids if lives(pid)] == []


def test_a_daemon_that_left_its_session_parents_and_environment_is_killed(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    daemon = tmp_path / "daemon"
    inner = f"echo $$ > {daemon}; exec sleep 1000"
    sh(executor, f"(setsid env -i PATH=/usr/bin:/bin sh -c '{inner}' &) ; sleep 1000")
    pid = read_pid(daemon)
    assert executor.kill(R)
    assert end_of(executor).signal == signal.SIGKILL
    assert not lives(pid)


def test_when_one_process_of_a_member_fails_the_others_are_ended(
    executor: ProcessExecutor,
) -> None:
    script = 'if [ "$LOCAL_RANK" = 1 ]; then exit 9; fi; trap "" TERM; while :; do sleep 0.1; done'
    environments = tuple((*BASE, ("LOCAL_RANK", str(rank))) for rank in range(3))
    executor.start(Launch(R, ("sh", "-c", script), environments, grace_ms=300))
    assert end_of(executor) == RunEnd(R, Evidence.EXIT_STATUS, exit_code=9)


def test_a_fork_bomb_meets_a_wall_and_is_ended(executor: ProcessExecutor, tmp_path: Path) -> None:
    bomb = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.3)\n"
    (tmp_path / "bomb.py").write_text(bomb)
    start(executor, sys.executable, "-I", "-S", str(tmp_path / "bomb.py"))
    marks = process_tree.marks(R, executor.agent)
    until(lambda: len(process_tree.members(marks, supervisor=None)) >= 300)
    until(lambda: executor.kill(R))
    assert end_of(executor).signal == signal.SIGKILL
    assert process_tree.members(marks, supervisor=None) == []
    sh(executor, "exit 4", run=RunId("job.2.0"))
    assert end_of(executor, RunId("job.2.0")).exit_code == 4


# --- what is not started


def missing_interpreter(folder: Path) -> str:
    path = folder / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o700)
    return str(path)


def not_executable(folder: Path) -> str:
    (folder / "plain").write_text("echo\n")
    return str(folder / "plain")


def no_program(folder: Path) -> str:
    (folder / "data").write_bytes(b"\1\2\3")
    (folder / "data").chmod(0o700)
    return str(folder / "data")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (lambda _: "no-such-command", "command not found: 'no-such-command'; give a path"),
        (lambda _: "/no/such/path", "command not found: '/no/such/path'"),
        (missing_interpreter, "the interpreter that its first line names does not exist"),
        (not_executable, "is not executable; chmod"),
        (no_program, "begin a script with #!"),
    ],
)
def test_a_command_that_cannot_run_is_not_started_and_the_message_says_why(
    executor: ProcessExecutor, tmp_path: Path, command: Callable[[Path], str], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        start(executor, command(tmp_path))
    assert executor.ends(0) == []
    assert supervised(executor) == []


def test_a_missing_working_directory_is_said(executor: ProcessExecutor) -> None:
    with pytest.raises(StartError, match="working directory '/no/such': No such file"):
        start(executor, "true", workdir="/no/such")


def test_a_nul_in_the_command_is_refused_before_anything_is_made(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="NUL"):
        start(executor, "echo", "a\0b")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_host_without_room_for_a_supervisor_is_said_and_nothing_is_started(
    executor: ProcessExecutor,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(StartError, match="could not be started: Too many open files"):
            start(executor, "true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert executor.adopt(R) is Found.ABSENT
    start(executor, "true")
    assert end_of(executor) == RunEnd(R, Evidence.EXIT_STATUS)


def test_an_environment_too_large_for_the_host_is_said(executor: ProcessExecutor) -> None:
    huge = (*BASE, *((f"V{i}", "x" * 100_000) for i in range(40)))
    with pytest.raises(StartError, match="too large for this host"):
        executor.start(Launch(R, ("true",), (huge,)))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "x" * 200, "a\0b", "-x"])
def test_no_run_id_becomes_a_path_elsewhere(executor: ProcessExecutor, name: str) -> None:
    with pytest.raises(ValueError, match="is not a run id"):
        start(executor, "true", run=RunId(name))
    with pytest.raises(ValueError, match="is not a run id"):
        executor.output(RunId(name))


def test_a_run_is_never_started_twice(executor: ProcessExecutor) -> None:
    sh(executor, "exit 0")
    with pytest.raises(FileExistsError):
        sh(executor, "exit 1")
    assert end_of(executor).exit_code == 0


# --- what a run is given


def test_a_script_runs_with_the_arguments_after_it(executor: ProcessExecutor) -> None:
    executor.start(Launch(R, ("one", "two"), (BASE,), script=b"#!/bin/sh\necho got $1 $2\n"))
    assert end_of(executor).exit_code == 0
    assert printed(executor) == b"got one two\n"


def test_unicode_and_newlines_arrive_as_they_are(executor: ProcessExecutor) -> None:
    value = "naïve\n日本 🚂=x"
    executor.start(
        Launch(R, ("sh", "-c", 'printf %s "$V:$1"', "sh", value), ((*BASE, ("V", value)),))
    )
    end_of(executor)
    assert printed(executor).decode() == f"{value}:{value}"


def test_a_run_gets_no_descriptor_or_variable_of_the_agent(
    executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_AGENT_SECRET", "s3cret")
    with open("/dev/null", "rb") as ours:  # noqa: PTH123
        os.set_inheritable(ours.fileno(), True)
        sh(executor, "env; ls /proc/self/fd")
        end_of(executor)
    text = printed(executor).decode()
    assert "s3cret" not in text
    # 0 to 2, and the one that ls itself opened.
    assert text.split()[-4:] == ["0", "1", "2", "3"]


def test_each_process_leads_a_session_and_group_of_its_own(executor: ProcessExecutor) -> None:
    start(executor, "sh", "-c", "read -r pid comm state ppid group session rest < /proc/$$/stat; "
          "echo $pid $group $session")  # fmt: skip
    end_of(executor)
    pid, group, session = printed(executor).split()
    assert pid == group == session


def test_signals_that_python_ignores_are_given_back(executor: ProcessExecutor) -> None:
    sh(executor, "grep SigIgn /proc/self/status")
    end_of(executor)
    ignored = int(printed(executor).split()[1], 16)
    assert [number for number in range(1, 32) if ignored >> (number - 1) & 1] == []


# --- output


def test_a_flood_of_output_neither_blocks_nor_fills_the_disk(executor: ProcessExecutor) -> None:
    sh(executor, "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo the end")
    assert end_of(executor).exit_code == 0
    kept = printed(executor)
    assert len(kept) <= SETTINGS.log_bytes_max + (64 << 10)
    assert kept.endswith(b"x\nthe end\n")


def test_output_is_not_read_through_a_link_that_the_run_put_there(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    folder = tmp_path / "runs" / R
    sh(executor, f"ln -sf {secret} {folder}/out.log; mkfifo {folder}/out.1.log")
    end_of(executor)
    with pytest.raises(FileNotFoundError, match="no output of"):
        executor.output(R)


def test_the_early_save_file_is_replaced_whole(executor: ProcessExecutor, tmp_path: Path) -> None:
    sh(
        executor,
        "while ! grep -qs 500 $TIDEMILL_ASK_FILE; do sleep 0.01; done; cat $TIDEMILL_ASK_FILE",
    )
    executor.ask(R, 1, 0, stop_after=True)
    executor.ask(R, 1, 500, stop_after=True)
    end_of(executor)
    assert printed(executor) == b'{"ask":1,"at_step":500,"stop_after_save":true}\n'


def test_folders_of_ended_runs_are_kept_up_to_a_bound(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    for number in range(5):
        run = RunId(f"job.{number}.0")
        sh(executor, "echo hello", run=run)
        end_of(executor, run)
        executor.forget(run)
    kept = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert kept == ["job.2.0", "job.3.0", "job.4.0"]
    assert printed(executor, RunId("job.4.0")) == b"hello\n"


# --- another agent takes over


def test_a_run_that_lives_is_adopted(executor: ProcessExecutor, tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    sh(executor, f"read word < {fifo}; exit 3")
    successor = ProcessExecutor(tmp_path, SETTINGS)
    assert successor.adopt(R) is Found.ALIVE
    fifo.write_text("go\n")
    assert end_of(successor).exit_code == 3
    successor.close()


def test_an_end_that_nobody_saw_is_found(executor: ProcessExecutor, tmp_path: Path) -> None:
    sh(executor, "exit 12")
    until(lambda: not supervised(executor))
    successor = ProcessExecutor(tmp_path, SETTINGS)
    assert successor.adopt(R) is Found.ENDED
    assert end_of(successor).exit_code == 12
    successor.close()


def test_a_run_whose_supervisor_was_killed_is_killed_and_reported(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    mine = tmp_path / "pid"
    sh(executor, f"echo $$ > {mine}; exec sleep 1000")
    pid = read_pid(mine)
    supervisor = int((tmp_path / "runs" / R / "pid").read_text().split()[0])
    os.kill(supervisor, signal.SIGKILL)
    end = end_of(executor)
    assert (end.evidence, end.signal) == (Evidence.KILLED_AND_REAPED, 9)
    assert "supervisor was killed" in end.message
    assert not lives(pid)


def test_nothing_is_found_of_a_run_that_never_was(executor: ProcessExecutor) -> None:
    assert executor.adopt(R) is Found.ABSENT
    assert executor.kill(R)


def test_an_agent_that_died_before_its_order_was_whole_started_nothing(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / R
    folder.mkdir()
    whole = executor._order(Launch(R, ("touch", str(tmp_path / "ran")), (BASE,)), ("touch", str(tmp_path / "ran")),
                            folder, executor._cgroups.find(R))  # fmt: skip
    executor._spawn(folder, whole[: len(whole) // 2])
    until(lambda: R not in supervised(executor))
    assert executor.adopt(R) is Found.ABSENT
    assert not (tmp_path / "ran").exists()
    sh(executor, "exit 6")
    assert end_of(executor).exit_code == 6


def test_a_pid_that_became_another_process_is_not_signalled() -> None:
    with subprocess.Popen(["/bin/sleep", "1000"]) as stranger:
        seen = process_tree.look(stranger.pid)
        assert seen is not None
        earlier = process_tree.Process(seen.pid, seen.parent, seen.started - 1, dead=False)
        process_tree.send(earlier, signal.SIGKILL)
        assert stranger.poll() is None
        process_tree.send(seen, signal.SIGKILL)
        assert stranger.wait() == -signal.SIGKILL


def test_a_supervisors_pid_that_became_another_process_is_not_taken_for_it(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    with subprocess.Popen(["/bin/sleep", "1000"]) as stranger:
        sh(executor, "exec sleep 1000")
        pid_file = tmp_path / "runs" / R / "pid"
        honest = pid_file.read_text()
        pid_file.write_text(f"{stranger.pid} 1\n")
        executor.terminate(R)
        assert executor.kill(R)
        assert stranger.poll() is None
        pid_file.write_text(honest)
        stranger.kill()
    assert end_of(executor).signal == signal.SIGKILL


def test_another_agents_run_of_the_same_name_is_left_alone(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    neighbour = ProcessExecutor(tmp_path / "other", SETTINGS)
    mine = tmp_path / "pid"
    sh(neighbour, f"echo $$ > {mine}; exec sleep 1000")
    pid = read_pid(mine)
    assert executor.kill(R)
    assert lives(pid)
    assert neighbour.kill(R)
    end_of(neighbour)
    neighbour.close()


@pytest.mark.parametrize("stop", [ProcessExecutor.terminate, ProcessExecutor.kill])
def test_a_run_that_stops_its_supervisor_can_still_be_ended(
    executor: ProcessExecutor, stop: Callable[[ProcessExecutor, RunId], object]
) -> None:
    sh(executor, "until [ -e go ]; do sleep 0.01; done; kill -STOP $PPID; exec sleep 1000")
    (executor._runs / R / "go").touch()
    supervisor = int((executor._runs / R / "pid").read_text().split()[0])
    until(lambda: "T" in Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[0])
    stop(executor, R)
    assert end_of(executor).signal in {signal.SIGTERM, signal.SIGKILL}


def test_a_run_that_removes_its_own_files_is_ended_all_the_same(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    mine = tmp_path / "pid"
    sh(executor, f"echo $$ > {mine}; rm -rf {tmp_path}/runs/{R}; exec sleep 1000")
    pid = read_pid(mine)
    # Told by its supervisor, if that could still write it down before the last file was gone, else by the agent.
    assert end_of(executor).signal == signal.SIGKILL
    assert not lives(pid)


# --- fencing by the supervisor alone


def stamp(executor: ProcessExecutor, ago_ms: int = 0) -> None:
    mono = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    executor.renew(mono - ago_ms, boot - ago_ms, 1)


def test_a_supervisor_fences_its_run_when_the_agent_renews_no_more(
    executor: ProcessExecutor,
) -> None:
    stamp(executor)
    began = time.monotonic()
    sh(
        executor,
        "trap '' TERM; setsid sleep 1000 & while :; do sleep 0.1; done",
        fence_after_ms=700,
    )
    end = end_of(executor)
    assert (end.evidence, end.signal) == (Evidence.SELF_FENCED, 9)
    assert time.monotonic() - began >= 0.6


def test_renewals_keep_the_supervisor_from_fencing(executor: ProcessExecutor) -> None:
    stamp(executor)
    sh(executor, "sleep 2; exit 8", fence_after_ms=1_000)
    found: list[RunEnd] = []

    def ended() -> bool:
        stamp(executor)
        found.extend(executor.ends(0.05))
        return bool(found)

    until(ended)
    assert found == [RunEnd(R, Evidence.EXIT_STATUS, exit_code=8)]


def test_a_start_that_was_held_up_past_the_fence_does_not_happen(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    stamp(executor, ago_ms=5_000)
    with pytest.raises(StartError, match="did not answer this node for too long before the start"):
        sh(executor, f"touch {tmp_path}/ran", fence_after_ms=1_000)
    assert not (tmp_path / "ran").exists()


def test_a_stamp_of_another_boot_renews_nothing(executor: ProcessExecutor) -> None:
    stamp(executor, ago_ms=-3_600_000)
    sh(executor, "sleep 1000", fence_after_ms=300)
    assert end_of(executor).evidence is Evidence.SELF_FENCED


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with contextlib.suppress(OSError), (disk / "ballast2").open("wb", buffering=0) as file:
        while True:
            file.write(b"x")


def test_on_a_full_disk_a_run_prints_on_ends_and_its_end_is_kept(small_disk: Path) -> None:
    executor = ProcessExecutor(small_disk, SETTINGS)
    fifo = small_disk / "go"
    os.mkfifo(fifo)
    sh(executor, f"echo first; read word < {fifo}; head -c 3000000 /dev/zero; exit 11")
    until(lambda: b"first" in printed(executor))
    fill(small_disk)
    stamp(executor)
    fifo.write_text("go\n")
    assert end_of(executor) == RunEnd(R, Evidence.EXIT_STATUS, exit_code=11)
    with pytest.raises(StartError, match="make space"):
        sh(executor, "exit 0", run=RunId("job.2.0"))
    (small_disk / "ballast").unlink()
    sh(executor, "exit 0", run=RunId("job.3.0"))
    assert end_of(executor, RunId("job.3.0")).exit_code == 0
    executor.close()
