"""One cell in one history: processes, hosts, work and faults.

Two phases. In the first anything may fail: nothing unsafe may happen. Then all is healed, and what was promised must
come about within a bound of virtual time: every job ends or is held with a reason, every reader holds the same state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from services.health.rules import Rules as HealthRules
from simulation.clients import Clients, Wanted, make_job
from simulation.election import Election
from simulation.gateway import GatewayProcess
from simulation.interfaces import Interfaces
from simulation.kernel import US_PER_MS, US_PER_S, Kernel
from simulation.nodes import Host
from simulation.operators import Operators
from simulation.physics import Physics
from simulation.process import Process, SimClock
from simulation.referee import Referee
from simulation.services import HealthProcess, SchedulerProcess
from simulation.storage import Broker, BrokerFaults, decoded
from statemachines import invariants, snapshot
from statemachines.cluster import Cluster
from statemachines.job import ENDED, JobState
from statemachines.policy import DEFAULT_POLICY, Policy

CELL = "sim"
EPOCH_MS = 1_800_000_000_000
# Longest that the cell is given to bring everything to its end once it is healed.
SETTLE_S = 1_800
# Often, for restarts from snapshots are to be seen; but it costs what the cell is large, so it grows with its nodes.
SNAPSHOT_ENTRIES_MIN = 60
# A waiting job has a reason by then.
REASON_WITHIN_MS = 30_000


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of a cell and its work."""

    nodes: int = 8
    devices: int = 4
    nics: int = 2
    jobs: int = 30
    jobs_within_s: int = 120
    schedulers: int = 2
    gateways: int = 2
    broker: BrokerFaults = BrokerFaults()
    crash_ppm: int = 0
    # Of the rules of health; 0: stragglers are only told of.
    straggler_drain_ms: int = 0


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


POLICY: Policy = msgspec.structs.replace(
    DEFAULT_POLICY,
    fence_margin_ms=5_000,
    retire_after_ms=-1,
    start_timeout_ms=60_000,
    save_wait_ms=20_000,
)


