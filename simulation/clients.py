"""Simulated submitters: they submit under one request id until they are answered, and remember what they were promised."""

from __future__ import annotations

import random
from functools import partial

from services.gateway.auth import Caller
from services.gateway.refusal import Refusal
from services.runtime import ids
from simulation.kernel import US_PER_MS, Kernel
from simulation.services import GatewayProcess
from simulation.training import Program
from tidemill.v1 import common_pb2
from tidemill.v1 import job_service_pb2 as jobs

_DEADLINE_MS = 4_000
_RETRY_MS = (50, 1_500)
USER = Caller("user:sim", "token", frozenset({"user", "admin"}))


class Wanted:
    """A job that somebody wants, until it is acknowledged."""

    __slots__ = ("acknowledged", "answers", "job", "program", "request")

    def __init__(self, request: jobs.SubmitJobRequest, program: Program) -> None:
        self.request = request
        self.program = program
        self.job = ids.job_id(principal=USER.principal, request=request.request_id)
        self.acknowledged = False
        self.answers = 0

    @property
    def launch(self) -> str:
        """Digest of what it runs."""
        return ids.blob_digest(self.request.launch.SerializeToString(deterministic=True))


class Clients:
    """Everyone who submits."""

    def __init__(self, kernel: Kernel, gateways: list[GatewayProcess]) -> None:
        self.kernel = kernel
        self.wanted: list[Wanted] = []
        self._gateways = gateways
        self._chance = kernel.chance("clients")

    def submit(self, wanted: Wanted) -> None:
        """Try until acknowledged; sometimes twice at once, as an impatient client does."""
        self.wanted.append(wanted)
        self._try(wanted)
        if self._chance.random() < 0.1:
            self._try(wanted)

    def cancel(self, job: str) -> None:
        """Ask once; whether it comes through is the cell's affair."""
        gateway = self._gateway()
        if gateway is not None:
            request = jobs.CancelJobRequest(job=job)
            gateway.call(
                lambda core, call, now: core.change(
                    call, USER, request, now, deadline_ms=now.mono_ms + _DEADLINE_MS
                ),
                lambda _answer: None,
            )

    def _try(self, wanted: Wanted) -> None:
        gateway = self._gateway()
        if gateway is None or wanted.acknowledged:
            if not wanted.acknowledged:
                self._again(wanted)
            return
        once = _Once(self, wanted)
        gateway.lost.append(partial(once, None))
        self.kernel.after((_DEADLINE_MS + 500) * US_PER_MS, partial(once, None))
        gateway.call(
            lambda core, call, now: core.submit(
                call, USER, wanted.request, now, deadline_ms=now.mono_ms + _DEADLINE_MS
            ),
            once,
        )

    def answered(self, wanted: Wanted, answer: object) -> None:
        """What the gateway said, or None: nothing came."""
        if answer is None or isinstance(answer, Refusal):
            self._again(wanted)
            return
        assert isinstance(answer, jobs.SubmitJobResponse), "what SubmitJob answers"
        assert answer.job == wanted.job, f"{answer.job} is not {wanted.job}"
        wanted.acknowledged = True
        wanted.answers += 1

    def _again(self, wanted: Wanted) -> None:
        self.kernel.after(self._chance.randint(*_RETRY_MS) * US_PER_MS, partial(self._try, wanted))

    def _gateway(self) -> GatewayProcess | None:
        up = [each for each in self._gateways if each.up and not each.paused]
        return self._chance.choice(up) if up else None


class _Once:
    def __init__(self, clients: Clients, wanted: Wanted) -> None:
        self._clients, self._wanted, self._done = clients, wanted, False

    def __call__(self, answer: object) -> None:
        if not self._done:
            self._done = True
            self._clients.answered(self._wanted, answer)


def make_job(chance: random.Random, number: int, *, devices_max: int) -> Wanted:
    """A job of a plausible mix: trainings that save, gangs, and small ones that only last."""
    trains = chance.random() < 0.6
    members = chance.choice([1, 1, 1, 2, 2, 4])
    steps = chance.randint(20, 400)
    program = Program(
        steps=steps,
        step_ms=chance.choice([100, 200, 500]),
        save_every=chance.choice([10, 20, 40]) if trains else 0,
        fails_at_step=steps // 2 if chance.random() < 0.05 else 0,
        ignores_sigterm=chance.random() < 0.1,
    )
    spec = common_pb2.JobSpec(
        name=f"job-{number}",
        queue="default",
        priority=chance.choice([0, 0, 0, 1, 5]),
        overlap_safe=trains and chance.random() < 0.5,
        grace_ms=5_000,
        fence_after_ms=20_000,
        hang_after_ms=60_000 if trains else 0,
        retry=common_pb2.RetryPolicy(max_attempts=50, max_attempts_without_progress=20),
        roles=[
            common_pb2.Role(
                name="worker",
                count=members,
                resources=common_pb2.Resources(
                    cpu_milli=1000, devices=chance.randint(0 if not trains else 1, devices_max)
                ),
            )
        ],
    )
    launch = common_pb2.Launch(argv=["program", str(number)])
    return Wanted(jobs.SubmitJobRequest(request_id=f"r{number}", spec=spec, launch=launch), program)
