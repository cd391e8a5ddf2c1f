"""One process that outlives its launcher: started, identified, signalled, and never mistaken.

A process writes its own identity file before it becomes the program, so no instant exists in which
it runs unrecorded. A signal is sent only to the very process of that file (pid, start time and
boot), through a pidfd, so a reused pid is never hit. Linux only. It knows no Kafka and no etcd.
"""

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from compose.local.errors import StackError

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
RECORD_WAIT_S: Final = 20.0
POLL_S: Final = 0.01

# Positional: the identity file, then the command. `exec` keeps pid and start time.
RECORD_THEN_BECOME: Final = (
    'cat "/proc/$$/stat" /proc/sys/kernel/random/boot_id >"$1.new" && mv "$1.new" "$1"'
    ' && shift && exec "$@"'
)


class Condition(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Identity:
    """What no two processes share: a pid is reused, a pid with its start time and boot is not."""

    pid: int
    started_ticks: int
    boot: str


def parse_identity(text: str) -> Identity | None:
    """Read a line of /proc/PID/stat followed by the boot id; None if the text is damaged."""
    lines = text.split("\n")
    try:
        pid, (_, started) = int(lines[0].split(" ", 1)[0]), _state_and_start(lines[0])
        boot = lines[1].strip()
    except (ValueError, IndexError):
        return None
    return Identity(pid, started, boot) if boot else None


def _state_and_start(stat: str) -> tuple[str, int]:
    """Fields 3 and 22 of proc_pid_stat(5); the name before them may hold spaces and brackets."""
    fields = stat[stat.rindex(")") + 1 :].split()
    return fields[0], int(fields[19])


def current(pid: int) -> Identity | None:
    """Who has this pid now; None when nobody has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return parse_identity(f"{stat.rstrip()}\n{BOOT_ID.read_text()}")


def recorded(file: Path) -> Identity | None:
    """Who wrote this identity file; None when there is none, or a damaged one."""
    try:
        return parse_identity(file.read_text())
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def condition(identity: Identity | None) -> Condition:
    """How the process is now. A dead child of ours is collected on the way."""
    if identity is None:
        return Condition.DOWN
    try:
        stat = Path(f"/proc/{identity.pid}/stat").read_text()
        boot = BOOT_ID.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return Condition.DOWN
    state, started = _state_and_start(stat)
    if (started, boot) != (identity.started_ticks, identity.boot):
        return Condition.DOWN  # The pid is someone else's by now.
    if state in {"Z", "X"} and _has_ended(identity.pid):
        return Condition.DOWN
    return Condition.PAUSED if state in {"T", "t"} else Condition.RUNNING


def _has_ended(pid: int) -> bool:
    """Whether a process whose first thread is dead is gone as a whole, its sockets closed.

    After SIGKILL the first thread of a JVM is a zombie while others still hold its ports.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended = _await_end(handle, timeout_ms=0)
    finally:
        os.close(handle)
    if ended:
        with suppress(ChildProcessError):  # Not our child: init, or another launcher, collects it.
            os.waitpid(pid, os.WNOHANG)
    return ended


def _await_end(handle: int, *, timeout_ms: float | None) -> bool:
    """Wait for the end of the process, all threads, that a pidfd stands for."""
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    return bool(ended.poll(timeout_ms))


def send(identity: Identity | None, number: signal.Signals) -> bool:
    """Signal exactly this process; False if it is gone."""
    if identity is None:
        return False
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle is taken first: if the identity still fits, the handle is that process.
        if condition(identity) is Condition.DOWN:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_gone(identity: Identity | None, *, timeout_s: float | None) -> bool:
    """Wait until the process has ended; False if it still runs after the time (None: no limit)."""
    if identity is None:
        return True
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return True
    try:
        if condition(identity) is not Condition.DOWN:
            timeout_ms = None if timeout_s is None else max(0.0, timeout_s) * 1000
            _await_end(handle, timeout_ms=timeout_ms)
    finally:
        os.close(handle)
    return condition(identity) is Condition.DOWN


def spawn(
    command: Sequence[str], *, record: Path, log: Path, environment: Mapping[str, str]
) -> Identity:
    """Start the command in a session of its own, output appended to `log`; return when recorded.

    Raises:
        StackError: it ended before it could record itself (disk full, no such program).
    """
    record.unlink(missing_ok=True)
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", RECORD_THEN_BECOME, "start", str(record), *command],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP],
    )
    deadline = time.monotonic() + RECORD_WAIT_S
    while (identity := recorded(record)) is None or identity.pid != pid:
        if os.waitpid(pid, os.WNOHANG) != (0, 0) or time.monotonic() > deadline:
            raise StackError(f"{command[0]} did not start:\n{tail(log)}")
        time.sleep(POLL_S)
    return identity


def tail(log: Path, *, lines: int = 15, limit_bytes: int = 16_384) -> str:
    """The last lines of a log, indented for an error message; never the whole file."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - limit_bytes))
            text = stream.read(limit_bytes).decode(errors="replace")
    except FileNotFoundError:
        return f"  | (no log at {log})"
    last = text.splitlines()[-lines:] or ["(empty)"]
    return "\n".join([*(f"  | {line}" for line in last), f"  whole log: {log}"])
