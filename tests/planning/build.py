"""Small clusters for tests of the plan, built by facts as a leader would."""

from __future__ import annotations

from planning.decisions import Decision, Place, Wait
from planning.planner import Planner
from statemachines import facts
from statemachines.cluster import Cluster
from statemachines.entry import Recorded
from statemachines.values import (
    Cause,
    DeviceSpec,
    Evidence,
    Inventory,
    JobId,
    JobNext,
    JobSpec,
    NicSpec,
    NodeId,
    Outcome,
    QueueId,
    Resources,
    Role,
    RunId,
)


class Cell:
    """A cluster with a planner, and the leader's part of turning decisions into facts."""

    def __init__(self) -> None:
        self.cluster = Cluster("test", track=True)
        self.now_ms = 1_000_000
        self.record(facts.QueueApplied(QueueId("default"), "", -1, -1, -1))
        self._planner: Planner | None = None
        self._number = 0

    @property
    def planner(self) -> Planner:
        """Made at first use; then kept up to date by what was touched."""
        if self._planner is None:
            self._planner = Planner(self.cluster)
            self.cluster.take_touched()
        self._planner.refresh(self.cluster.take_touched())
        return self._planner

    def record(self, fact: facts.Fact) -> None:
        self.cluster.apply(Recorded(fact), self.now_ms)
        self.cluster.at_ms = self.now_ms

    def node(
        self,
        name: str,
        devices: int = 8,
        model: str = "H100",
        cpu: int = 64,
        memory: int = 65_536,
        nics: tuple[NicSpec, ...] = (),
    ) -> None:
        cards = tuple(DeviceSpec(i, model, f"{name}-{i}") for i in range(devices))
        inventory = Inventory("127.0.0.1", cpu * 1000, memory, cards, nics)
        self.record(facts.NodeJoined(NodeId(name), 1, inventory))

    def job(
        self,
        name: str,
        *,
        members: int = 1,
        devices: int = 1,
        cpu: int = 1,
        memory: int = 0,
        models: tuple[str, ...] = (),
        priority: int = 0,
        queue: str = "default",
        overlap_safe: bool = False,
    ) -> None:
        role = Role("worker", members, Resources(cpu * 1000, memory, devices, models))
        spec = JobSpec(name, QueueId(queue), priority, (role,), overlap_safe=overlap_safe)
        number = self.cluster.next_number
        self.record(facts.JobAdmitted(JobId(name), number, 0, spec, f"r/{name}", b""))

    def plan(self, limit: int = 1000) -> list[Decision]:
        """Plan, and record what came out, as the leader does."""
        decisions = self.planner.plan(self.now_ms, limit=limit)
        for decision in decisions:
            match decision:
                case Place(job=job):
                    attempt = self.cluster.jobs[job].attempt + 1
                    self.record(
                        facts.GangPlaced(
                            job,
                            attempt,
                            decision.placements,
                            decision.resume,
                            decision.master_port,
                            decision.why,
                        )
                    )
                case Wait(job=job, reason=reason):
                    self.record(facts.JobWaiting(job, reason))
        return decisions

    def end(self, name: str, *, exit_code: int = 0, then: JobNext = JobNext.SUCCEEDED) -> None:
        """Let every run of a job end, and so its attempt."""
        attempt = self.cluster.attempt(JobId(name))
        assert attempt is not None
        for run in attempt.runs:
            self.record(facts.RunEnded(RunId(run), exit_code, 0, Evidence.EXIT_STATUS, ""))
        outcome, cause = (
            (Outcome.FAILED, Cause.START_FAILED)
            if exit_code
            else (Outcome.SUCCEEDED, Cause.PROGRAM_EXITED)
        )
        self.record(facts.AttemptEnded(JobId(name), attempt.number, outcome, cause, "", then, 0))

    def where(self, name: str) -> list[tuple[str, tuple[int, ...]]]:
        """Node and device indices of each member, by rank; empty while it waits."""
        job = self.cluster.jobs[JobId(name)]
        if job.state.value not in ("starting", "running", "stopping"):
            return []
        attempt = self.cluster.attempt(job.id)
        assert attempt is not None
        runs = [self.cluster.runs[run] for run in attempt.runs]
        return [(run.node, tuple(grant.index for grant in run.devices)) for run in runs]

    def reason(self, name: str) -> str:
        """The code of what a job waits for."""
        reason = self.cluster.jobs[JobId(name)].reason
        return reason.code if reason else ""
