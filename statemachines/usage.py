"""What is held of a node and of a queue. Derived from runs and jobs: rebuilt when a snapshot is loaded, never stored."""

from __future__ import annotations

from statemachines.job import JobState
from statemachines.run import Run
from statemachines.values import RunId


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
        name, holders = run.id, self.holders
        for grant in run.devices:
            index = grant.index
            assert index not in holders, (
                f"device {index} of {run.node} is held by {holders[index]}, not free for {name}"
            )
            holders[index] = name
        self.cpu_milli += run.cpu_milli
        self.memory_mib += run.memory_mib
        self.runs[name] = None

    def give_back(self, run: Run) -> None:
        """A run has ended here."""
        holders = self.holders
        for grant in run.devices:
            del holders[grant.index]
        self.cpu_milli -= run.cpu_milli
        self.memory_mib -= run.memory_mib
        del self.runs[run.id]


class QueueUsage:
    """Holdings of a queue and those below it. Devices and CPU are charged from placement to the attempt's end."""

    __slots__ = ("cpu_milli", "devices", "states")

    def __init__(self) -> None:
        self.devices = 0
        self.cpu_milli = 0
        self.states = dict.fromkeys(JobState, 0)

    @property
    def jobs(self) -> int:
        """Jobs in hot state, ended ones too."""
        return sum(self.states.values())

    @property
    def waiting(self) -> int:
        """Jobs that would run if they could."""
        return self.states[JobState.QUEUED]

    @property
    def held(self) -> int:
        """Jobs that wait to be released."""
        return self.states[JobState.HELD]

    @property
    def live(self) -> int:
        """Jobs with an attempt that has not ended."""
        states = self.states
        return states[JobState.STARTING] + states[JobState.RUNNING] + states[JobState.STOPPING]
