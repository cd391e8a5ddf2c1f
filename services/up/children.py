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
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Command(msgspec.Struct, frozen=True):
    """How a child is started. Children are ended in the reverse of the order they were first started in."""

    name: str
    argv: tuple[str, ...]


class Ended(msgspec.Struct, frozen=True):
    """A child that is gone; `code` is negative for a signal, as subprocess has it."""

    name: str
    code: int


class Children:
    """Runs commands until `stop`. One thread uses it, the main one: it owns SIGCHLD's wake-up."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
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
        return process.pid

    def wait(self, timeout_s: float | None) -> list[Ended]:
        """Sleep until a signal, at most `timeout_s`; children that have ended since the last call."""
        select.select([self._wake_read], [], [], timeout_s)
        self._drain()
        return self._reap()

    def stop(self, *, grace_s: float) -> list[Ended]:
        """SIGTERM to the children one after the other, last started first; SIGKILL to those that outlive the grace."""
        ended: list[Ended] = []
        for name in reversed(list(self._running)):
            process = self._running.pop(name)
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            ended.append(Ended(name, process.returncode))
        return ended

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
