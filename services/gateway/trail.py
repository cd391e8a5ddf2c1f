"""Where in the log things are: the offsets of each live job's facts, and the chain's head at marks along the way.

Both save reading the whole log for one answer. Kept by the live fold, so they begin where it began (`since`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from services.gateway.history import jobs_of
from services.runtime.ids import array_element
from statemachines.cluster import Cluster
from statemachines.entry import GENESIS, Entry
from statemachines.facts import Fact, JobAdmitted

MARK_EVERY: Final = 1_000


class Mark(msgspec.Struct, frozen=True):
    """The chain after the record at `offset`."""

    offset: int
    head: bytes
    term: int


BEGINNING: Final = Mark(-1, GENESIS, 0)


class Trail:
    """Follows the live fold."""

    def __init__(self, cluster: Cluster) -> None:
        self.since = cluster.offset + 1
        self._marks = [BEGINNING]
        self._jobs: dict[str, array[int]] = {}
        self._older: set[str] = set(cluster.jobs)
        self._mark(cluster)

    def folded(self, cluster: Cluster, entry: Entry) -> None:
        """An entry was accepted."""
        for recorded in entry.facts:
            for job in _names(recorded.fact):
                if job in cluster.jobs:
                    offsets = self._jobs.setdefault(job, array("q"))
                    if not offsets or offsets[-1] != entry.offset:
                        offsets.append(entry.offset)
                else:  # It has left, or is the name of an array.
                    self._jobs.pop(job, None)
                    self._older.discard(job)
        if entry.offset - self._marks[-1].offset >= MARK_EVERY:
            self._mark(cluster)

    def offsets(self, job: str) -> Sequence[int]:
        """Offsets of entries from `since` on that hold facts about the job, in order."""
        return tuple(self._jobs.get(job, ()))

    def is_whole(self, job: str) -> bool:
        """Whether `offsets` begin with the job's admission."""
        return job in self._jobs and job not in self._older

    def before(self, offset: int) -> Mark:
        """The last mark from which the record at `offset` can be reached."""
        found = bisect_right(self._marks, offset - 1, key=lambda mark: mark.offset)
        return self._marks[max(found - 1, 0)]

    def heads(self) -> Mapping[int, bytes]:
        """Heads by offset at all marks: what a walk from the beginning must come by."""
        return {mark.offset: mark.head for mark in self._marks[1:]}

    def _mark(self, cluster: Cluster) -> None:
        if cluster.offset > self._marks[-1].offset:
            self._marks.append(Mark(cluster.offset, cluster.head, cluster.term))


def _names(fact: Fact) -> tuple[str, ...]:
    if isinstance(fact, JobAdmitted) and fact.count:
        return tuple([array_element(fact.job, i) for i in range(fact.count)])
    return jobs_of(fact)
