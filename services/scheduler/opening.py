"""A term's first entry. It is not applied ahead: accepted on read-back, its author leads; void, it tries again."""

from __future__ import annotations

from typing import Final

from services.runtime import codec
from services.scheduler.draft import Sealed, seal
from statemachines.cluster import FOLD_VERSION, Cluster
from statemachines.entry import Entry, Recorded
from statemachines.facts import Fact, QueueApplied, TermOpened
from statemachines.policy import Policy
from statemachines.queue import NO_LIMIT
from statemachines.values import QueueId

# Made when there is no queue at all, so that a new cell takes jobs.
DEFAULT_QUEUE: Final = QueueId("default")


def opening(
    cluster: Cluster,
    *,
    term: int,
    leader: str,
    nonce: str,
    policy: Policy,
    now_ms: int,
    said: tuple[Recorded, ...] = (),
) -> Sealed:
    """The entry that opens `term` on the cluster's head; `said` are facts that an operator vouches for."""
    at_ms = max(now_ms, cluster.at_ms)
    facts: list[Fact] = [TermOpened(term, leader, nonce, FOLD_VERSION)]
    if policy != cluster.policy:
        facts.append(policy)
    if not cluster.queues:
        facts.append(QueueApplied(DEFAULT_QUEUE, "", NO_LIMIT, NO_LIMIT, NO_LIMIT))
    recorded = (*[Recorded(fact) for fact in facts], *said)
    encoded = [codec.encode_fact(each) for each in recorded]
    return seal(cluster, term=term, at_ms=at_ms, consumed=(), facts=recorded, encoded=encoded)


def opens(entry: Entry, *, term: int, nonce: str) -> bool:
    """Whether this is the opening of that term by the author of that nonce."""
    first = entry.facts[0].fact if entry.facts else None
    return isinstance(first, TermOpened) and first.term == term and first.nonce == nonce
