"""ApplyQueue and RemoveQueue: a tree of queues that never loses a parent, changes one, or closes in a circle."""

from __future__ import annotations

import re
from typing import Final

from services.scheduler.answers import RefusedError
from services.scheduler.draft import Draft
from statemachines.facts import QueueApplied, QueueRemoved
from statemachines.queue import NO_LIMIT, Queue
from statemachines.values import QueueId
from tidemill.v1 import requests_pb2

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# Levels of the tree; walking up it must stay short.
LEVELS_MAX: Final = 16


def apply(draft: Draft, said: requests_pb2.ApplyQueue) -> None:
    """Make a queue, or change its limits; raises RefusedError."""
    wanted = Queue(
        QueueId(said.queue), said.parent, said.device_limit, said.cpu_milli_limit, said.job_limit
    )
    _check(wanted)
    queues = draft.cluster.queues
    before = queues.get(wanted.id)
    if before is not None and before.parent != wanted.parent:
        raise RefusedError(
            "queue_parent_changed",
            f"queue {wanted.id} is below {before.parent or 'the root'}: make a new queue, move its jobs there, and "
            "remove this one",
            field="parent",
        )
    if before is None and wanted.parent:
        _check_parent(draft, wanted)
    if before != wanted:
        draft.record(
            QueueApplied(
                wanted.id, wanted.parent, wanted.device_limit, wanted.cpu_milli_limit, wanted.job_limit
            )
        )  # fmt: skip


def _check(wanted: Queue) -> None:
    if QUEUE_NAME.fullmatch(wanted.id) is None:
        raise RefusedError("impossible", f"{wanted.id[:64]!r} is not a queue name", field="queue")
    limits = {
        "device_limit": wanted.device_limit,
        "cpu_milli_limit": wanted.cpu_milli_limit,
        "job_limit": wanted.job_limit,
    }
    for field, limit in limits.items():
        if limit < NO_LIMIT:
            raise RefusedError("impossible", f"{field}: -1 is no limit, less is none", field=field)


def _check_parent(draft: Draft, wanted: Queue) -> None:
    if wanted.parent not in draft.cluster.queues:
        raise RefusedError(
            "unknown_queue",
            f"there is no queue {wanted.parent[:64]}: apply it first",
            field="parent",
        )
    if len(draft.cluster.queue_line(QueueId(wanted.parent))) >= LEVELS_MAX:
        raise RefusedError(
            "impossible", f"a tree of queues has at most {LEVELS_MAX} levels", field="parent"
        )


def remove(draft: Draft, said: requests_pb2.RemoveQueue) -> None:
    """Remove an empty queue; raises RefusedError."""
    queue = QueueId(said.queue)
    if queue not in draft.cluster.queues:
        raise RefusedError("unknown_queue", f"there is no queue {queue[:64]}", field="queue")
    below = sorted(each.id for each in draft.cluster.queues.values() if each.parent == queue)
    if below:
        raise RefusedError(
            "queue_not_empty",
            f"queue {queue} has queues below it: {', '.join(below[:8])}",
            field="queue",
        )
    jobs = draft.cluster.queue_usage[queue].jobs
    if jobs:
        raise RefusedError(
            "queue_not_empty",
            f"queue {queue} still has {jobs} jobs; ended ones leave by themselves after a while",
            field="queue",
        )
    draft.record(QueueRemoved(queue))
