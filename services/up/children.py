"""The children of a cell as processes: started, ended, reaped. It never decides whether one is started again.

A child dies with its parent (SIGTERM when we vanish, so that a second `up` finds nothing of the first), and reads
nothing from the terminal. Ctrl-C reaches only us: each child is a session of its own, ended in our order.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Command(msgspec.Struct, frozen=True):
    """How a child is started. Kinds are ended in the reverse of the order they were first started in."""

    name: str
    argv: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What it shares with others like it: agent, of agent-0 and agent-1."""
        return self.name.partition("-")[0]


class Ended(msgspec.Struct, frozen=True):
    """A child that is gone; `code` is negative for a signal, as subprocess has it."""

    name: str
    code: int


class Children:
    """Runs commands until `stop`. One thread uses it, the main one: it owns SIGCHLD's wake-up."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._kinds: dict[str, str] = {}  # Of every child, in the order of their first starts.
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._handler = signal.signal(signal.SIGCHLD, _noticed)

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids by name."""
        return {name: process.pid for name, process in self._running.items()}

    def start(self, command: Command) -> int:
        """Start a child; its pid. Raises OSError."""
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command.argv,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - we have one thread
        )
        self._running[command.name] = process
        self._kinds.setdefault(command.name, command.kind)
        return process.pid

    def wait(self, timeout_s: float | None) -> list[Ended]:
        """Sleep until a signal, at most `timeout_s`; children that have ended since the last call."""
        select.select([self._wake_read], [], [], timeout_s)
        self._drain()
        return self._reap()

    def stop(self, *, grace_s: float) -> list[Ended]:
        """SIGTERM to all of a kind at once, the last started kind first; SIGKILL to those that outlive their kind's grace."""
        ended: list[Ended] = []
        for kind in dict.fromkeys(reversed(self._kinds.values())):
            names = [name for name in reversed(self._kinds) if self._kinds[name] == kind]
            ended += self._stop([name for name in names if name in self._running], grace_s)
        return ended

    def _stop(self, names: Sequence[str], grace_s: float) -> list[Ended]:
        processes = {name: self._running.pop(name) for name in names}
        for process in processes.values():
            process.terminate()
        end_s = time.monotonic() + grace_s
        for process in processes.values():
            try:
                process.wait(max(0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [Ended(name, process.returncode) for name, process in processes.items()]

    def close(self) -> None:
        """Give back the wake-up; children must have been stopped."""
        signal.set_wakeup_fd(self._before)
        signal.signal(signal.SIGCHLD, self._handler)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass

    def _reap(self) -> list[Ended]:
        ended = []
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                ended.append(Ended(name, code))
        return ended


def service(name: str, *arguments: str) -> Command:
    """A deployable of ours, run by this interpreter."""
    return Command(name, (sys.executable, "-m", f"services.{name}", *arguments))


def monotonic_ms() -> int:
    """For waits and restarts."""
    return time.monotonic_ns() // 1_000_000


def exit_text(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _noticed(_number: int, _frame: object) -> None:
    """The wake-up pipe says it; a handler must exist for that."""


def _die_with(parent: int) -> Callable[[], None]:
    """Before exec: ask for SIGTERM when the parent goes, and go at once if it has gone already."""

    def ask() -> None:
        if (
            _LIBC is not None
            and _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) == 0
            and os.getppid() != parent
        ):
            os._exit(1)

    return ask
