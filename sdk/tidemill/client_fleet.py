"""What a client says about nodes, queues and the cell as a whole; part of tidemill.Client.

It must never decide anything that the cell decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemill.calls import PAGE, Caller, new_id
from tidemill.v1 import (
    fleet_service_pb2 as fleet_pb,
)
from tidemill.v1 import (
    fleet_service_pb2_grpc,
    queue_service_pb2_grpc,
    requests_pb2,
    views_pb2,
)
from tidemill.v1 import (
    queue_service_pb2 as queue_pb,
)


class FleetCalls:
    """Calls about the fleet and its queues, through one caller."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._fleet = fleet_service_pb2_grpc.FleetServiceStub(caller.channel)
        self._queues = queue_service_pb2_grpc.QueueServiceStub(caller.channel)

    def nodes(self, states: Iterable[str] = ()) -> Iterator[views_pb2.NodeView]:
        """Nodes, page by page; all unless states are named."""
        token = ""
        while True:
            request = fleet_pb.ListNodesRequest(
                states=list(states), page_size=PAGE, page_token=token
            )
            page = self._caller.unary(self._fleet.ListNodes, request, what="cannot list nodes")
            yield from page.nodes
            token = page.next_page_token
            if not token:
                return

    def node(self, node: str) -> views_pb2.NodeView:
        """One node. Raises NotFoundError."""
        request = fleet_pb.GetNodeRequest(node=node)
        return self._caller.unary(self._fleet.GetNode, request, what=f"no node {node!r}").node

    def cordon(self, node: str, *, message: str = "", request_id: str = "") -> views_pb2.NodeView:
        """No new runs there; what runs goes on."""
        request = fleet_pb.CordonNodeRequest(
            node=node, message=message, request_id=request_id or new_id()
        )
        return self._caller.unary(
            self._fleet.CordonNode,
            request,
            what=f"node {node!r} was not cordoned",
            hint="tidemill nodes",
        ).node

    def uncordon(self, node: str, *, request_id: str = "") -> views_pb2.NodeView:
        """Back in service."""
        request = fleet_pb.UncordonNodeRequest(node=node, request_id=request_id or new_id())
        what = f"node {node!r} was not uncordoned"
        return self._caller.unary(
            self._fleet.UncordonNode, request, what=what, hint="tidemill nodes"
        ).node

    def drain(
        self, node: str, *, within_ms: int = 0, message: str = "", request_id: str = ""
    ) -> views_pb2.NodeView:
        """Empty it: jobs are asked to save, then placed elsewhere, within `within_ms` at the latest."""
        request = fleet_pb.DrainNodeRequest(
            node=node, message=message, within_ms=within_ms, request_id=request_id or new_id()
        )
        return self._caller.unary(
            self._fleet.DrainNode,
            request,
            what=f"node {node!r} is not draining",
            hint="tidemill nodes",
        ).node

    def confirm_dead(
        self, node: str, *, message: str = "", request_id: str = ""
    ) -> views_pb2.NodeView:
        """Vouch that nothing of ours runs on a lost node any more."""
        request = fleet_pb.ConfirmNodeDeadRequest(
            node=node, message=message, request_id=request_id or new_id()
        )
        what = f"node {node!r} was not confirmed dead"
        return self._caller.unary(
            self._fleet.ConfirmNodeDead, request, what=what, hint="tidemill nodes"
        ).node

    def remove_node(self, node: str, *, request_id: str = "") -> None:
        """Forget a node that is lost or drained."""
        request = fleet_pb.RemoveNodeRequest(node=node, request_id=request_id or new_id())
        self._caller.unary(
            self._fleet.RemoveNode,
            request,
            what=f"node {node!r} was not removed",
            hint="tidemill nodes",
        )

    def cell(self, *, deadline_s: float | None = None) -> views_pb2.CellView:
        """The cell as this gateway sees it."""
        request = fleet_pb.GetCellRequest()
        what = f"no cell answers at {self._caller.context.gateway}"
        return self._caller.unary(
            self._fleet.GetCell, request, what=what, deadline_s=deadline_s
        ).cell

    def queues(self) -> list[views_pb2.QueueView]:
        """All queues."""
        request = queue_pb.ListQueuesRequest()
        return list(
            self._caller.unary(self._queues.ListQueues, request, what="cannot list queues").queues
        )

    def apply_queue(
        self, queue: requests_pb2.ApplyQueue, *, request_id: str = ""
    ) -> views_pb2.QueueView:
        """Make a queue, or change one. Limits of -1 mean none."""
        request = queue_pb.ApplyQueueRequest(queue=queue, request_id=request_id or new_id())
        what = f"queue {queue.queue!r} was not applied"
        return self._caller.unary(
            self._queues.ApplyQueue, request, what=what, hint="tidemill queues"
        ).queue

    def remove_queue(self, queue: str, *, request_id: str = "") -> None:
        """Remove an empty queue."""
        request = queue_pb.RemoveQueueRequest(queue=queue, request_id=request_id or new_id())
        self._caller.unary(
            self._queues.RemoveQueue,
            request,
            what=f"queue {queue!r} was not removed",
            hint="tidemill queues",
        )
