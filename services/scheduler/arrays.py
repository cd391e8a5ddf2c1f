"""Which job arrays are in hot state, so that one request can name all elements. Rebuilt from state at start.

Ids of submitted jobs hold no underscore (see submissions.py), so "<array>_<i>" is an element and nothing else is.
"""

from __future__ import annotations

from collections import Counter

from services.runtime import ids
from statemachines.cluster import Cluster, Touched
from statemachines.values import JobId


class Arrays:
    """Arrays by their id: one more than the highest index that was admitted, and how many elements are left."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends: dict[str, int] = {}
        self._left: Counter[str] = Counter()
        for job in cluster.jobs:
            array, underscore, index = job.partition("_")
            if underscore:
                self._ends[array] = max(self._ends.get(array, 0), int(index) + 1)
                self._left[array] += 1

    def admitted(self, array: JobId, count: int) -> None:
        """An array was admitted."""
        self._ends[array] = self._left[array] = count

    def refresh(self, touched: Touched) -> None:
        """Forget arrays of which no element is left."""
        jobs = self._cluster.jobs
        for job in touched.jobs:
            if job not in jobs:
                array, underscore, _ = job.partition("_")
                if underscore:
                    self._gone(array)

    def named(self, name: str) -> list[JobId]:
        """The job of that id, or the elements of that array that are still in hot state, in order; else none."""
        jobs = self._cluster.jobs
        job = JobId(name)
        if job in jobs:
            return [job]
        elements = [ids.array_element(job, index) for index in range(self._ends.get(name, 0))]
        return [element for element in elements if element in jobs]

    def _gone(self, array: str) -> None:
        self._left[array] -= 1
        if self._left[array] == 0:
            del self._left[array], self._ends[array]
