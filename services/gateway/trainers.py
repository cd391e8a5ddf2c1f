"""What trainers say and ask, each for its own (job, attempt) alone.

A report of an attempt that the fold shows to be over is refused here, so that a trainer which has been replaced learns
it at once; the leader refuses it in any case. Progress is telemetry; reports are answered when they are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from google.protobuf.message import Message

from services.gateway import advice
from services.gateway.auth import Caller, may_speak_for
from services.gateway.effects import Effects, Now
from services.gateway.pending import not_stored, overloaded
from services.gateway.progress import ProgressTable
from services.gateway.record import record
from services.gateway.refusal import Refusal, Status
from services.gateway.validation import check
from services.runtime import topics
from services.runtime.codec import encode_value
from services.runtime.ports import Outgoing, PortError
from statemachines.attempt import Attempt
from statemachines.checkpoint import CheckpointState
from statemachines.cluster import Cluster
from statemachines.job import ENDED, Job
from statemachines.values import JobId
from tidemill.kafka.records import progress_proof
from tidemill.v1 import common_pb2
from tidemill.v1 import training_service_pb2 as training

# What a trainer may report; the other kinds are an agent's.
KINDS: Final = (
    "save_began", "saved", "save_failed", "removed", "resumed", "load_failed", "save_answered", "finished",
)  # fmt: skip


class Trainers:
    """TrainingService."""

    def __init__(
        self,
        cluster: Cluster,
        effects: Effects,
        progress: ProgressTable,
        *,
        gateway: str,
        token_of: Callable[[str, int], str],
    ) -> None:
        self._cluster = cluster
        self._effects = effects
        self._progress = progress
        self._gateway = gateway
        self._token_of = token_of

    def report_progress(
        self, call: int, caller: Caller, request: training.ReportProgressRequest, now: Now
    ) -> None:
        """Answers when the records are in their topic."""
        check(request)
        for progress in request.progress:
            may_speak_for(caller, progress.job, progress.attempt)
        self._current(caller)
        records = []
        for progress in request.progress:
            self._progress.take(progress, now.wall_ms)
            # Its token is a secret and has done its duty; what is stored proves that it was shown, and when to us.
            progress.at_ms = now.wall_ms
            progress.token = progress_proof(
                self._token_of(progress.job, progress.attempt), progress
            )
            records.append(record(topics.PROGRESS, progress.job, progress))
        self._publish(call, records, training.ReportProgressResponse())

    def report_checkpoint(
        self, call: int, caller: Caller, request: training.ReportCheckpointRequest, now: Now
    ) -> None:
        """Answers when the report is durable."""
        report = request.report
        report.principal.name, report.principal.method = caller.principal, caller.method
        report.gateway = self._gateway
        report.at_ms = report.at_ms or now.wall_ms
        check(request)
        kind = report.WhichOneof("kind")
        if kind not in KINDS:
            raise Refusal(
                Status.INVALID_ARGUMENT,
                "not_a_trainers_report",
                f"a trainer reports {', '.join(KINDS)}, not {kind}",
            )
        said = getattr(report, kind)
        may_speak_for(caller, said.job, 0 if kind == "removed" else said.attempt)
        _, attempt = self._seen(caller)
        # In one order with what the agent beside rank 0, which speaks here, tells of its end.
        beside = self._cluster.runs[attempt.runs[0]].node
        stored = record(topics.REPORTS, beside, report)
        self._publish(call, [stored], training.ReportCheckpointResponse())

    def get_advice(
        self, caller: Caller, request: training.GetAdviceRequest
    ) -> training.GetAdviceResponse:
        """Where to start from, how often to save, and what may be removed."""
        check(request)
        may_speak_for(caller, request.job, request.attempt)
        job, attempt = self._seen(caller)
        checkpoints = self._cluster.checkpoints.get(job.id, ())
        released = [each.step for each in checkpoints if each.state is CheckpointState.RELEASED]
        nodes = {self._cluster.runs[run].node for run in attempt.runs}
        return training.GetAdviceResponse(
            resume=common_pb2.ResumePoint(**encode_value(attempt.resume)),
            released_steps=released,
            durable_step=job.durable_step,
            interval_ms=advice.interval_ms(checkpoints, len(nodes)),
        )

    def _current(self, caller: Caller) -> Job | None:
        """The job, None when this gateway has not read of it or of this attempt yet; raises Refusal when it is over."""
        assert caller.attempt is not None, "only a job token comes this far"
        name, attempt = caller.attempt
        job = self._cluster.jobs.get(JobId(name))
        if job is not None and (job.attempt > attempt or job.state in ENDED):
            raise Refusal(
                Status.FAILED_PRECONDITION,
                "attempt_over",
                f"attempt {attempt} of job {name} is over (the job is {job.state}, at attempt {job.attempt}): "
                "stop, nothing that this attempt saves will be used",
            )
        return job

    def _seen(self, caller: Caller) -> tuple[Job, Attempt]:
        """The caller's job and attempt; raises Refusal when it is over, or when this gateway has yet to read of it."""
        assert caller.attempt is not None, "only a job token comes this far"
        name, number = caller.attempt
        job = self._current(caller)
        attempt = self._cluster.find_attempt(JobId(name), number)
        if job is None or attempt is None:
            raise Refusal(
                Status.UNAVAILABLE,
                "attempt_not_seen_yet",
                f"this gateway has not read attempt {number} of job {name} in the log yet; ask again",
                retry_after_ms=500,
            )
        return job, attempt

    def _publish(self, call: int, records: Sequence[Outgoing], answer: Message) -> None:
        if self._effects.congested:
            raise overloaded()
        self._effects.publish(records, partial(self._written, call, answer))

    def _written(self, call: int, answer: Message, error: PortError | None, _now: Now) -> None:
        result = answer if error is None else not_stored(error)
        self._effects.answers.append((call, result))
