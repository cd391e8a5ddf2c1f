"""Simulated submitters: they submit under one request id until they are told the decision, and remember what they were promised."""

from __future__ import annotations

import random
from functools import partial

from services.gateway.auth import Caller
from services.gateway.changes import ChangeRequest
from services.gateway.refusal import Refusal, Status
from services.runtime import ids
from simulation.gateway import ADMIN, GatewayProcess
from simulation.kernel import US_PER_MS, Kernel
from simulation.training import Program
from tidemill.v1 import common_pb2
from tidemill.v1 import job_service_pb2 as jobs

_DEADLINE_MS = 4_000
_RETRY_MS = (50, 1_500)
_DECIDED = frozenset({Status.NOT_FOUND, Status.INVALID_ARGUMENT, Status.RESOURCE_EXHAUSTED})
# A queue that is small enough to be full now and then.
SMALL = "small"
SMALL_DEVICES = 8
USER = Caller("user:sim", "token", frozenset({"user", "admin"}))


class Wanted:
    """A job that somebody wants, until it is acknowledged."""

    __slots__ = ("acknowledged", "answers", "job", "program", "refused", "request")

    def __init__(self, request: jobs.SubmitJobRequest, program: Program) -> None:
        self.request = request
        self.program = program
        self.job = ids.job_id(principal=USER.principal, request=request.request_id)
        self.acknowledged = False
        # The cell decided against it, and remembers that: asking again changes nothing.
        self.refused = False
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

    def ask(self, request: ChangeRequest) -> None:
        """Ask for a change once, as an operator; whether it comes through is the cell's affair."""
        gateway = self._gateway()
        if gateway is not None:
            gateway.call(
                lambda core, call, now: core.change(
                    call, ADMIN, request, now, deadline_ms=now.mono_ms + _DEADLINE_MS
                ),
                lambda _answer: None,
            )

    def _try(self, wanted: Wanted) -> None:
        gateway = self._gateway()
        if wanted.acknowledged or wanted.refused:
            return
        if gateway is None:
            self._again(wanted)
            return
        once = _Once(self, wanted)
        self.kernel.after((_DEADLINE_MS + 500) * US_PER_MS, partial(once, None))
        gateway.call(
            lambda core, call, now: core.submit(
                call, USER, wanted.request, now, deadline_ms=now.mono_ms + _DEADLINE_MS
            ),
            once,
        )

    def answered(self, wanted: Wanted, answer: object) -> None:
        """What the gateway said, or None: nothing came."""
        if isinstance(answer, Refusal) and answer.status in _DECIDED:
            wanted.refused = True
            return
        if answer is None or isinstance(answer, Refusal):
            self._again(wanted)
            return
        assert isinstance(answer, jobs.SubmitJobResponse), "what SubmitJob answers"
        assert answer.job == wanted.job, f"{answer.job} is not {wanted.job}"
        if answer.status == jobs.SUBMIT_STATUS_DURABLE:
            self._again(wanted)  # It will be decided, for it or against it.
            return
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


def make_job(chance: random.Random, number: int, *, nodes: int, devices_max: int) -> Wanted:
    """A job of a plausible mix that fits the cell: trainings that save, gangs, and small ones that only last."""
    trains = chance.random() < 0.6
    devices = chance.randint(1 if trains else 0, devices_max)
    room = nodes * (devices_max // devices) if devices else nodes
    members = min(chance.choice([1, 1, 1, 2, 2, 4]), room)
    small = members * devices <= SMALL_DEVICES and chance.random() < 0.4
    steps = chance.randint(20, 400)
    program = Program(
        steps=steps,
        step_ms=chance.choice([100, 200, 500]),
        save_every=chance.choice([10, 20, 40]) if trains else 0,
        fails_at_step=steps // 2 if chance.random() < 0.05 else 0,
        ignores_sigterm=chance.random() < 0.1,
        failover=chance.random() < 0.3,
        hangs_at_step=steps // 3 if trains and chance.random() < 0.05 else 0,
        crash_loop=chance.choice([1, 2, 30]) if chance.random() < 0.05 else 0,
        loads_wrong=trains and chance.random() < 0.05,
    )
    limit_ms = chance.choice([20_000, 60_000]) if chance.random() < 0.05 else 0
    return job_of(
        number, program, members=members, devices=devices, queue=SMALL if small else "default",
        priority=chance.choice([0, 0, 0, 1, 5]), overlap_safe=trains and chance.random() < 0.5,
        hang_after_ms=60_000 if trains else 0, max_run_ms=limit_ms,
    )  # fmt: skip


def job_of(
    number: int,
    program: Program,
    *,
    members: int,
    devices: int,
    queue: str = "default",
    priority: int = 0,
    overlap_safe: bool = False,
    hang_after_ms: int = 0,
    fence_after_ms: int = 20_000,
    stalled_max: int = 20,
    max_run_ms: int = 0,
) -> Wanted:
    """The request for a job that runs the program."""
    need = common_pb2.Resources(cpu_milli=1000, devices=devices)
    spec = common_pb2.JobSpec(
        name=f"job-{number}",
        queue=queue,
        priority=priority,
        overlap_safe=overlap_safe,
        grace_ms=5_000,
        fence_after_ms=fence_after_ms,
        hang_after_ms=hang_after_ms,
        max_run_ms=max_run_ms,
        retry=common_pb2.RetryPolicy(max_attempts=50, max_attempts_without_progress=stalled_max),
        roles=[common_pb2.Role(name="worker", count=members, resources=need)],
    )
    launch = common_pb2.Launch(argv=["program", str(number)])
    return Wanted(jobs.SubmitJobRequest(request_id=f"r{number}", spec=spec, launch=launch), program)
