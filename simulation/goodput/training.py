"""One training job as physics: it runs, saves, stalls and restarts. A model; what it is told to do comes from the leader.

Its step counter is its progress in milliseconds, so that the checkpoint which the real leader lets it resume from says how
much was lost. How often it saves is the real advice of the gateway, computed from its own measured saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from services.gateway import advice
from simulation.goodput.account import Account, Phase
from simulation.goodput.arms import Arm
from simulation.goodput.leader import Leader
from simulation.goodput.parameters import World
from statemachines.attempt import Attempt, AttemptState
from statemachines.job import JobState
from statemachines.values import Cause, JobId
from tidemill.v1 import common_pb2, reports_pb2

_WORKING: Final = frozenset({Phase.RUN, Phase.CHECKPOINT})
# Stops for the sake of others, and what their cost counts as.
_SAKES: Final = {Cause.DRAINED: "planned", Cause.REQUEUED: "cascade", Cause.PREEMPTED: "cascade"}


class Stage(Protocol):
    """What a job asks of the simulation around it."""

    now_ms: int

    def after(self, wait_ms: int, what: Callable[[], None]) -> None:
        """Call it then."""

    def turn(self) -> None:
        """Let the leader decide what follows."""

    def began(self, job: Training) -> None:
        """It makes steps again."""

    def not_before_ms(self) -> int:
        """Until when nothing can make progress."""


class Training:
    """A job and its account. `serial` grows whenever what it had planned to do is off."""

    def __init__(
        self, job: JobId, nodes: int, stage: Stage, leader: Leader, world: World, arm: Arm, *, seed: int
    ) -> None:  # fmt: skip
        self.id, self.nodes = job, nodes
        self.account = Account()
        self.serial = 0
        self.hung = False
        self._stage, self._leader, self._world = stage, leader, world
        self._arm, self._seed = arm, seed
        self._attempt = 0
        self._stopping = 0
        self._met, self._restarts = -1, 0

    @property
    def phase(self) -> Phase:
        """What it does now."""
        return self.account.phase

    @property
    def working(self) -> bool:
        """It makes progress, or saves it."""
        return self.phase in _WORKING

    def attempt(self) -> Attempt | None:
        """The live attempt in the real cluster."""
        return self._leader.live(self.id)

    # --- what happens to it

    def meet(self, event: int) -> None:
        """This event concerns it: the restart that comes of it takes the same time in every arm."""
        if event != self._met:
            self._met, self._restarts = event, 0

    def stall(self) -> None:
        """No more progress from now on, and nobody knows."""
        if self.working:
            self._enter(Phase.DETECTION)
            self.serial += 1

    def recover(self, serial: int) -> None:
        """What held it up is over, if it still waits for that."""
        if self.serial == serial and self.phase is Phase.DETECTION:
            self._work()

    def set_speed(self, speed: float) -> None:
        """Its slowest member sets the pace from now on."""
        self.account.spend(self._stage.now_ms)
        self.account.speed = speed

    # --- what the leader decided

    def look(self) -> None:
        """Do what the real cluster says that it must: stop, start, wait for a person."""
        job, attempt = self._leader.cluster.jobs[self.id], self.attempt()
        if attempt is None:
            self._wait(Phase.HELD if job.state is JobState.HELD else Phase.QUEUEING)
        elif attempt.state is AttemptState.STOPPING:
            self._stop(attempt)
        elif attempt.number > self._attempt:
            self._start(attempt)
        elif attempt.ask and not attempt.ask_step and self.phase is Phase.RUN:
            self._save(attempt)

    def _wait(self, phase: Phase) -> None:
        if self.phase is not phase:
            self._enter(phase)
            self.serial += 1
            if phase is Phase.HELD:
                chance = Random(f"{self._seed}/{self.id}/{self._attempt}/held")
                world = self._world
                seconds = world.human_median_s * math.exp(world.human_sigma * chance.gauss(0, 1))
                self._stage.after(round(seconds * 1000), self._release)

    def _release(self) -> None:
        if self._leader.release(self._stage.now_ms, self.id):
            self._stage.turn()

    def _stop(self, attempt: Attempt) -> None:
        """Its members go; one that hangs is killed when its grace is over."""
        if self._stopping == attempt.number:
            return
        self._stopping = attempt.number
        hangs, self.hung = self.hung, False
        sake = _SAKES.get(attempt.stop_cause) if attempt.stop_cause is not None else None
        if sake is not None and self.working:
            self.account.interrupt_for(sake)
        self._enter(Phase.RESTART)
        self.serial += 1
        stop_ms = round(self._world.stop_s * 1000)
        if hangs:
            stop_ms = self._arm.kill_ms or attempt.stop_deadline_ms - self._stage.now_ms
        self._stage.after(stop_ms, lambda: self._stopped(attempt.number))

    def _stopped(self, number: int) -> None:
        self._enter(Phase.QUEUEING)
        self._stage.after(self._arm.requeue_ms, lambda: self._gone(number))

    def _gone(self, number: int) -> None:
        attempt = self.attempt()
        assert attempt is not None and attempt.number == number, "its members were not gone yet"
        self._leader.all_gone(self._stage.now_ms, attempt)
        self._stage.turn()

    # --- its own life

    def _start(self, attempt: Attempt) -> None:
        self._attempt = attempt.number
        self.account.spend(self._stage.now_ms)
        self.account.fall_back(attempt.resume.step)
        self._enter(Phase.RESTART)
        self.serial += 1
        serial = self.serial
        self._stage.after(round(self._world.start_s * 1000), lambda: self._started(serial))
        wait_ms = max(self._restart_ms(), self._stage.not_before_ms() - self._stage.now_ms)  # fmt: skip
        self._stage.after(wait_ms, lambda: self._ready(serial))

    def _restart_ms(self) -> int:
        """Drawn for the event that it comes of, so that arms differ by what they do and not by luck."""
        self._restarts += 1
        key = f"{self._seed}/{self.id}/{self._met}/{self._restarts}/restart"
        world, chance = self._world, Random(key)
        by_hand = chance.random() < world.human
        median_s = world.human_median_s if by_hand else world.restart.median_s
        sigma = world.human_sigma if by_hand else world.restart.sigma
        seconds = median_s * math.exp(sigma * chance.gauss(0, 1))
        return round(max(world.restart_floor_s, seconds) * 1000)

    def _started(self, serial: int) -> None:
        attempt = self.attempt()
        if self.serial == serial and attempt is not None:
            self._leader.all_started(self._stage.now_ms, attempt)

    def _ready(self, serial: int) -> None:
        if self.serial == serial:
            self._work()
            self._stage.began(self)

    def _work(self) -> None:
        self._enter(Phase.RUN)
        self.serial += 1
        attempt = self.attempt()
        assert attempt is not None, "who works is placed"
        if attempt.ask and not attempt.ask_step:
            self._save(attempt)
            return
        serial = self.serial
        self._stage.after(self._interval_ms(), lambda: self._save_now(serial))

    def _interval_ms(self) -> int:
        known = self._leader.cluster.checkpoints.get(self.id, ())
        advised_ms = advice.interval_ms(known, self.nodes)
        return advised_ms or round(self._world.first_save_s * 1000)

    def _save_now(self, serial: int) -> None:
        attempt = self.attempt()
        if self.serial == serial and attempt is not None:
            self._save(attempt)

    def _save(self, attempt: Attempt) -> None:
        """It stands still for the save, which is durable when it goes on."""
        self._enter(Phase.CHECKPOINT)
        self.serial += 1
        step, now_ms = self.account.useful_ms, self._stage.now_ms
        number = attempt.number
        if attempt.ask and not attempt.ask_step:
            answer = reports_pb2.SaveAnswered(
                job=self.id, attempt=number, ask=attempt.ask, at_step=step
            )
            self._leader.report(now_ms, "save_answered", answer)
        self._leader.report(
            now_ms, "save_began", reports_pb2.SaveBegan(job=self.id, attempt=number, step=step)
        )
        serial = self.serial
        self._stage.after(round(self._world.save_s * 1000), lambda: self._saved(serial, attempt.number, step))  # fmt: skip

    def _saved(self, serial: int, number: int, step: int) -> None:
        if self.serial != serial:
            return
        saved = reports_pb2.Saved(
            job=self.id, attempt=number, step=step, uri=f"{number}/{step}", manifest=f"{step}",
            tier=common_pb2.TIER_REMOTE, reach=common_pb2.REACH_EVERYWHERE, save_ms=round(self._world.save_s * 1000),
        )  # fmt: skip
        self._leader.report(self._stage.now_ms, "saved", saved)
        self.account.spend(self._stage.now_ms)
        self.account.saved(step)
        attempt = self.attempt()
        if attempt is None or attempt.state is AttemptState.STOPPING:
            self._stage.turn()
        else:
            self._work()

    def _enter(self, phase: Phase) -> None:
        self.account.enter(self._stage.now_ms, phase)
