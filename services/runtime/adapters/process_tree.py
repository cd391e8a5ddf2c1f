"""Which processes of this host belong to a run, and how to end all of them. Reads /proc; never trusts a pid alone.

A process belongs to a run if it is below the run's supervisor, if it carries the run's mark in its environment, or if
it is in the run's group. A pid is signalled only through a pidfd whose process still has the start time seen before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")
# Rounds of stopping before the killing begins: what is stopped cannot fork away.
STOP_ROUNDS: Final = 3
ROUND_S: Final = 0.005
_DEAD: Final = frozenset({b"Z", b"X"})


class Process(msgspec.Struct, frozen=True, gc=False):
    """One process at one moment; (pid, started) names it for ever, a pid alone does not."""

    pid: int
    parent: int
    started: int
    dead: bool


def look(pid: int | str) -> Process | None:
    """What /proc says of a process; None when it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    words = stat.rpartition(b")")[2].split()
    return Process(int(pid), int(words[1]), int(words[19]), words[0] in _DEAD)


def everyone() -> dict[int, Process]:
    """All processes now, by pid."""
    seen = (look(path.name) for path in PROC.iterdir() if path.name.isdecimal())
    return {process.pid: process for process in seen if process is not None}


def marks(run: str, agent: str) -> tuple[bytes, ...]:
    """What every process of a run carries in its environment."""
    return (f"TIDEMILL_RUN={run}".encode(), f"TIDEMILL_AGENT={agent}".encode())


def carries(pid: int, wanted: Iterable[bytes]) -> bool:
    """Whether the process was started with these environment entries."""
    try:
        environment = set((PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:  # Gone, or another user's: none of ours.
        return False
    return environment.issuperset(wanted)


def below(root: int, processes: Mapping[int, Process]) -> set[int]:
    """Descendants of a process."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        new = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(new)
        todo += new
    return found


def members(
    wanted: tuple[bytes, ...], *, supervisor: int | None, grouped: Iterable[int] = ()
) -> list[Process]:
    """Living processes of a run, its supervisor not among them."""
    processes = everyone()
    ours = below(supervisor, processes) if supervisor is not None else set()
    ours.update(grouped)
    ours.update(pid for pid in processes if pid not in ours and carries(pid, wanted))
    ours -= {supervisor, os.getpid()}
    found = (processes.get(pid) for pid in sorted(ours))
    return [process for process in found if process is not None and not process.dead]


def send(process: Process, number: int) -> None:
    """Signal this very process, never another one that got its pid. One that we may not signal (sudo) is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        fd = os.pidfd_open(process.pid)
        try:
            now = look(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def end_all(find: Callable[[], list[Process]], *, budget_s: float) -> bool:
    """Kill what `find` answers until it answers nothing; False when the budget was used up before."""
    give_up = time.monotonic() + budget_s
    left = find()
    for _ in range(STOP_ROUNDS if left else 0):
        for process in left:
            send(process, signal.SIGSTOP)
        left = find()
    while left:
        for process in left:
            send(process, signal.SIGKILL)
        if time.monotonic() >= give_up:
            return False
        time.sleep(ROUND_S)
        left = find()
    return True
