"""What is held of a node and of a queue. Derived from runs and jobs: rebuilt when a snapshot is loaded, never stored."""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from typing import Final

from statemachines.job import JobState
from statemachines.lifecycle import Word
from statemachines.run import Run
from statemachines.values import RunId


@unique
class Share(Word):
    """What a job counts as in its queue."""

    WAITING = "waiting"
    LIVE = "live"
    HELD = "held"
    ENDED = "ended"


SHARE: Final[Mapping[JobState, Share]] = {
    JobState.QUEUED: Share.WAITING,
    JobState.HELD: Share.HELD,
    JobState.STARTING: Share.LIVE,
    JobState.RUNNING: Share.LIVE,
    JobState.STOPPING: Share.LIVE,
    JobState.SUCCEEDED: Share.ENDED,
    JobState.FAILED: Share.ENDED,
    JobState.CANCELLED: Share.ENDED,
}
_WAITING: Final = Share.WAITING
_LIVE: Final = Share.LIVE
_HELD: Final = Share.HELD


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
            holder = self.holders.get(grant.index)
            assert holder is None, (
                f"device {grant.index} of {run.node} is held by {holder}, not free for {run.id}"
            )
            self.holders[grant.index] = run.id
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

    def count(self, share: Share, by: int) -> None:
        """A job of this share came (+1) or left (-1)."""
        if share is _WAITING:
            self.waiting += by
        elif share is _LIVE:
            self.live += by
        elif share is _HELD:
            self.held += by
