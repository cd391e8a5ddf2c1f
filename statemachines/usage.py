"""What is held of a node and of a queue. Derived from runs and jobs: rebuilt when a snapshot is loaded, never stored."""

from __future__ import annotations

from typing import Final

from statemachines.job import JobState
from statemachines.run import Run
from statemachines.values import JobSpec, RunId

_WAITING: Final = JobState.QUEUED
_HELD: Final = JobState.HELD
_LIVE: Final = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


class NodeUsage:
    """Holdings of the open runs of one node: devices by index, milli-CPU, MiB. A device has one holder at most."""

    __slots__ = ("cpu_milli", "holders", "memory_mib", "runs")

    def __init__(self) -> None:
        self.cpu_milli = 0
        self.memory_mib = 0
        self.holders: dict[int, RunId] = {}
        self.runs: dict[RunId, None] = {}

    def take(self, run: Run) -> None:
        """A run was placed here; asserts that what it was granted is free."""
        for grant in run.devices:
            holder = self.holders.setdefault(grant.index, run.id)
            assert holder == run.id, (
                f"device {grant.index} of {run.node} is held by {holder}, not free for {run.id}"
            )
        self.cpu_milli += run.cpu_milli
        self.memory_mib += run.memory_mib
        self.runs[run.id] = None

    def give_back(self, run: Run) -> None:
        """A run has ended here."""
        for grant in run.devices:
            del self.holders[grant.index]
        self.cpu_milli -= run.cpu_milli
        self.memory_mib -= run.memory_mib
        del self.runs[run.id]


class QueueUsage:
    """Holdings of a queue and those below it. Devices and CPU are charged from placement to the attempt's end."""

    __slots__ = ("cpu_milli", "devices", "held", "jobs", "live", "waiting")

    def __init__(self) -> None:
        self.devices = 0
        self.cpu_milli = 0
        self.jobs = 0
        self.waiting = 0
        self.live = 0
        self.held = 0

    def charge(self, spec: JobSpec, sign: int) -> None:
        """An attempt of a job of this spec was placed (+1) or has ended (-1)."""
        self.devices += sign * spec.devices
        self.cpu_milli += sign * spec.cpu_milli

    def count(self, state: JobState, sign: int) -> None:
        """A job in `state` came (+1) or left (-1)."""
        self.jobs += sign
        self._at(state, sign)

    def move(self, before: JobState, after: JobState) -> None:
        """A job went from one state to another."""
        self._at(before, -1)
        self._at(after, 1)

    def _at(self, state: JobState, sign: int) -> None:
        if state is _WAITING:
            self.waiting += sign
        elif state is _HELD:
            self.held += sign
        elif state in _LIVE:
            self.live += sign
