"""The people of a cell: they make its queues, let a leader go on past a gap, and put back what faults have left.

Every wish goes through a gateway like anybody's, and is said again until the log shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from services.runtime.ports import InputGapError
from simulation.clients import SMALL, SMALL_DEVICES, Clients
from simulation.kernel import US_PER_MS, Kernel
from simulation.nodes import Host
from simulation.referee import Referee
from simulation.services import SchedulerProcess
from statemachines.cluster import Cluster
from statemachines.device import Device, DeviceState
from statemachines.entry import Recorded
from statemachines.facts import InputGapAccepted
from statemachines.node import NodeState, ServiceState
from statemachines.values import QueueId
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import queue_service_pb2 as queues
from tidemill.v1 import requests_pb2, telemetry_pb2

_LOOK_MS: Final = 5_000


class Operators:
    """Looks now and then, and asks for what is missing."""

    def __init__(
        self,
        kernel: Kernel,
        clients: Clients,
        referee: Referee,
        schedulers: Sequence[SchedulerProcess],
    ) -> None:
        self._kernel, self._clients, self._referee = kernel, clients, referee
        self._schedulers = schedulers
        self._hosts: Sequence[Host] = ()
        self.accepts_gaps = True

    def begin(self) -> None:
        """From now on."""
        self._kernel.after(_LOOK_MS * US_PER_MS, self._look)

    def mend(self, hosts: Sequence[Host]) -> None:
        """From now on, also bring back into service what was taken out of it."""
        self._hosts = hosts

    def _look(self) -> None:
        self._kernel.after(_LOOK_MS * US_PER_MS, self._look)
        cluster = self._referee.cluster
        if QueueId(SMALL) not in cluster.queues:
            self.limit(SMALL_DEVICES)
        if self.accepts_gaps:
            self._accept_gaps()
        if self._hosts:
            self._mend(cluster)

    def limit(self, devices: int) -> None:
        """So many devices for the small queue."""
        queue = requests_pb2.ApplyQueue(
            queue=SMALL, device_limit=devices, cpu_milli_limit=-1, job_limit=-1
        )
        self._clients.ask(queues.ApplyQueueRequest(queue=queue))

    def _accept_gaps(self) -> None:
        """A leader stopped at a gap: the loss is vouched for, as `tidemilld gap accept` does."""
        gap = next((each.gap for each in self._schedulers if each.gap is not None), None)
        if gap is None:
            return
        for scheduler in self._schedulers:
            scheduler.said, scheduler.gap = partial(_vouched, gap), None
            scheduler.crash()

    def _mend(self, cluster: Cluster) -> None:
        small = cluster.queues.get(QueueId(SMALL))
        if small is not None and small.device_limit < SMALL_DEVICES:
            self.limit(SMALL_DEVICES)
        for host in self._hosts:
            node = next((each for name, each in cluster.nodes.items() if name == host.name), None)
            if node is None or node.state is NodeState.LOST:
                continue
            if node.service is not ServiceState.IN_SERVICE:
                self._clients.ask(fleet.UncordonNodeRequest(node=host.name))
            for device in node.devices:
                if device.state is not DeviceState.HEALTHY:
                    _repair(host, device)
            host.tell_links()


def _repair(host: Host, device: Device) -> None:
    """Say that it is there; who asks for another card gets one."""
    index, reason = device.spec.index, device.reason
    if reason is None or not reason.message.endswith("(rma)"):
        host.signal(telemetry_pb2.SIGNAL_KIND_DEVICE_MISSING, device=index, code="present")
    elif device.spec.uuid == host.card(index):
        host.replace_card(index)


def _vouched(gap: InputGapError, cluster: Cluster) -> tuple[Recorded, ...]:
    at = cluster.positions.get((gap.topic, gap.partition), 0)
    fact = InputGapAccepted(gap.topic, gap.partition, at, gap.oldest, "accepted by an operator")
    return (Recorded(fact, "operator:sim"),) if at < gap.oldest else ()
