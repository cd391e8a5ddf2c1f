"""What the fold says, as the detector's inputs: everything at the start, then what changed. Reads the cluster only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from planning.restart import broken_by
from services.health.messages import (
    NIC_COUNTER,
    AttemptBroken,
    AttemptGone,
    AttemptKnown,
    IncidentKnown,
    Known,
    NodeForgotten,
    NodeKnown,
)
from statemachines.attempt import AttemptState
from statemachines.cluster import Cluster
from statemachines.node import NodeState, ServiceState
from statemachines.values import Cause, JobId, NodeId

_HARDWARE: Final = frozenset({Cause.NODE_LOST, Cause.DEVICE_FAULT, Cause.NIC_FAULT})


class View:
    """One cluster that was made to track; it folds, and then asks for what changed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._incident = ""
        # The highest attempt of a job that ended by hardware, and was looked at: whose it was is only known then.
        self._broken: dict[JobId, int] = {}

    def everything(self) -> Iterator[Known]:
        """The whole state, for a detector that knows nothing."""
        self._cluster.take_touched()
        for job in self._cluster.jobs:
            list(self._breaks(job))  # Of before our time: they may have been looked at since.
        yield from self._said(self._cluster.nodes, self._cluster.jobs)

    def changes(self) -> Iterator[Known]:
        """What changed since the last call of either."""
        touched = self._cluster.take_touched()
        yield from self._said(touched.nodes, touched.jobs)

    def _said(self, nodes: Iterable[NodeId], jobs: Iterable[JobId]) -> Iterator[Known]:
        for node in nodes:
            yield self._node(node)
        for job in jobs:
            yield from self._breaks(job)
            yield self._job(job)
        incident = self._cluster.incident.incident if self._cluster.incident else ""
        if incident != self._incident:
            self._incident = incident
            yield IncidentKnown(incident)

    def _node(self, name: NodeId) -> Known:
        node = self._cluster.nodes.get(name)
        if node is None:
            return NodeForgotten(name)
        return NodeKnown(
            name,
            node.incarnation,
            node.state,
            tuple([(device.spec.index, device.state) for device in node.devices]),
            tuple([(nic.spec.name, nic.state) for nic in node.nics]),
            node.service is ServiceState.IN_SERVICE,
            tuple([nic.spec.name for nic in node.nics if not nic.spec.up]),
            self._cluster.at_ms - node.changed_at_ms if node.state is NodeState.LOST else 0,
            tuple(
                [
                    (nic.spec.name, nic.reason.code.removeprefix(NIC_COUNTER))
                    for nic in node.nics
                    if nic.reason is not None and nic.reason.code.startswith(NIC_COUNTER)
                ]
            ),
        )

    def _breaks(self, name: JobId) -> Iterator[AttemptBroken]:
        """Attempts that hardware ended since the last look."""
        if name not in self._cluster.jobs:
            self._broken.pop(name, None)
            return
        for attempt in self._cluster.attempts.get(name, ()):
            if attempt.cause not in _HARDWARE or attempt.number <= self._broken.get(name, 0):
                continue
            self._broken[name] = attempt.number
            nodes = broken_by(self._cluster, attempt)
            if nodes:
                yield AttemptBroken(name, attempt.number, tuple(sorted(nodes)))

    def _job(self, name: JobId) -> Known:
        job, attempt = self._cluster.jobs.get(name), self._cluster.attempt(name)
        if job is None or attempt is None or attempt.state is not AttemptState.RUNNING:
            return AttemptGone(name)
        nodes = tuple([self._cluster.runs[run].node for run in attempt.runs])
        return AttemptKnown(
            name,
            attempt.number,
            len(attempt.runs),
            job.spec.hang_after_ms,
            nodes,
            max(0, self._cluster.at_ms - attempt.started_at_ms),
        )
