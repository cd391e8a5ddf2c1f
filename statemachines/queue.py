"""A queue: a named share of the cell with limits. Its lifecycle is short: applied, applied again, removed when empty."""

from __future__ import annotations

from typing import Final

import msgspec

from statemachines.facts import QueueApplied
from statemachines.values import QueueId

NO_LIMIT: Final = -1


class Queue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Limits of one queue and, through `parent`, of those above; -1 is no limit."""

    id: QueueId
    parent: str
    device_limit: int
    cpu_milli_limit: int
    job_limit: int


def apply(fact: QueueApplied) -> Queue:
    """The queue as the fact says; an earlier one of that name is replaced."""
    return Queue(fact.queue, fact.parent, fact.device_limit, fact.cpu_milli_limit, fact.job_limit)
