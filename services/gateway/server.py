"""The gRPC server: every servicer behind the gate, with health and reflection. Owns the port that it listens on."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.gateway.driver import Driver
from services.gateway.gate import CALLS_MAX, OPTIONS, Gate
from services.gateway.lookback import Lookback
from services.gateway.servicers.fleet import FleetServicer, QueueServicer
from services.gateway.servicers.jobs import JobServicer
from services.gateway.servicers.logs import LogServicer
from services.gateway.servicers.nodes import NodeServicer
from services.gateway.servicers.training import TrainingServicer
from services.runtime.ports import Blobs
from tidemill.v1 import (
    fleet_service_pb2_grpc,
    job_service_pb2_grpc,
    log_service_pb2_grpc,
    node_service_pb2_grpc,
    queue_service_pb2_grpc,
    training_service_pb2_grpc,
)

SERVICES: Final = (
    "tidemill.v1.JobService",
    "tidemill.v1.QueueService",
    "tidemill.v1.FleetService",
    "tidemill.v1.NodeService",
    "tidemill.v1.TrainingService",
    "tidemill.v1.LogService",
)


class Server:
    """Serves one driver. Not serving until `ready` was called; `stop` lets calls finish within the grace."""

    def __init__(
        self,
        driver: Driver,
        blobs: Blobs,
        gate: Gate,
        lookback: Lookback,
        *,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._server = grpc.aio.server(
            interceptors=[gate], options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX
        )
        self._health = health.aio.HealthServicer()
        _add_all(self._server, driver, blobs, lookback)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names: Sequence[str] = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, listen: str) -> int:
        """Listen on HOST:PORT; the port that was chosen when it was 0. Raises OSError when it cannot."""
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, self._credentials)
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {listen}: is another gateway there? ({error})"
            ) from error
        await self._server.start()
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        return port

    async def ready(self) -> None:
        """The log has been read to its end: probes may send callers here."""
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Probes are told first; calls have until the grace is over."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def _say(self, status: Any) -> None:
        for name in ("", *SERVICES):
            await self._health.set(name, status)


def _add_all(server: grpc.aio.Server, driver: Driver, blobs: Blobs, lookback: Lookback) -> None:
    job_service_pb2_grpc.add_JobServiceServicer_to_server(JobServicer(driver, lookback), server)
    log_service_pb2_grpc.add_LogServiceServicer_to_server(LogServicer(driver, lookback), server)
    queue_service_pb2_grpc.add_QueueServiceServicer_to_server(QueueServicer(driver), server)
    fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(FleetServicer(driver), server)
    node_service_pb2_grpc.add_NodeServiceServicer_to_server(NodeServicer(driver, blobs), server)
    training_service_pb2_grpc.add_TrainingServiceServicer_to_server(
        TrainingServicer(driver), server
    )


def is_loopback(listen: str) -> bool:
    """Whether HOST:PORT can be reached from this machine alone."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
