"""A fleet in virtual time: faults meet jobs, an arm notices, the real leader and planner decide, repairs bring nodes back.

Modelled here: what faults do to jobs, and what each arm sees and when. Real: every decision about a node, an attempt or
a placement. One seed, one history; time in milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Final

import msgspec

from services.health.messages import JobHung
from simulation.goodput.account import JobResult, Phase, Result
from simulation.goodput.arms import Arm, known_after_ms
from simulation.goodput.faults import DAY_MS, Event, Kind, events, lemons
from simulation.goodput.fleet import GPUS_PER_NODE, Fleet, facts, fleet, node_id
from simulation.goodput.leader import Leader
from simulation.goodput.machine import Machine
from simulation.goodput.parameters import HARDWARE, Channel, World
from simulation.goodput.training import Training
from simulation.goodput.workshop import Workshop
from statemachines.attempt import AttemptState
from statemachines.job import JobState
from statemachines.values import JobId
from tidemill.v1 import requests_pb2

SPELL_MS: Final = DAY_MS // 4
_HOUR_MS: Final = 3_600_000
_DRAIN_MS: Final = 600_000  # Before planned work, where a save is asked for [A].
_EXIT_CODES: Final = {Channel.SLOW: 17, Channel.CORRUPT: 16}


class Simulation:
    """One history of one world answered by one arm."""

    def __init__(self, world: World, arm: Arm, seed: int) -> None:
        self.now_ms = 0
        self._world, self._arm, self._seed = world, arm, seed
        self._crew: Fleet = fleet(world)
        self.leader = Leader(list(facts(world, self._crew, brake=arm.brake)))
        self.workshop = Workshop(
            world, arm, self, self.leader, lemons=lemons(world, seed), seed=seed
        )
        self.jobs = {
            job: Training(job, nodes, self, self.leader, world, arm, seed=seed)
            for job, nodes in self._crew.jobs
        }  # fmt: skip
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._due_ms: int | None = None
        self._calm_ms = 0
        self._spells: list[int] = []
        self._interruptions = 0
        self._by_hardware = 0
        self._met: Counter[str] = Counter()

    # --- time

    def after(self, wait_ms: int, what: Callable[[], None]) -> None:
        """Call it then; what is due at once comes in the order in which it was asked for."""
        self._count += 1
        heappush(self._heap, (self.now_ms + max(0, wait_ms), self._count, what))

    def not_before_ms(self) -> int:
        """Until when an incident keeps everyone from progress."""
        return self._calm_ms

    def run(self) -> Result:
        """To the end of the world's days."""
        for event in events(self._world, self._seed):
            self.after(event.at_ms, lambda event=event: self._meet(event))  # type: ignore[misc]
        self.turn()
        ends_ms = round(self._world.days * DAY_MS)
        for at_ms in range(SPELL_MS, ends_ms + 1, SPELL_MS):
            self.after(at_ms, self._mark)
        while self._heap and self._heap[0][0] <= ends_ms:
            self.now_ms, _, what = heappop(self._heap)
            what()
        self.now_ms = ends_ms
        return self._result()

    def _mark(self) -> None:
        self._big.account.spend(self.now_ms)
        self._spells.append(self._big.account.productive_ms)

    def turn(self) -> None:
        """Let the leader decide, and the jobs do what it decided."""
        self.workshop.look_for_lemons()
        self.leader.turn(self.now_ms)
        for job in self.jobs.values():
            job.look()
        self._make_room()
        due_ms = self.leader.next_due_ms(self.now_ms)
        if due_ms is not None and due_ms != self._due_ms:
            self._due_ms = due_ms
            self.after(due_ms - self.now_ms, lambda: self._turn_due(due_ms))

    def _turn_due(self, due_ms: int) -> None:
        if self._due_ms == due_ms:
            self._due_ms = None
            self.turn()

    # --- events

    def _meet(self, event: Event) -> None:
        match event.kind:
            case Kind.INCIDENT:
                self._incident(event)
                return
            case Kind.SILENCE if event.length_ms < self._arm.lost_ms[0]:
                return
            case Kind.ALARM if not self._arm.false_alarms:
                return
        machine = self.workshop.machines[event.node]
        if machine.out or machine.dead or (event.lemon and not machine.lemon):
            return
        self._met[event.kind.value] += 1
        concerned = self._job_on(machine)
        if concerned is not None:
            concerned.meet(event.number)
        match event.kind:
            case Kind.FAULT:
                self._break(machine, event)
            case Kind.FLAP:
                self._flap(machine, event)
            case Kind.ALARM | Kind.SILENCE:
                self._give_up_by_mistake(machine)
            case Kind.PLANNED:
                self._plan_work(machine, event)
            case Kind.STRAGGLER:
                self._slow_down(machine, event)
            case _:
                raise AssertionError(event.kind)

    def _break(self, machine: Machine, event: Event) -> None:
        """A fault: its node may stay bad, the job on it is hurt, and some time later somebody knows."""
        silent = event.channel is Channel.SILENT
        machine.dead = machine.dead or silent
        if not event.transient:
            machine.bad = event
        if silent or not event.transient:
            self.workshop.unwell[machine.number] = None
        job = self._job_on(machine)
        attempt = job.attempt() if job is not None else None
        number = attempt.number if attempt is not None else 0
        if job is not None and attempt is not None:
            self._hurt(job, event)
        if silent and self._arm.suspect_ms:
            self.after(self._arm.suspect_ms, lambda: self.workshop.suspect(machine))
        chance = Random(f"{self._seed}/{event.number}/known")
        self.after(
            known_after_ms(self._arm, event, chance),
            lambda: self._known(machine, event, job, number),
        )

    def _hurt(self, job: Training, event: Event) -> None:
        if job.phase in (Phase.QUEUEING, Phase.HELD, Phase.DETECTION):
            return
        if job is self._big and job.working:
            self._interruptions += 1
            self._by_hardware += event.cause in HARDWARE
        if event.channel is Channel.SLOW:
            job.set_speed(min(job.account.speed, event.speed))
        else:
            job.hung = job.hung or event.channel in (Channel.HANG, Channel.PORT)
            job.stall()

    def _known(self, machine: Machine, event: Event, job: Training | None, number: int) -> None:
        """The arm knows: the node is judged, and the attempt that was hurt is ended."""
        if machine.out:
            return  # Something else was known first.
        if event.channel is Channel.SILENT:
            self.workshop.give_up(machine)
        elif event.channel in self._arm.shuts:
            self.workshop.shut(machine)
        elif event.channel is Channel.PORT and self._arm.sees_ports:
            self.workshop.unplug(machine)
        if job is not None:
            self._end_attempt(machine, event.channel, job, number)
        self.workshop.mend(machine, event)
        self._look()

    def _look(self) -> None:
        """Jobs do what was decided. Nothing was freed, so that no plan could place more: unless one ended at once."""
        for job in self.jobs.values():
            if job.attempt() is None and job.phase not in (Phase.QUEUEING, Phase.HELD):
                self.turn()
                return
            job.look()

    def _end_attempt(self, machine: Machine, channel: Channel, job: Training, number: int) -> None:
        attempt = job.attempt()
        if attempt is None or attempt.number != number or attempt.state is AttemptState.STOPPING:
            return
        ours, running = self._arm.reads_exit_codes, attempt.state is AttemptState.RUNNING
        if ours and running and channel in (Channel.HANG, Channel.PORT):
            node = self.leader.cluster.nodes[node_id(machine.number)]
            port = (node.id, node.nics[0].spec.name) if channel is Channel.PORT else ("", "")
            hung = JobHung(job.id, number, self._arm.hang_ms, -1, 0, *port)
            self.leader.verdict(self.now_ms, hung)
        else:
            code = _EXIT_CODES.get(channel, 1) if ours else 1
            self.leader.member_failed(self.now_ms, attempt, node_id(machine.number), code)

    # --- what is no fault of a node

    def _flap(self, machine: Machine, event: Event) -> None:
        """A port is down: the gang stands still until it is up, gives up itself, or is stopped."""
        job = self._job_on(machine)
        attempt = job.attempt() if job is not None else None
        if job is None or attempt is None or not job.working:
            return
        until_ms = min(event.cut_ms, self._arm.port_ms)
        job.hung = job.hung or event.length_ms >= until_ms
        job.stall()
        if event.length_ms < until_ms:
            serial = job.serial
            self.after(event.length_ms, lambda: job.recover(serial))
            return
        self._interruptions += job is self._big
        self.after(until_ms, lambda: self._flapped(machine, job, attempt.number))

    def _flapped(self, machine: Machine, job: Training, number: int) -> None:
        self._end_attempt(machine, Channel.HANG, job, number)
        self._look()

    def _incident(self, event: Event) -> None:
        """Everything stands still; who restarts meanwhile waits for its end."""
        self._met[event.kind.value] += 1
        self._calm_ms = max(self._calm_ms, self.now_ms + event.length_ms)
        for job in self.jobs.values():
            job.meet(event.number)
            attempt = job.attempt()
            if attempt is None or not job.working:
                continue
            job.stall()
            if event.length_ms < self._arm.hang_ms:
                self.after(event.length_ms, lambda job=job, serial=job.serial: job.recover(serial))  # type: ignore[misc]
                continue
            job.hung = True
            machine = self._machine_of(self.leader.cluster.runs[attempt.runs[0]].node)
            self.after(self._arm.hang_ms, lambda job=job, machine=machine, number=attempt.number:
                       self._flapped(machine, job, number))  # type: ignore[misc]  # fmt: skip

    def _give_up_by_mistake(self, machine: Machine) -> None:
        """What ran on a healthy node goes on elsewhere."""
        job = self._job_on(machine)
        if job is not None and job.working:
            job.account.interrupt_for("false_alarm")
        self.workshop.alarm(machine)
        self.turn()

    def _plan_work(self, machine: Machine, event: Event) -> None:
        """Nothing new goes there from now on; who is still there at the end has to leave, after a save if one is asked for."""
        self.workshop.announce(machine)
        within_ms = min(_DRAIN_MS, event.notice_ms) if self._arm.asks_for_saves else 0
        self.after(event.notice_ms - within_ms, lambda: self.workshop.drain(machine, within_ms))
        self.after(event.notice_ms + event.length_ms, lambda: self.workshop.work_done(machine))

    def _slow_down(self, machine: Machine, event: Event) -> None:
        machine.slow.append(event.speed)
        self.workshop.unwell[machine.number] = None
        self._set_pace(self._job_on(machine))
        self._expect_to_know(machine)
        self.after(event.length_ms, lambda: self._speed_up(machine, event.speed))

    def _speed_up(self, machine: Machine, speed: float) -> None:
        machine.slow.remove(speed)
        self._set_pace(self._job_on(machine))
        if not machine.slow:
            self.workshop.fast_again(machine)

    def _expect_to_know(self, machine: Machine) -> None:
        """A gang on a node that is slow enough is seen to be slowed down by it after the rounds of the rule."""
        rules, job = self._arm.stragglers, self._job_on(machine)
        attempt = job.attempt() if job is not None else None
        if rules is None or job is None or attempt is None or not machine.slow:
            return
        if min(machine.slow) * (100 + rules.straggler_percent) < 100:
            number, wait_ms = attempt.number, rules.straggler_rounds * rules.straggler_round_ms
            self.after(wait_ms, lambda: self._slow_known(machine, job, number))

    def _slow_known(self, machine: Machine, job: Training, number: int) -> None:
        """Its node is drained: the job saves and goes elsewhere."""
        attempt = job.attempt()
        gone = attempt is None or attempt.number != number or attempt.state is AttemptState.STOPPING
        if gone or machine.out or not machine.slow or self._job_on(machine) is not job:
            return
        if job.working:
            self.workshop.drain_slow(machine)
            self.turn()
        else:
            self._expect_to_know(machine)  # Nothing was measured meanwhile.

    def _set_pace(self, job: Training | None) -> None:
        """A job is as fast as its slowest node."""
        if job is not None:
            slow = [
                speed
                for number in self.workshop.unwell
                for speed in self.workshop.machines[number].slow
                if self._job_on(self.workshop.machines[number]) is job
            ]
            job.set_speed(min(slow, default=1.0))

    # --- jobs

    @property
    def _big(self) -> Training:
        return self.jobs[self._crew.jobs[0][0]]

    def began(self, job: Training) -> None:
        """It makes steps: on dead nodes it cannot, on bad ones it may fail again."""
        self._set_pace(job)
        for number in list(self.workshop.unwell):
            machine = self.workshop.machines[number]
            if self._job_on(machine) is not job:
                continue
            if machine.dead:
                job.stall()  # Somebody is about to notice.
            elif machine.bad is not None:
                self._try_again(machine, machine.bad, job)
            self._expect_to_know(machine)

    def _try_again(self, machine: Machine, bad: Event, job: Training) -> None:
        attempt = job.attempt()
        if not bad.again or attempt is None:
            machine.bad = None  # It went away.
            return
        number = attempt.number
        self.after(bad.again_ms, lambda: self._fail_again(machine, bad, job, number))

    def _fail_again(self, machine: Machine, bad: Event, job: Training, number: int) -> None:
        attempt = job.attempt()
        if machine.bad is not bad or machine.out or attempt is None or attempt.number != number:
            return
        self._met["again"] += 1
        chance = Random(f"{self._seed}/{bad.number}/{self.now_ms}/again")
        again = msgspec.structs.replace(
            bad,
            again=chance.random() < self._world.again,
            again_ms=round(chance.random() * self._world.again_within_s * 1000),
        )
        self._break(machine, again)

    def _job_on(self, machine: Machine) -> Training | None:
        cluster = self.leader.cluster
        for name in cluster.usage[node_id(machine.number)].runs:
            run = cluster.runs[name]
            attempt = self.leader.live(run.job)
            if attempt is not None and attempt.number == run.attempt:
                return self.jobs[run.job]
        return None

    def _machine_of(self, node: str) -> Machine:
        return self.workshop.machines[int(node[1:])]

    def _make_room(self) -> None:
        """An operator's rule: when the big job lacks nodes, the youngest smaller jobs are asked to leave."""
        big = self.leader.cluster.jobs[self._big.id]
        if big.state is not JobState.QUEUED or big.reason is None:
            return
        if big.reason.code != "waiting_for_capacity":
            return
        missing = big.reason.missing
        for job in reversed(list(self.jobs.values())[1:]):
            if missing <= 0:
                return
            attempt = job.attempt()
            if attempt is None:
                continue
            missing -= job.nodes
            if attempt.state is AttemptState.STOPPING or attempt.ask:
                continue  # It leaves already.
            said = requests_pb2.RequeueJob(job=job.id, save_first=self._arm.asks_for_saves)
            self.leader.request(self.now_ms, said)
            self.after(0, self.turn)

    # --- the end

    def _result(self) -> Result:
        lost: Counter[str] = Counter()
        jobs: list[JobResult] = []
        for name, job in self.jobs.items():
            result = self._job_result(name, job)
            jobs.append(result)
            lost.update(result.lost_gpu_hours)
        return Result(
            arm=self._arm.name,
            jobs=tuple(jobs),
            spells=tuple(
                [(later - before) / SPELL_MS for before, later in pairwise([0, *self._spells])]
            ),
            luck=self._luck(),
            lost_gpu_hours={cause: round(hours, 1) for cause, hours in sorted(lost.items())},
            restarts=sum(each.attempts - 1 for each in jobs),
            evictions={cause.value: count for cause, count in sorted(self.leader.ends.items())},
            interruptions=self._interruptions,
            by_hardware=self._by_hardware,
            spares=self._crew.spares,
            out_mean=round(self.workshop.out_mean(self.now_ms), 2),
            out_max=self.workshop.out_max,
            replaced=self.workshop.replaced,
            faults=dict(sorted(self._met.items())),
        )

    def _luck(self) -> tuple[float, ...]:
        account, spells = self._big.account, [0.0] * len(self._spells)
        for at_ms, lost_ms in account.fallen:
            if at_ms // SPELL_MS < len(spells):
                spells[at_ms // SPELL_MS] += (lost_ms - account.at_risk_ms) / SPELL_MS
        return tuple(spells)

    def _job_result(self, name: JobId, job: Training) -> JobResult:
        job.account.spend(self.now_ms)
        assert job.account.total_ms == self.now_ms, "all of a job's time is accounted for"
        hours = job.nodes * GPUS_PER_NODE / _HOUR_MS
        return JobResult(
            job=name,
            nodes=job.nodes,
            gpu_hours=self.now_ms * hours,
            useful_gpu_hours=job.account.useful_ms * hours,
            lost_gpu_hours={
                cause: ms * hours for cause, ms in sorted(job.account.lost_ms.items()) if ms
            },
            attempts=self.leader.cluster.jobs[name].attempt,
        )
