"""The gateway as a trainer sees it: three calls, each with a short deadline.

It must never retry by itself: what is sent again, and when, is decided in core.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.v1 import (
    reports_pb2 as reports_pb,
)
from tidemill.v1 import (
    telemetry_pb2 as telemetry_pb,
)
from tidemill.v1 import (
    training_service_pb2 as training_pb,
)

if TYPE_CHECKING:
    from tidemill.training.environment import Identity

DEADLINE_S = 5.0


class GatewayError(Exception):
    """The call failed. `refused`: it will never succeed, so sending it again is no use."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class Gateway(Protocol):
    """Where a trainer's words go. Calls may block for DEADLINE_S and raise GatewayError."""

    def report_progress(self, records: Sequence[telemetry_pb.Progress]) -> None: ...
    def report_checkpoint(self, report: reports_pb.Report) -> None: ...
    def advice(self) -> training_pb.GetAdviceResponse: ...
    def close(self) -> None: ...


class GrpcGateway:
    """TrainingService, authorised by the token of (job, attempt)."""

    def __init__(self, identity: Identity) -> None:
        # Imported by the side thread: gRPC takes a tenth of a second to load.
        import grpc

        from tidemill.calls import open_channel
        from tidemill.context import Context
        from tidemill.v1 import training_service_pb2_grpc

        self._grpc = grpc
        self._refusals = {
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.NOT_FOUND,
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.OUT_OF_RANGE,
            grpc.StatusCode.UNIMPLEMENTED,
        }
        self._advice = training_pb.GetAdviceRequest(job=identity.job, attempt=identity.attempt)
        self._metadata = (("authorization", f"Bearer {identity.token}"),)
        self._channel = open_channel(
            Context(identity.gateway, identity.token, "TIDEMILL_GATEWAY", identity.ca)
        )
        self._stub = training_service_pb2_grpc.TrainingServiceStub(self._channel)

    def report_progress(self, records: Sequence[telemetry_pb.Progress]) -> None:
        request = training_pb.ReportProgressRequest(progress=records)
        try:
            self._stub.ReportProgress(request, timeout=DEADLINE_S, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise self._failure(error) from error

    def report_checkpoint(self, report: reports_pb.Report) -> None:
        request = training_pb.ReportCheckpointRequest(report=report)
        try:
            self._stub.ReportCheckpoint(request, timeout=DEADLINE_S, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise self._failure(error) from error

    def advice(self) -> training_pb.GetAdviceResponse:
        try:
            return self._stub.GetAdvice(self._advice, timeout=DEADLINE_S, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        self._channel.close()

    def _failure(self, error: Exception) -> GatewayError:
        assert isinstance(error, self._grpc.RpcError)
        code = error.code()
        return GatewayError(f"{code.name}: {error.details()}", refused=code in self._refusals)
