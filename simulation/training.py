"""Simulated training: gangs whose ranks step together, save, fail together, and resume from what they are given.

A gang is what physics knows of an attempt: its living ranks. It steps only while all of them live and can reach each
other; a rank that loses a peer exits with 1 a little later, as collectives do. Rank 0 saves and reports through any
gateway that answers, in order and until told that it is durable. Storage is shared, and keeps what was committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from services.agent.orders import Order
from services.gateway.auth import TRAINER, Caller
from services.gateway.refusal import Refusal, Status
from simulation.gateway import GatewayProcess
from simulation.kernel import US_PER_MS, Kernel, Timer
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2
from tidemill.v1 import training_service_pb2 as training

_RETRY_MS = 500
_PEER_LOST_MS = (200, 3_000)
_PROGRESS_MS = 1_000
# What a collective bears of a link that is down before it gives up.
_RETRIES_MS = (30_000, 120_000)


class Program(msgspec.Struct, frozen=True):
    """What a job does; times in virtual milliseconds."""

    steps: int
    step_ms: int
    save_every: int
    save_ms: int = 300
    # Exits with this code at this step, once; 0: never.
    fails_at_step: int = 0
    ignores_sigterm: bool = False
    # Goes on over the interfaces that are left when one is down.
    failover: bool = False
    # Stands still for ever at this step of the first attempt; 0: never.
    hangs_at_step: int = 0
    # How often an attempt in a row fails at its first step; a crash loop has many.
    crash_loop: int = 0
    # Of its saves, each so many-th outlives the host of rank 0; the others are on that host alone.
    remote_every: int = 1
    # Each rank says how long of a step it works itself; else rank 0 speaks for all.
    measures: bool = False
    # The first rank has so much more to do than the others, in percent.
    first_more: int = 0
    # Loads another step than it was told to, where there is one.
    loads_wrong: bool = False

    @property
    def trains(self) -> bool:
        """Whether it saves and reports; else it only lasts."""
        return self.save_every > 0


class Storage:
    """Checkpoints that were committed, by uri: (job, attempt, step)."""

    def __init__(self) -> None:
        self.committed: dict[str, tuple[str, int, int]] = {}
        # Of those, what cannot be loaded though it was acknowledged.
        self.rotten: set[str] = set()
        # Of those, what is on one host alone.
        self.only_on: dict[str, str] = {}
        # Nothing can be written or read.
        self.down = False

    def lose(self, host: str) -> None:
        """The disk of a host is gone, and what was on it alone."""
        self.rotten.update(uri for uri, where in self.only_on.items() if where == host)


class Way(Protocol):
    """From a host to the gateways: what goes there is lost while `cut_up`, what comes back while `cut_down`."""

    cut_up: bool
    cut_down: bool


class Rank:
    """One living run of a gang."""

    __slots__ = ("exit", "host", "order")

    def __init__(self, host: str, order: Order, exit_: Callable[[int, int], None]) -> None:
        self.host = host
        self.order = order
        self.exit = exit_


class Gang:
    """One attempt of one job, as far as it lives."""

    def __init__(
        self,
        kernel: Kernel,
        order: Order,
        program: Program,
        storage: Storage,
        reporter: Reporter,
        slow: Mapping[str, int],
    ) -> None:
        self.kernel = kernel
        self.job, self.attempt = order.job, order.attempt
        self.members = order.members
        self.program = program
        self.ranks: dict[int, Rank] = {}
        self.step = order.resume.step
        self.resume = order.resume
        # The host of rank 0, which speaks for all.
        self.speaks_on = ""
        self.stopped_for_save = False
        self._storage = storage
        self._reporter = reporter
        self._slow = slow
        self._saves = 0
        self._running = False
        self._timer: Timer | None = None
        self._save_at = 0
        self._ask = 0
        self._stop_after_save = False
        self._broken = False
        # Hosts whose links keep the gang from stepping, and the timers of its patience.
        self._cut: dict[str, Timer] = {}
        self._chance = kernel.chance(f"gang {order.job} {order.attempt}")

    def join(self, rank: Rank) -> None:
        """A rank has started; with the last one the gang begins."""
        self.ranks[rank.order.rank] = rank
        if rank.order.rank == 0:
            self.speaks_on = rank.host
        if len(self.ranks) == self.members and not self._running:
            self._running = True
            self._begin()

    def _begin(self) -> None:
        """Load what was decided, and say so; or that it cannot be loaded."""
        if self._broken:
            return
        if self._storage.down and self.resume.uri:
            self._timer = self.kernel.after(_PROGRESS_MS * US_PER_MS, self._begin)
            return
        if self.resume.uri in self._storage.rotten:
            self._reporter.load_failed(self)
            self._break()
            return
        if self.program.trains:
            self._reporter.resumed(self)
        self._schedule()

    def leave(self, rank: int) -> None:
        """A rank is gone; the others notice."""
        self.ranks.pop(rank, None)
        self._break()

    def linked(self, host: str, *, up: int, of: int) -> None:
        """Links of a host changed: whoever needs one that is down stands still, and in the end gives up."""
        ranks = [rank for rank in self.ranks.values() if rank.host == host]
        if not ranks or self.members == 1:
            return
        works = up == of or (self.program.failover and up > 0)
        if works and host in self._cut:
            self._cut.pop(host).cancel()
        elif not works and host not in self._cut:
            patience_us = self._chance.randint(*_RETRIES_MS) * US_PER_MS
            self._cut[host] = self.kernel.after(patience_us, self._break)

    def ask(self, ask: int, at_step: int, *, stop_after: bool) -> None:
        """An early save was asked for, or rank 0's answer has come back."""
        self._stop_after_save = stop_after
        if ask > self._ask and self.program.trains:
            self._ask = ask
            self._save_at = self.step + 5
            self._reporter.answered(self, ask, self._save_at)
        if at_step:
            self._save_at = max(at_step, self.step + 1)

    def _break(self) -> None:
        if self._broken or not self._running:
            return
        self._broken = True
        if self._timer is not None:
            self._timer.cancel()
        for rank in list(self.ranks.values()):
            delay_ms = self._chance.randint(*_PEER_LOST_MS)
            self.kernel.after(delay_ms * US_PER_MS, partial(self._fail, rank))

    def _fail(self, rank: Rank) -> None:
        if self.ranks.get(rank.order.rank) is rank:
            rank.exit(1, 0)

    def _schedule(self) -> None:
        if self._broken:
            return
        to_save = (
            self.program.save_every - self.step % self.program.save_every
            if self.program.trains
            else 10**9
        )
        to_end = self.program.steps - self.step
        steps = max(1, min(to_save, to_end, _PROGRESS_MS // self.program.step_ms or 1))
        if self._save_at > self.step:
            steps = min(steps, self._save_at - self.step)
        # The slowest member sets the pace.
        step_us = max(self.busy_us(rank) for rank in self.ranks)
        self._timer = self.kernel.after(steps * step_us, lambda: self._advance(steps))

    def busy_us(self, rank: int) -> int:
        """What a step takes a rank itself."""
        more = self.program.first_more if rank == 0 else 0
        slow = self._slow.get(self.ranks[rank].host, 100)
        return self.program.step_ms * US_PER_MS * slow * (100 + more) // 10_000

    def _advance(self, steps: int) -> None:
        if self._broken:
            return
        if self._cut or self._hangs():
            self._timer = self.kernel.after(_PROGRESS_MS * US_PER_MS, lambda: self._advance(steps))
            return
        self.step += steps
        fails_at = self.program.fails_at_step
        if self.attempt <= self.program.crash_loop or (
            fails_at and self.step >= fails_at and self.attempt == 1
        ):
            for rank in list(self.ranks.values()):
                rank.exit(1, 0)
            return
        if self.program.trains:
            self._reporter.progress(self)
            due = self.step % self.program.save_every == 0 or self.step == self._save_at
            if due or self.step >= self.program.steps:
                self._save()
                return
        self._go_on()

    def _hangs(self) -> bool:
        at = self.program.hangs_at_step
        return bool(at) and self.step >= at and self.attempt == 1

    def _save(self) -> None:
        step = self.step
        self._reporter.began(self, step)
        self._timer = self.kernel.after(self.program.save_ms * US_PER_MS, lambda: self._saved(step))

    def _saved(self, step: int) -> None:
        if self._broken or len(self.ranks) < self.members:
            return
        if self._storage.down:
            self._reporter.save_failed(self, step)
            self._go_on()
            return
        uri = f"sim://{self.job}/a{self.attempt}/step-{step}"
        self._storage.committed[uri] = (self.job, self.attempt, step)
        self._saves += 1
        host = self.ranks[0].host if self._saves % self.program.remote_every else ""
        if host:
            self._storage.only_on[uri] = host
        self._reporter.saved(self, step, uri, only_on=host)
        if self._stop_after_save and step >= self._save_at:
            self.stopped_for_save = True
        self._go_on()

    def _go_on(self) -> None:
        if self.step >= self.program.steps:
            if self.program.trains:
                self._reporter.finished(self)
            self._broken = True
            for rank in list(self.ranks.values()):
                rank.exit(0, 0)
            return
        self._schedule()


class Reporter:
    """What rank 0 of a gang owes its cell: in order, again and again until it is told that it is durable.

    The trainer ends only when its reports are told, or its attempt is over: as the SDK does within its patience.
    """

    def __init__(self, kernel: Kernel, gateways: list[GatewayProcess]) -> None:
        self.kernel = kernel
        self._gateways = gateways
        # By host.
        self.ways: dict[str, Way] = {}
        self._spools: dict[tuple[str, int], deque[reports_pb2.Report]] = {}
        self._on: dict[tuple[str, int], str] = {}
        self._sending: set[tuple[str, int]] = set()
        self._chance = kernel.chance("reporter")
        # Told of each save that the cell acknowledged as durable: job, attempt, step.
        self.acknowledged: Callable[[str, int, int], None] = lambda _job, _attempt, _step: None

    def resumed(self, gang: Gang) -> None:
        """The receipt."""
        point = gang.resume
        step = point.step - 1 if gang.program.loads_wrong and point.step else point.step
        self._say(gang, resumed=reports_pb2.Resumed(
            job=gang.job, attempt=gang.attempt, step=step, uri=point.uri, manifest=point.manifest
        ))  # fmt: skip

    def load_failed(self, gang: Gang) -> None:
        """What was to be loaded is rotten."""
        self._say(gang, load_failed=reports_pb2.LoadFailed(
            job=gang.job, attempt=gang.attempt, step=gang.resume.step, message="digest differs"
        ))  # fmt: skip

    def began(self, gang: Gang, step: int) -> None:
        """A save began."""
        self._say(
            gang, save_began=reports_pb2.SaveBegan(job=gang.job, attempt=gang.attempt, step=step)
        )

    def saved(self, gang: Gang, step: int, uri: str, *, only_on: str) -> None:
        """A save is durable, be it on one host alone."""
        tier = common_pb2.TIER_LOCAL if only_on else common_pb2.TIER_REMOTE
        reach = common_pb2.REACH_NODE if only_on else common_pb2.REACH_CELL
        self._say(gang, saved=reports_pb2.Saved(
            job=gang.job, attempt=gang.attempt, step=step, uri=uri, bytes=1, tier=tier, reach=reach,
            manifest=f"{step:064x}", save_ms=gang.program.save_ms, node=only_on,
        ))  # fmt: skip

    def save_failed(self, gang: Gang, step: int) -> None:
        """Storage did not take it."""
        self._say(gang, save_failed=reports_pb2.SaveFailed(
            job=gang.job, attempt=gang.attempt, step=step, message="storage is down"
        ))  # fmt: skip

    def answered(self, gang: Gang, ask: int, at_step: int) -> None:
        """Rank 0 says at which step all ranks save."""
        self._say(gang, save_answered=reports_pb2.SaveAnswered(
            job=gang.job, attempt=gang.attempt, ask=ask, at_step=at_step
        ))  # fmt: skip

    def finished(self, gang: Gang) -> None:
        """Training is done."""
        self._say(
            gang, finished=reports_pb2.Finished(job=gang.job, attempt=gang.attempt, step=gang.step)
        )

    def progress(self, gang: Gang) -> None:
        """Telemetry: one call, to a gateway that is up, or none; who cannot be heard is left out."""
        gateway, measures = self._gateway(), gang.program.measures
        speak = sorted(gang.ranks) if measures else [0]
        speak = [rank for rank in speak if not self.ways[gang.ranks[rank].host].cut_up]
        if gateway is None or not speak:
            return
        request = training.ReportProgressRequest(
            progress=[
                telemetry_pb2.Progress(
                    job=gang.job, attempt=gang.attempt, rank=rank, step=gang.step, phase="train",
                    busy_us=gang.busy_us(rank) if measures else 0,
                )
                for rank in speak
            ]
        )  # fmt: skip
        caller = _caller(gang.job, gang.attempt)
        gateway.call(
            lambda core, call, now: core.trainers.report_progress(call, caller, request, now),
            lambda _answer: None,
        )

    def _say(self, gang: Gang, **kind: object) -> None:
        key = (gang.job, gang.attempt)
        report = reports_pb2.Report(**kind)  # type: ignore[arg-type]
        self._spools.setdefault(key, deque()).append(report)
        self._on[key] = gang.speaks_on
        self._send(key)

    def _send(self, key: tuple[str, int]) -> None:
        spool = self._spools[key]
        if key in self._sending or not spool:
            return
        gateway, way = self._gateway(), self.ways[self._on[key]]
        if gateway is None or way.cut_up:
            self.kernel.after(_RETRY_MS * US_PER_MS, lambda: self._send(key))
            return
        self._sending.add(key)
        request = training.ReportCheckpointRequest()
        request.report.CopyFrom(spool[0])
        caller, answered = _caller(*key), _Once(self, key)
        self.kernel.after(
            5_000 * US_PER_MS,
            lambda: answered(Refusal(Status.DEADLINE_EXCEEDED, "deadline", "no answer")),
        )
        gateway.call(
            lambda core, call, now: core.trainers.report_checkpoint(call, caller, request, now),
            lambda answer: None if way.cut_down else answered(answer),
        )

    def told(self, key: tuple[str, int], answer: object) -> None:
        """The outcome of the report at the head of the spool."""
        self._sending.discard(key)
        spool = self._spools[key]
        if not spool:
            return  # It was lost meanwhile.
        if isinstance(answer, Refusal):
            if answer.status is Status.FAILED_PRECONDITION:
                spool.clear()  # The attempt is over: nothing that it says counts any more.
                return
            self.kernel.after(_RETRY_MS * US_PER_MS, lambda: self._send(key))
            return
        said = spool.popleft()
        if said.WhichOneof("kind") == "saved":
            self.acknowledged(*key, said.saved.step)
        self._send(key)

    def lose(self, host: str) -> None:
        """The host is gone for good, and what was unsent there."""
        for key, where in self._on.items():
            if where == host:
                self._spools[key].clear()

    def _gateway(self) -> GatewayProcess | None:
        up = [each for each in self._gateways if each.up and not each.paused]
        return self._chance.choice(up) if up else None


class _Once:
    """An answer that counts once, whichever comes first."""

    def __init__(self, reporter: Reporter, key: tuple[str, int]) -> None:
        self._reporter, self._key, self._done = reporter, key, False

    def __call__(self, answer: object) -> None:
        if not self._done:
            self._done = True
            self._reporter.told(self._key, answer)


def _caller(job: str, attempt: int) -> Caller:
    return Caller(f"job:{job}", "job-token", frozenset({TRAINER}), attempt=(job, attempt))
