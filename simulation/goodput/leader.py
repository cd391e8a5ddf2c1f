"""The real leader's decisions and the real planner over a real cluster, without the log.

What runs here is the code of services/scheduler and planning, called as services/scheduler/core.py calls it. What is left
out: encoding facts, sealing entries, and therefore the bound on an entry's size, which is checked elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from planning.decisions import Place
from planning.planner import Planner
from planning.restart import broken_by
from services.health import wire
from services.health.messages import AttemptBroken, Published
from services.scheduler import attempts, job_requests, nodes, trainers, verdicts
from services.scheduler.arrays import Arrays
from services.scheduler.draft import Draft
from services.scheduler.duetimes import DueTimes
from statemachines.attempt import Attempt
from statemachines.cluster import Cluster
from statemachines.entry import Recorded
from statemachines.facts import AttemptEnded, Fact, GangPlaced, JobWaiting, RunStarted
from statemachines.job import JobState
from statemachines.run import RunState
from statemachines.values import Cause, Evidence, JobId, NodeId
from tidemill.v1 import requests_pb2

_DECISIONS: Final = 2_000
_SIGTERM: Final = 15
_HARDWARE: Final = frozenset({Cause.NODE_LOST, Cause.DEVICE_FAULT, Cause.NIC_FAULT})


class Unsealed(Draft):
    """A draft whose facts take effect and are not kept."""

    def __init__(
        self, cluster: Cluster, now_ms: int, ended: Callable[[AttemptEnded], None]
    ) -> None:
        super().__init__(cluster, term=cluster.term, now_ms=now_ms)
        self._ended = ended

    def record(self, fact: Fact) -> None:
        """Apply it; raises IllegalTransition."""
        self.cluster.apply(Recorded(fact), self.now_ms)
        if isinstance(fact, AttemptEnded):
            self._ended(fact)


class Leader:
    """Decides for one simulated cell. `ends` counts attempts by why they ended."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.cluster = Cluster("goodput", track=True)
        self.ends: Counter[Cause] = Counter()
        self._broken: list[AttemptBroken] = []
        for fact in facts:
            self.cluster.apply(Recorded(fact), 0)
        self._planner = Planner(self.cluster)
        self._due = DueTimes(self.cluster)
        self._arrays = Arrays(self.cluster)
        self.cluster.take_touched()

    def decide(self, now_ms: int, what: Callable[[Draft], None]) -> None:
        """Let real code decide something: `what` calls it with the draft."""
        what(Unsealed(self.cluster, now_ms, self._ended))
        self.cluster.at_ms = now_ms

    def take_broken(self) -> list[AttemptBroken]:
        """Attempts that the hardware of known nodes ended since the last call, as the health processor reads them off the log."""
        broken, self._broken = self._broken, []
        return broken

    def _ended(self, fact: AttemptEnded) -> None:
        self.ends[fact.cause] += 1
        attempt = self.cluster.find_attempt(fact.job, fact.attempt)
        if fact.cause in _HARDWARE and attempt is not None:
            names = tuple(sorted(broken_by(self.cluster, attempt)))
            self._broken.append(AttemptBroken(fact.job, fact.attempt, names))

    def verdict(self, now_ms: int, said: Published) -> None:
        """A verdict as the health processor writes it and the leader reads it."""
        record = wire.write(said, at_ms=now_ms, judge="health")
        self.decide(now_ms, lambda draft: verdicts.decide(draft, record.value))

    def report(self, now_ms: int, kind: str, said: Any) -> None:
        """What a trainer reports."""
        self.decide(now_ms, lambda draft: trainers.HANDLERS[kind](draft, said))

    def request(self, now_ms: int, said: Any) -> None:
        """What a person or program asks of a job; raises RefusedError."""
        self.decide(now_ms, lambda draft: job_requests.decide(draft, self._arrays, said))

    def release(self, now_ms: int, job: JobId) -> bool:
        """A person looked at a held job and lets it try again; False when it is not held."""
        if self.cluster.jobs[job].state is not JobState.HELD:
            return False
        self.request(now_ms, requests_pb2.ReleaseJob(job=job))
        return True

    def turn(self, now_ms: int) -> None:
        """What follows from what was decided: deadlines, drained nodes, the plan."""
        draft, cluster = Unsealed(self.cluster, now_ms, self._ended), self.cluster
        self._due.enforce(draft, limit=_DECISIONS)
        touched = cluster.take_touched()
        for node in touched.nodes:
            nodes.drained(draft, node)
        for each in (touched, cluster.take_touched()):
            self._planner.refresh(each)
            self._due.refresh(each)
        for decision in self._planner.plan(now_ms, limit=_DECISIONS):
            job = cluster.jobs[decision.job]
            if isinstance(decision, Place):
                for condemned in trainers.condemned(cluster, job, decision.resume):
                    draft.record(condemned)
                draft.record(GangPlaced(job.id, job.attempt + 1, decision.placements, decision.resume,
                                        decision.master_port, decision.why))  # fmt: skip
            elif job.reason is None or job.reason.code != decision.reason.code:
                draft.record(JobWaiting(job.id, decision.reason))
        cluster.at_ms = now_ms

    def next_due_ms(self, now_ms: int) -> int | None:
        """When time alone changes something."""
        known = [at for at in (self._due.next_ms(), self._planner.next_due_ms(now_ms)) if at is not None]  # fmt: skip
        return min(known) if known else None

    # --- members of a gang, all at once

    def live(self, job: JobId) -> Attempt | None:
        """The attempt that has not ended."""
        return attempts.live(self.cluster, job)

    def all_started(self, now_ms: int, attempt: Attempt) -> None:
        """Every member's processes exist."""

        def start(draft: Draft) -> None:
            for run in attempt.runs:
                if draft.cluster.runs[run].state is RunState.PLACED:
                    draft.record(RunStarted(run))
            attempts.started(draft, attempt.job)

        self.decide(now_ms, start)

    def all_gone(self, now_ms: int, attempt: Attempt) -> None:
        """Every member that can still say so has ended."""

        def end(draft: Draft) -> None:
            for name in attempt.runs:
                run = draft.cluster.runs[name]
                if run.state not in (RunState.ENDED, RunState.LOST):
                    attempts.run_ended(draft, run, Evidence.EXIT_STATUS, "", signal=_SIGTERM)

        self.decide(now_ms, end)

    def member_failed(self, now_ms: int, attempt: Attempt, node: NodeId, exit_code: int) -> None:
        """The member on this node ended with an error."""

        def end(draft: Draft) -> None:
            run = next(run for name in attempt.runs if (run := draft.cluster.runs[name]).node == node)  # fmt: skip
            attempts.run_ended(draft, run, Evidence.EXIT_STATUS, "", exit_code=exit_code)

        self.decide(now_ms, end)
