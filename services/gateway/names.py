"""Which job a person means: a full id, a small number, or the beginning of an id. Pure.

What is meant by more than one job is an error that lists them, never a guess.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from services.gateway.refusal import Refusal, Status
from services.runtime.ids import JOB_ID_CHARS, array_of
from statemachines.cluster import Cluster
from statemachines.job import ENDED, Job, JobState
from statemachines.node import Node
from statemachines.queue import Queue
from statemachines.values import JobId, NodeId, QueueId
from tidemill.v1 import job_service_pb2

CANDIDATES_SHOWN: Final = 5
_WHOLE_ID: Final = re.compile(rf"[a-z][a-z2-7]{{{JOB_ID_CHARS - 1}}}(_[0-9]+)?")


def find_job(cluster: Cluster, text: str, ids: Sequence[JobId] | None = None) -> Job:
    """The one job that `text` names; raises Refusal. `ids`: all that there are, sorted; else they are looked through."""
    found = cluster.jobs.get(JobId(text))
    if found is None and text.isdecimal() and len(text) < 19:
        found = cluster.job_at(int(text))
    if found is not None:
        return found
    candidates = _starting_with(cluster, text, ids)
    if len(candidates) == 1:
        return candidates[0]
    raise _ambiguous(text, candidates) if candidates else _unknown(text)


def find_jobs(cluster: Cluster, text: str) -> tuple[str, list[Job]]:
    """What a change names, and the jobs it means: one, or those of an array that are still here. Raises Refusal."""
    try:
        job = find_job(cluster, text)
    except Refusal as refusal:
        if refusal.code != "is_array":
            raise
        return text, [job for job in cluster.jobs.values() if array_of(job.id) == text]
    return job.id, [job]


def find_subject(cluster: Cluster, text: str) -> str:
    """The id of what a history is asked of: a node or queue by its name, a job or array as everywhere. Raises Refusal.

    What is not here any more stays as it is written: the log may know it.
    """
    if text in cluster.nodes or text in cluster.queues:
        return text
    try:
        return find_jobs(cluster, text)[0]
    except Refusal as refusal:
        if refusal.code != "unknown_job":
            raise
        return text


def _starting_with(cluster: Cluster, text: str, ids: Sequence[JobId] | None) -> list[Job]:
    """One more than is shown, at most: enough to know that there are more."""
    near: Iterable[JobId] = cluster.jobs
    if ids is not None:
        begin = bisect_left(ids, text)
        near = ids[begin : begin + CANDIDATES_SHOWN + 1]
    found = (name for name in near if name.startswith(text))
    return [cluster.jobs[name] for name in islice(found, CANDIDATES_SHOWN + 1)]


def _unknown(text: str) -> Refusal:
    return Refusal(
        Status.NOT_FOUND,
        "unknown_job",
        f"no job {text!r} is known here. A job that ended a while ago has left: `tidemill history {text}` "
        "reads the log; `tidemill jobs` lists those that are here",
    )


def _ambiguous(text: str, candidates: list[Job]) -> Refusal:
    shown = ", ".join(
        f"{job.id} ({job.spec.name}, {job.state})" for job in candidates[:CANDIDATES_SHOWN]
    )
    more = ", ..." if len(candidates) > CANDIDATES_SHOWN else ""
    if all(array_of(job.id) == text for job in candidates):
        message = f"{text!r} is an array; name one of its jobs: {shown}{more}"
        return Refusal(Status.INVALID_ARGUMENT, "is_array", message)
    message = f"{text!r} is the beginning of several ids; add letters: {shown}{more}"
    return Refusal(Status.INVALID_ARGUMENT, "ambiguous_job", message)


def find_node(cluster: Cluster, text: str) -> Node:
    """The node of that name; raises Refusal."""
    found = cluster.nodes.get(NodeId(text))
    if found is None:
        raise Refusal(
            Status.NOT_FOUND,
            "unknown_node",
            f"no node {text!r} has ever attached to this cell, or it was removed; `tidemill nodes` lists them",
        )
    return found


def find_queue(cluster: Cluster, text: str) -> Queue:
    """The queue of that name; raises Refusal."""
    found = cluster.queues.get(QueueId(text))
    if found is None:
        raise Refusal(
            Status.NOT_FOUND,
            "unknown_queue",
            f"there is no queue {text!r}; `tidemill queues` lists them, `tidemill apply FILE` makes one",
        )
    return found


class Selection:
    """A JobFilter against one fold: `fixed` holds for the life of a job, `matches` also looks at its state.

    A list looks at every job of the cell, so each test is one comparison where it can be.
    """

    def __init__(self, cluster: Cluster, wanted: job_service_pb2.JobFilter) -> None:
        unknown = sorted(set(wanted.states) - {state.value for state in JobState})
        if unknown:
            known = ", ".join(JobState)
            raise Refusal(
                Status.INVALID_ARGUMENT, "unknown_state", f"no state {unknown[0]!r}: use {known}"
            )
        self._cluster = cluster
        self._states = _states(wanted)
        self._queue = find_queue(cluster, wanted.queue).id if wanted.queue else ""
        self._below: dict[str, bool] = {}
        self._by = wanted.by
        self._name = wanted.name_contains
        self.jobs = frozenset(_named(cluster, wanted.jobs))
        self._any_job = not (self._queue or self._by or self._name or self.jobs)

    def fixed(self, job: Job) -> bool:
        """Id, queue (or one above it), owner and name are as wanted."""
        if self.jobs and job.id not in self.jobs and array_of(job.id) not in self.jobs:
            return False
        if self._by and job.by != self._by:
            return False
        if self._name and self._name not in job.spec.name:
            return False
        return not self._queue or self._is_below(job.spec.queue)

    def matches(self, job: Job) -> bool:
        """All of it; jobs that have ended only when they were asked for."""
        return job.state in self._states and (self._any_job or self.fixed(job))

    def candidates(self) -> Iterator[Job]:
        """Jobs that match, newest first: the fold keeps them in the order of their admission."""
        return filter(self.matches, reversed(self._cluster.jobs.values()))

    def _is_below(self, queue: QueueId) -> bool:
        """Queues never change their parent, so each is looked at once."""
        if queue not in self._below:
            line = self._cluster.queue_line(queue)
            self._below[queue] = any(each.id == self._queue for each in line)
        return self._below[queue]


def _named(cluster: Cluster, texts: Sequence[str]) -> list[str]:
    """What numbers and beginnings stand for; a whole id is taken as it is, known yet or not, an array's too."""
    whole = [text for text in texts if _WHOLE_ID.fullmatch(text)]
    if len(whole) == len(texts):
        return whole
    ids = sorted(cluster.jobs)  # Once: looked through for each, 10,000 beginnings take minutes.
    return whole + [
        find_job(cluster, text, ids).id for text in texts if not _WHOLE_ID.fullmatch(text)
    ]


def _states(wanted: job_service_pb2.JobFilter) -> tuple[JobState, ...]:
    """A tuple: it is searched by identity, and hashing a member costs more than comparing all of them."""
    if wanted.states:
        return tuple([JobState(state) for state in wanted.states])
    live_only = not (wanted.all or wanted.jobs)
    return tuple([state for state in JobState if not (live_only and state in ENDED)])
