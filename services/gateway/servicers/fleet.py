"""FleetService and QueueService over the core."""

from __future__ import annotations

from services.gateway.driver import Driver
from services.gateway.gate import Context
from services.gateway.servicers.jobs import change, expect
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import fleet_service_pb2_grpc, queue_service_pb2_grpc
from tidemill.v1 import queue_service_pb2 as queues


class FleetServicer(fleet_service_pb2_grpc.FleetServiceServicer):
    """Nodes and the cell itself."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._reads = driver.core.reads

    async def ListNodes(
        self, request: fleet.ListNodesRequest, _context: Context
    ) -> fleet.ListNodesResponse:
        return self._reads.list_nodes(request)

    async def GetNode(
        self, request: fleet.GetNodeRequest, _context: Context
    ) -> fleet.GetNodeResponse:
        return self._reads.get_node(request)

    async def CordonNode(
        self, request: fleet.CordonNodeRequest, context: Context
    ) -> fleet.CordonNodeResponse:
        return expect(fleet.CordonNodeResponse, await change(self._driver, request, context))

    async def UncordonNode(
        self, request: fleet.UncordonNodeRequest, context: Context
    ) -> fleet.UncordonNodeResponse:
        return expect(fleet.UncordonNodeResponse, await change(self._driver, request, context))

    async def DrainNode(
        self, request: fleet.DrainNodeRequest, context: Context
    ) -> fleet.DrainNodeResponse:
        return expect(fleet.DrainNodeResponse, await change(self._driver, request, context))

    async def ConfirmNodeDead(
        self, request: fleet.ConfirmNodeDeadRequest, context: Context
    ) -> fleet.ConfirmNodeDeadResponse:
        return expect(fleet.ConfirmNodeDeadResponse, await change(self._driver, request, context))

    async def RemoveNode(
        self, request: fleet.RemoveNodeRequest, context: Context
    ) -> fleet.RemoveNodeResponse:
        return expect(fleet.RemoveNodeResponse, await change(self._driver, request, context))

    async def GetCell(
        self, request: fleet.GetCellRequest, _context: Context
    ) -> fleet.GetCellResponse:
        lag_ms = self._driver.core.sessions.log_age_ms(self._driver.now())
        return self._reads.get_cell(request, lag_ms=-1 if lag_ms is None else lag_ms)


class QueueServicer(queue_service_pb2_grpc.QueueServiceServicer):
    """Who may hold how much."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._reads = driver.core.reads

    async def ApplyQueue(
        self, request: queues.ApplyQueueRequest, context: Context
    ) -> queues.ApplyQueueResponse:
        return expect(queues.ApplyQueueResponse, await change(self._driver, request, context))

    async def RemoveQueue(
        self, request: queues.RemoveQueueRequest, context: Context
    ) -> queues.RemoveQueueResponse:
        return expect(queues.RemoveQueueResponse, await change(self._driver, request, context))

    async def ListQueues(
        self, request: queues.ListQueuesRequest, _context: Context
    ) -> queues.ListQueuesResponse:
        return self._reads.list_queues(request)