class World:
    """All of it."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.kernel = Kernel(seed)
        self.shape = shape
        self.broker = Broker(self.kernel, shape.broker)
        self.election = Election(self.kernel)
        self.clocks: list[SimClock] = []
        self.healed = False
        self._clock_chance = self.kernel.chance("world")
        self._jobs = self.kernel.chance("jobs")
        ppm = shape.crash_ppm
        self.schedulers = [
            SchedulerProcess(
                self.broker, self.election, f"scheduler-{i}", self._clock(), cell=CELL, policy=POLICY,
                snapshot_entries=max(SNAPSHOT_ENTRIES_MIN, shape.nodes), crash_ppm=ppm,
            )
            for i in range(shape.schedulers)
        ]  # fmt: skip
        self.gateways = [
            GatewayProcess(
                self.broker, f"gateway-{i}", self._clock(), cell=CELL, cell_key=b"k" * 32, crash_ppm=ppm
            )
            for i in range(shape.gateways)
        ]  # fmt: skip
        self.health = HealthProcess(
            self.broker, "health", self._clock(), cell=CELL, crash_ppm=ppm,
            rules=HealthRules(straggler_drain_ms=shape.straggler_drain_ms),
        )  # fmt: skip
        self.physics = Physics(self.kernel, self.gateways)
        self.referee = Referee(self.broker, self.physics, CELL)
        self.hosts = [self._host(i) for i in range(shape.nodes)]
        # Of hosts whose interfaces count something.
        self._interfaces: dict[str, Interfaces] = {}
        self.clients = Clients(self.kernel, self.gateways)
        self.operators = Operators(self.kernel, self.clients, self.referee, self.schedulers)

    @property
    def services(self) -> list[Process]:
        """All but the hosts."""
        return [*self.schedulers, *self.gateways, self.health]

    def begin(self) -> None:
        """Start everything, and let the work come."""
        for process in (*self.services, *self.hosts):
            self.kernel.after(self._jobs.randint(0, 300) * US_PER_MS, process.start)
        self.operators.begin()
        for number in range(self.shape.jobs):
            at_ms = self._jobs.randint(1_000, self.shape.jobs_within_s * 1_000)
            wanted = make_job(
                self._jobs, number, nodes=self.shape.nodes, devices_max=self.shape.devices
            )
            self.submit(wanted, at_ms=at_ms)

    def submit(self, wanted: Wanted, *, at_ms: int) -> None:
        """Somebody will want it."""
        self.physics.programs[wanted.launch] = wanted.program
        self.kernel.at(at_ms * US_PER_MS, partial(self.clients.submit, wanted))

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
        return not self.broken() and holds()

    def heal(self) -> None:
        """No more faults: what is broken is mended, and nothing crashes any more."""
        self.healed = True
        self.kernel.note("healed")
        self.referee.note("healed", "")
        self.broker.faults = BrokerFaults()
        self.broker.down = self.election.down = self.election.blind = False
        self.election.raise_terms(self.referee.cluster.term)
        for process in (*self.services, *self.hosts):
            process.crash_ppm = process.crash_in = 0
            process.crash_at = ""
        for gateway in self.gateways:
            gateway.lag_ms = 0
        for host in self.hosts:
            host.mend()
        for interfaces in self._interfaces.values():
            interfaces.mend()
        self.operators.mend(self.hosts)

    def broken(self) -> list[str]:
        """What does not hold."""
        return [*self.referee.broken, *self.physics.broken, *self.kernel.troubles]

    # --- what must come about

    def settled(self) -> bool:
        """Every wanted job was refused, or is acknowledged, and ended or held."""
        known = self.referee.cluster.jobs
        return all(
            wanted.refused
            or (
                wanted.acknowledged
                and wanted.job in known
                and (known[wanted.job].state in ENDED or known[wanted.job].state is JobState.HELD)
            )
            for wanted in self.clients.wanted
        )

    def finish(self) -> Verdict:
        """Heal, demand that all comes to its end, and compare all readers."""
        if not self.broken():
            self.heal()
            broken = [] if self.run_until(self.settled, within_s=SETTLE_S) else self._unsettled()
            if not self.broken() and not broken:
                self.run(5.0)
                self.referee.check_state()
                broken = self._compare()
        else:
            broken = []
        return self.verdict(broken)

    def note_ends(self) -> None:
        """Put on the timeline how every job stands."""
        for wanted in self.clients.wanted:
            job = self.referee.cluster.jobs.get(wanted.job)
            self.referee.note("final", wanted.job, job.state.value if job else "unknown")

    def verdict(self, broken: list[str]) -> Verdict:
        """Of the history so far, with what else does not hold."""
        cluster = self.referee.cluster
        return Verdict(
            seed=self.kernel.seed,
            broken=(*self.broken(), *broken),
            history=self.kernel.digest(),
            state=hashlib.sha256(snapshot.encode(cluster)).hexdigest(),
            virtual_s=self.kernel.now_us / US_PER_S,
            events=self.kernel.events,
            entries=cluster.offset + 1,
            voided=cluster.voided,
            seen=dict(sorted(self.referee.seen.items())),
        )

    def _unsettled(self) -> list[str]:
        """D and K: who was promised what, and how it stands."""
        if self.broken():
            return []
        known = self.referee.cluster.jobs
        lines = []
        for wanted in self.clients.wanted:
            job = known.get(wanted.job)
            if wanted.refused:
                continue
            if job is None:
                told = "acknowledged" if wanted.acknowledged else "never answered"
                lines.append(f"K: job {wanted.job} was {told} and is not in the log")
            elif not (job.state in ENDED or job.state is JobState.HELD):
                lines.append(
                    f"D: job {wanted.job} never came to an end: {job.state}, attempt {job.attempt}, {job.reason}"
                )
            elif not wanted.acknowledged:
                lines.append(f"K: job {wanted.job} is in the log and nobody was told")
        return lines[:5]

    def _compare(self) -> list[str]:
        """C: all readers hold the same state at the same offset, and so does a replay. D: who waits knows why."""
        final = self.referee.cluster
        expected = snapshot.digest(final)
        broken = invariants.unexplained(final, after_ms=REASON_WITHIN_MS)
        broken += [
            f"K: job {wanted.job} was refused and is in the log"
            for wanted in self.clients.wanted
            if wanted.refused and wanted.job in final.jobs
        ]
        readers = {each.name: each.core.cluster for each in self.gateways if each.core is not None}
        if self.health.processor is not None:
            readers["health"] = self.health.processor.judge.cluster
        for scheduler in self.schedulers:
            if scheduler.scheduler is not None:
                readers[scheduler.name] = scheduler.scheduler.cluster
        for name, cluster in readers.items():
            if cluster.offset == final.offset and snapshot.digest(cluster) != expected:
                broken.append(f"C: {name} holds another state than the referee")
        again = Cluster(CELL)
        for at, (_, _, value) in enumerate(self.broker.records.get(("log", 0), [])):
            again.fold(decoded(at, value))
        if snapshot.digest(again) != expected:
            broken.append("C: a replay of the log holds another state")
        return broken

    # --- parts

    def interfaces_of(self, host: Host) -> Interfaces:
        """What a host's interfaces count, looked at from now on."""
        if host.name not in self._interfaces:
            self._interfaces[host.name] = Interfaces(self.kernel, host)
        return self._interfaces[host.name]

    def _host(self, number: int) -> Host:
        return Host(
            self.physics, self.gateways, f"n{number:04}", self._clock(), devices=self.shape.devices,
            nics=self.shape.nics, cpu_milli=16_000, crash_ppm=self.shape.crash_ppm,
        )  # fmt: skip

    def _clock(self) -> SimClock:
        offset_ms = self._clock_chance.randint(-5_000, 5_000)
        clock = SimClock(self.kernel, ahead_ms=EPOCH_MS + offset_ms)
        self.clocks.append(clock)
        return clock
