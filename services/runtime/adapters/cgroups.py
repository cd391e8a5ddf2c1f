"""Control groups of runs: limits of memory, CPU share and number of processes, and a way to kill all at once.

Works with version 1, 2, or both mounted, below the group that the agent itself is in, where that may be written. What
is not available limits nothing and is said once. It never fails a start: a run without limits is still a run.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

SELF: Final = Path("/proc/self")
V2: Final = ""
WANTED: Final = ("cpu", "memory", "pids")
V1_SHARES_OF_ONE_CPU: Final = 1024
V2_WEIGHT_OF_ONE_CPU: Final = 100
MIB: Final = 1 << 20

log = structlog.get_logger()


class Limits(msgspec.Struct, frozen=True):
    """0: no limit. CPU is a share under contention, never a cap: idle cycles are for whoever wants them."""

    cpu_milli: int = 0
    memory_mib: int = 0
    processes_max: int = 0


class Group:
    """The groups of one run, one for each hierarchy that can be written."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(folders)

    @property
    def doors(self) -> tuple[str, ...]:
        """Files through which a process joins, by writing 0."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def pids(self) -> set[int]:
        """Processes that are in any of them."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return found

    def limits_processes(self) -> bool:
        """Whether a fork bomb meets a wall here."""
        return any((folder / "pids.max").exists() for folder in self.folders)

    def kill(self) -> None:
        """Kill all members at once, where the kernel can (version 2 since Linux 5.14)."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1", newline="")
                return

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a member for the memory limit."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    words = (folder / name).read_text().split()
                    return int(words[words.index("oom_kill") + 1]) > 0
        return False

    def remove(self) -> None:
        """Take the empty groups away; one that the kernel still holds is left for the next start."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


class Cgroups:
    """All groups of one agent."""

    def __init__(self, scope: str) -> None:
        self._roots = _writable_roots(f"tidemill-{scope}")
        missing = [name for name in WANTED if not any(name in kinds for kinds, _ in self._roots)]
        if missing:
            log.info(
                "cgroup_limits_unavailable",
                controllers=missing,
                hint="runs are not held to these limits; run the agent as root, or under systemd with Delegate=yes",
            )

    def make(self, run: str, limits: Limits) -> Group:
        """The group of a run, limited as far as this host allows."""
        folders = []
        for kinds, root in self._roots:
            folder = root / run
            with contextlib.suppress(OSError):
                _prepare(root, v2=V2 in kinds)  # Another agent takes away what looks left behind.
                folder.mkdir(exist_ok=True)
                folders.append(folder)
                _limit(folder, limits, v2=V2 in kinds)
        return Group(folders)

    def find(self, run: str) -> Group:
        """The group of a run that may have been made by an earlier agent."""
        folders = (root / run for _, root in self._roots)
        return Group(folder for folder in folders if folder.is_dir())

    def close(self) -> None:
        """Remove the agent's own folders, if no run is left in them."""
        for _, root in self._roots:
            with contextlib.suppress(OSError):
                root.rmdir()


def _limit(folder: Path, limits: Limits, *, v2: bool) -> None:
    memory = limits.memory_mib * MIB
    wanted = {"pids.max": limits.processes_max}
    if v2:
        weight = limits.cpu_milli * V2_WEIGHT_OF_ONE_CPU // 1000
        wanted |= {"memory.max": memory, "cpu.weight": min(max(weight, 1), 10_000) if weight else 0}
    else:
        shares = limits.cpu_milli * V1_SHARES_OF_ONE_CPU // 1000
        wanted |= {"memory.limit_in_bytes": memory, "cpu.shares": max(shares, 2) if shares else 0}
    for name, value in wanted.items():
        if value and (folder / name).exists():
            with contextlib.suppress(OSError):
                (folder / name).write_text(str(value), newline="")


def _writable_roots(name: str) -> list[tuple[frozenset[str], Path]]:
    """(controllers, folder of this agent) for each hierarchy that lets us make groups; V2 stands for version 2."""
    roots = []
    for kinds, place in _own_groups():
        if V2 not in kinds and kinds.isdisjoint(WANTED):
            continue
        folder = place / name
        with contextlib.suppress(OSError):
            usable = kinds
            if V2 in kinds:
                usable |= _delegate(place)
            _prepare(folder, v2=V2 in kinds)
            probe = folder / f"probe-{os.getpid()}-{time.monotonic_ns()}"
            probe.mkdir()
            probe.rmdir()
            roots.append((usable, folder))
            _prune(place)
    return roots


def _prepare(folder: Path, *, v2: bool) -> None:
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        if v2:
            _delegate(folder)


def _prune(place: Path) -> None:
    """Take away the empty folders of agents that were killed; the kernel refuses for those with runs."""
    for folder in place.glob("tidemill-*"):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _delegate(folder: Path) -> frozenset[str]:
    """Let groups below use the controllers; answers which they may."""
    for controller in WANTED:
        with contextlib.suppress(OSError):  # Not available here, or processes in the way.
            (folder / "cgroup.subtree_control").write_text(f"+{controller}", newline="")
    return frozenset((folder / "cgroup.subtree_control").read_text().split())


def _own_groups() -> list[tuple[frozenset[str], Path]]:
    """Where this process is in each mounted hierarchy."""
    mounts = {
        kinds: (root, mount) for kinds, root, mount in map(_mounted, _lines("mountinfo")) if kinds
    }
    own = []
    for line in _lines("cgroup"):
        _, names, path = line.split(":", 2)
        kinds = frozenset(names.split(","))
        if kinds in mounts:
            root, mount = mounts[kinds]
            own.append((kinds, mount / path.removeprefix(root).lstrip("/")))
    return own


def _mounted(line: str) -> tuple[frozenset[str], str, Path]:
    """(controllers, root, mount point) of a line of mountinfo; no controllers: not a control group."""
    before, _, after = line.partition(" - ")
    kind, _, options = after.split(" ", 2)
    root, mount = before.split()[3:5]
    if kind == "cgroup2":
        return frozenset({V2}), root, Path(mount)
    if kind == "cgroup":
        return frozenset(options.split()[-1].split(",")) - {"rw", "ro"}, root, Path(mount)
    return frozenset(), root, Path(mount)


def _lines(name: str) -> list[str]:
    return (SELF / name).read_text().splitlines()
