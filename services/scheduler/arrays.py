"""Which job arrays are in hot state, so that one request can name all elements. Rebuilt from state at start.

Ids of submitted jobs hold no underscore (see submissions.py), so "<array>_<i>" is an element and nothing else is.
"""

from __future__ import annotations

from services.runtime import ids
from statemachines.cluster import Cluster
from statemachines.values import JobId


class Arrays:
    """Arrays by their id, with one more than the highest index that was admitted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._counts: dict[str, int] = {}
        for job in cluster.jobs:
            array, underscore, index = job.partition("_")
            if underscore:
                self._counts[array] = max(self._counts.get(array, 0), int(index) + 1)

    def admitted(self, array: JobId, count: int) -> None:
        """An array was admitted."""
        self._counts[array] = count

    def named(self, name: str) -> list[JobId]:
        """The job of that id, or the elements of that array that are still in hot state, in order; else none."""
        jobs = self._cluster.jobs
        job = JobId(name)
        if job in jobs:
            return [job]
        count = self._counts.get(name, 0)
        elements = [ids.array_element(job, index) for index in range(count)]
        found = [element for element in elements if element in jobs]
        if count and not found:
            del self._counts[name]
        return found
