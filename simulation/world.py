"""One cell in one history: processes, hosts, work and faults, and the referee that looks at everything.

Two phases. In the first anything may fail: nothing unsafe may happen. Then all is healed, and what was promised must
come about within a bound of virtual time. The referee reads stored records before anyone else, so it sees all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from services.health.rules import Rules as HealthRules
from services.runtime import codec
from simulation.clients import Clients, make_job
from simulation.election import Election
from simulation.kernel import US_PER_MS, US_PER_S, Kernel
from simulation.nodes import Host, Physics
from simulation.process import Process, SimClock
from simulation.services import GatewayProcess, HealthProcess, SchedulerProcess
from simulation.storage import Broker, BrokerFaults
from statemachines import facts, invariants, snapshot
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.job import ENDED, JobState
from statemachines.policy import DEFAULT_POLICY
from statemachines.watcher import Watcher

CELL = "sim"
EPOCH_MS = 1_800_000_000_000


class Shape(msgspec.Struct, frozen=True):
    """Size of a cell and its work."""

    nodes: int = 8
    devices: int = 4
    jobs: int = 30
    jobs_within_s: int = 120
    schedulers: int = 2
    gateways: int = 2
    broker: BrokerFaults = BrokerFaults()
    crash_ppm: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """What came of one history. `broken` is empty when all held."""

    seed: int
    broken: tuple[str, ...]
    history: str
    state: str
    virtual_s: float
    events: int
    entries: int
    voided: int
    seen: Mapping[str, int]


class Referee:
    """Folds every stored record of the log as it is stored, with every invariant after each entry."""

    def __init__(self, broker: Broker) -> None:
        self.cluster = Cluster(CELL)
        self.broken: list[str] = []
        self.seen: dict[str, int] = {}
        self.digests: dict[int, bytes] = {}
        self._watcher = Watcher()
        self._kernel = broker.kernel
        broker.stored.append(self._stored)

    def _stored(self, topic: str, offset: int, value: bytes) -> None:
        if topic != "log":
            return
        try:
            entry = codec.decode_entry(offset, value)
        except codec.CodecError:
            entry = codec.unreadable(offset)
        if self.cluster.void_reason(entry):
            self.count("void entry")
        self.broken += self._watcher.fold(self.cluster, entry)
        self.broken += invariants.violations(self.cluster)
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        self._kernel.note(f"entry {entry.offset} {entry.digest.hex()[:16]}")
        for recorded in entry.facts:
            self.count(type(recorded.fact).__name__)
            match recorded.fact:
                case facts.AttemptEnded(cause=cause):
                    self.count(f"ended {cause.value}")
                case facts.RunEnded(evidence=evidence):
                    self.count(f"evidence {evidence.value}")
                case facts.GangPlaced(attempt=attempt, resume=resume) if (
                    attempt > 1 and resume.step > 0
                ):
                    self.count("resumed from a checkpoint")
                case _:
                    pass

    def count(self, what: str) -> None:
        """A rare state was reached."""
        self.seen[what] = self.seen.get(what, 0) + 1


class World:
    """All of it."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.kernel = Kernel(seed)
        self.shape = shape
        self.broker = Broker(self.kernel, shape.broker)
        self.referee = Referee(self.broker)
        self.election = Election(self.kernel)
        self.clocks: list[SimClock] = []
        chance = self.kernel.chance("world")
        policy = msgspec.structs.replace(
            DEFAULT_POLICY,
            fence_margin_ms=5_000,
            retire_after_ms=-1,
            start_timeout_ms=60_000,
            save_wait_ms=20_000,
        )
        self.schedulers = [
            SchedulerProcess(
                self.broker, self.election, f"scheduler-{i}", self._clock(chance.randint(-2000, 2000)),
                cell=CELL, policy=policy, crash_ppm=shape.crash_ppm,
            )
            for i in range(shape.schedulers)
        ]  # fmt: skip
        self.gateways = [
            GatewayProcess(
                self.broker, f"gateway-{i}", self._clock(chance.randint(-2000, 2000)),
                cell=CELL, cell_key=b"k" * 32, crash_ppm=shape.crash_ppm,
            )
            for i in range(shape.gateways)
        ]  # fmt: skip
        self.health = HealthProcess(
            self.broker,
            "health",
            self._clock(0),
            cell=CELL,
            rules=HealthRules(),
            crash_ppm=shape.crash_ppm,
        )
        self.physics = Physics(self.kernel, self.gateways)
        self.hosts = [
            Host(
                self.physics, self.gateways, f"n{i:04}", self._clock(chance.randint(-2000, 2000)),
                devices=shape.devices, cpu_milli=16_000, crash_ppm=shape.crash_ppm,
            )
            for i in range(shape.nodes)
        ]  # fmt: skip
        self.clients = Clients(self.kernel, self.gateways)
        self.healed = False
        self._jobs = self.kernel.chance("jobs")

    @property
    def services(self) -> list[Process]:
        """All but the hosts."""
        return [*self.schedulers, *self.gateways, self.health]

    def begin(self) -> None:
        """Start everything, and let the work come."""
        for process in (*self.services, *self.hosts):
            self.kernel.after(self._jobs.randint(0, 300) * US_PER_MS, process.start)
        for number in range(self.shape.jobs):
            at_ms = self._jobs.randint(1_000, self.shape.jobs_within_s * 1_000)
            self.kernel.after(at_ms * US_PER_MS, partial(self._submit, number))

    def run(self, seconds: float) -> None:
        """Let time pass, until something is broken."""
        end_us = self.kernel.now_us + int(seconds * US_PER_S)
        while self.kernel.now_us < end_us and not self.broken():
            self.kernel.run_until(min(end_us, self.kernel.now_us + US_PER_S))

    def run_until(self, holds: Callable[[], bool], *, within_s: float) -> bool:
        """Let time pass until it holds; whether it came to that."""
        end_us = self.kernel.now_us + int(within_s * US_PER_S)
        while self.kernel.now_us < end_us and not self.broken():
            if holds():
                return True
            self.kernel.run_until(self.kernel.now_us + US_PER_S)
        return holds()

    def heal(self) -> None:
        """No more faults: what is broken is mended, and nothing crashes any more."""
        self.healed = True
        self.broker.faults = BrokerFaults()
        self.broker.down = self.election.down = self.election.blind = False
        for process in (*self.services, *self.hosts):
            process.crash_ppm = 0
        for host in self.hosts:
            host.cut_up = host.cut_down = host.disk_full = False

    def broken(self) -> list[str]:
        """What does not hold."""
        return [*self.referee.broken, *self.physics.broken]

    # --- what must come about

    def settled(self) -> bool:
        """Every wanted job is acknowledged, and ended or held."""
        known = self.referee.cluster.jobs
        return all(
            wanted.acknowledged
            and wanted.job in known
            and (known[wanted.job].state in ENDED or known[wanted.job].state is JobState.HELD)
            for wanted in self.clients.wanted
        )

    def finish(self) -> Verdict:
        """Heal, demand that all comes to its end, and compare all readers."""
        self.heal()
        broken = list(self.broken())
        if not broken and not self.run_until(self.settled, within_s=1_800):
            broken += self._unsettled()
        broken += [each for each in self.broken() if each not in broken]
        if not broken:
            self.run(5.0)
            broken += self._compare()
        cluster = self.referee.cluster
        return Verdict(
            seed=self.kernel.seed,
            broken=tuple(broken),
            history=self.kernel.digest(),
            state=hashlib.sha256(snapshot.encode(cluster)).hexdigest(),
            virtual_s=self.kernel.now_us / US_PER_S,
            events=self.kernel.events,
            entries=cluster.offset + 1,
            voided=cluster.voided,
            seen=dict(sorted(self.referee.seen.items())),
        )

    def _unsettled(self) -> list[str]:
        known = self.referee.cluster.jobs
        lines = []
        for wanted in self.clients.wanted:
            job = known.get(wanted.job)
            if job is None or not (job.state in ENDED or job.state is JobState.HELD):
                why = (
                    f"{job.state} since {job.changed_at_ms}, {job.reason}"
                    if job
                    else "not in the log"
                )
                lines.append(
                    f"D: job {wanted.job} (acknowledged: {wanted.acknowledged}) never came to an end: {why}"
                )
        return lines[:5] or ["D: not settled"]

    def _compare(self) -> list[str]:
        """C: all readers hold the same state at the same offset. K: each wanted job is in the log once."""
        expected = snapshot.digest(self.referee.cluster)
        broken = []
        readers = {each.name: each.core.cluster for each in self.gateways if each.core is not None}
        if self.health.processor is not None:
            readers["health"] = self.health.processor.cluster
        for name, cluster in readers.items():
            if (
                cluster.offset == self.referee.cluster.offset
                and snapshot.digest(cluster) != expected
            ):
                broken.append(f"C: {name} holds another state than the referee")
        again = Cluster(CELL)
        for at, (_, _, value) in enumerate(self.broker.records.get(("log", 0), [])):
            try:
                again.fold(codec.decode_entry(at, value))
            except codec.CodecError:
                again.fold(codec.unreadable(at))
        if snapshot.digest(again) != expected:
            broken.append("C: a replay of the log holds another state")
        return broken

    def _submit(self, number: int) -> None:
        wanted = make_job(self._jobs, number, devices_max=self.shape.devices)
        self.physics.programs[wanted.launch] = wanted.program
        self.clients.submit(wanted)

    def _clock(self, offset_ms: int) -> SimClock:
        clock = SimClock(self.kernel, epoch_ms=EPOCH_MS, wall_offset_ms=offset_ms)
        self.clocks.append(clock)
        return clock
