"""TrainingService over the core. The gate lets only holders of a job token in."""

from __future__ import annotations

from services.gateway.driver import Driver
from services.gateway.gate import Context, caller
from tidemill.v1 import training_service_pb2 as training
from tidemill.v1 import training_service_pb2_grpc


class TrainingServicer(training_service_pb2_grpc.TrainingServiceServicer):
    """What a trainer says and asks."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._trainers = driver.core.trainers

    async def ReportProgress(
        self, request: training.ReportProgressRequest, _context: Context
    ) -> training.ReportProgressResponse:
        who = caller()
        answer = await self._driver.call(
            lambda call, now: self._trainers.report_progress(call, who, request, now)
        )
        assert isinstance(answer, training.ReportProgressResponse)
        return answer

    async def ReportCheckpoint(
        self, request: training.ReportCheckpointRequest, _context: Context
    ) -> training.ReportCheckpointResponse:
        who = caller()
        answer = await self._driver.call(
            lambda call, now: self._trainers.report_checkpoint(call, who, request, now)
        )
        assert isinstance(answer, training.ReportCheckpointResponse)
        return answer

    async def GetAdvice(
        self, request: training.GetAdviceRequest, _context: Context
    ) -> training.GetAdviceResponse:
        return self._trainers.get_advice(caller(), request)
