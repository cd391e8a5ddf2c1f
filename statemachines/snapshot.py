"""The canonical encoding of a cluster: snapshots are made of it, the state digest is its SHA-256.

Holds the primary state only, in the order in which the fold holds it: that order follows from the accepted entries
alone, so every reader encodes the same bytes, and what is decoded goes on exactly as what was encoded. Where the log
keeps its records is no part of it (see Cluster): two copies of one log give one digest. Never reads or writes storage.
"""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import Final

import msgspec

from statemachines.attempt import Attempt
from statemachines.checkpoint import Checkpoint
from statemachines.cluster import Answer, Cluster
from statemachines.facts import BreakerOpened
from statemachines.job import Job
from statemachines.node import Node
from statemachines.policy import Policy
from statemachines.queue import Queue
from statemachines.run import Run


class DamagedSnapshotError(ValueError):
    """The bytes are not the canonical encoding of a cluster; fold an older snapshot or the whole log."""


class _State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is stored. Ids are inside the entities, so every mapping is stored as its values."""

    cell: str
    head: bytes
    term: int
    leader: str
    at_ms: int
    term_opened_at_ms: int
    next_number: int
    parked: int
    facts: int
    incident: BreakerOpened | None
    policy: Policy
    positions: list[tuple[str, int, int]]
    queues: list[Queue]
    nodes: list[Node]
    jobs: list[Job]
    attempts: list[Attempt]
    runs: list[Run]
    checkpoints: list[Checkpoint]
    answers: list[tuple[str, Answer]]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_State)


def encode(cluster: Cluster) -> bytes:
    """The primary state, byte for byte the same on every reader that is at the same head."""
    return _ENCODER.encode(
        _State(
            cell=cluster.cell,
            head=cluster.head,
            term=cluster.term,
            leader=cluster.leader,
            at_ms=cluster.at_ms,
            term_opened_at_ms=cluster.term_opened_at_ms,
            next_number=cluster.next_number,
            parked=cluster.parked,
            facts=cluster.facts,
            incident=cluster.incident,
            policy=cluster.policy,
            positions=[(*key, offset) for key, offset in cluster.positions.items()],
            queues=list(cluster.queues.values()),
            nodes=list(cluster.nodes.values()),
            jobs=list(cluster.jobs.values()),
            attempts=list(chain.from_iterable(cluster.attempts.values())),
            runs=list(cluster.runs.values()),
            checkpoints=list(chain.from_iterable(cluster.checkpoints.values())),
            answers=list(cluster.answers.items()),
        )
    )


def digest(cluster: Cluster) -> bytes:
    """The state digest: SHA-256 of the canonical encoding."""
    return hashlib.sha256(encode(cluster)).digest()


def decode(data: bytes, *, offset: int, track: bool = False) -> Cluster:
    """The cluster that was encoded, its derived state rebuilt; raises DamagedSnapshotError.

    `offset` is that of the last record folded into it: where the tail follows. Void entries are counted from here on.
    """
    try:
        state = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise DamagedSnapshotError(f"snapshot at offset {offset}: {error}") from error
    cluster = Cluster(state.cell, track=track)
    cluster.offset = offset
    cluster.head = state.head
    cluster.term = state.term
    cluster.leader = state.leader
    cluster.at_ms = state.at_ms
    cluster.term_opened_at_ms = state.term_opened_at_ms
    cluster.next_number = state.next_number
    cluster.parked = state.parked
    cluster.facts = state.facts
    cluster.incident = state.incident
    cluster.policy = state.policy
    cluster.positions = {(topic, part): position for topic, part, position in state.positions}
    _fill(cluster, state)
    cluster.derive()
    return cluster


def _fill(cluster: Cluster, state: _State) -> None:
    cluster.queues = {queue.id: queue for queue in state.queues}
    cluster.nodes = {node.id: node for node in state.nodes}
    cluster.jobs = {job.id: job for job in state.jobs}
    cluster.runs = {run.id: run for run in state.runs}
    cluster.answers.update(state.answers)
    # Those of a job lie together, as they were encoded.
    attempts, checkpoints = cluster.attempts, cluster.checkpoints
    for attempt in state.attempts:
        attempts[attempt.job] = (*attempts.get(attempt.job, ()), attempt)
    for checkpoint in state.checkpoints:
        checkpoints[checkpoint.job] = (*checkpoints.get(checkpoint.job, ()), checkpoint)
