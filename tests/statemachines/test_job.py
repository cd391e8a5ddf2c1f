"""The lifecycle of a job: every pair, and the guards beyond the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest
from msgspec.structs import replace

from statemachines import facts, job
from statemachines.job import Job, JobState
from statemachines.lifecycle import IllegalTransition
from statemachines.values import (
    Cause,
    JobId,
    JobNext,
    JobSpec,
    Outcome,
    QueueId,
    Reach,
    Reason,
    Resources,
    ResumePoint,
    Role,
    Tier,
)
from tests.statemachines.matrix import every_pair, pair_id

J: Final = JobId("j")
SPEC: Final = JobSpec("train", QueueId("q"), 5, (Role("w", 2, Resources(1000, 10, 1)),))
WHY: Final = Reason("why", "because")
NEW: Final = Reason("new", "otherwise")
NOW: Final = 1_000
BASE: Final = Job(
    id=J,
    number=7,
    spec=SPEC,
    by="ann",
    state=JobState.QUEUED,
    attempt=2,
    admitted_at_ms=10,
    queued_at_ms=20,
    changed_at_ms=30,
    not_before_ms=40,
    reason=WHY,
    reason_at_ms=50,
    failed=4,
    stalled=1,
    durable_step=100,
    outcome="failed",
)
ENDED: Final = facts.AttemptEnded(
    J, 2, Outcome.FAILED, Cause.PROGRAM_FAILED, "exit 1", JobNext.QUEUED, 5_000
)
FACTS: Final[Mapping[type, Any]] = {
    type(fact): fact
    for fact in (
        facts.JobWaiting(J, NEW),
        facts.JobHeld(J, NEW),
        facts.JobReleased(J),
        facts.JobRequeued(J, 3_000),
        facts.JobCancelled(J, "no more"),
        facts.GangPlaced(J, 3, (), ResumePoint(), 20_000, Reason("fits")),
        facts.AttemptStarted(J, 2),
        facts.AttemptStopping(J, 2, Cause.DRAINED, "node drains", JobNext.QUEUED, 9_000),
        ENDED,
        facts.CheckpointSaved(
            J, 2, 200, "file:///c", 1, Tier.REMOTE, Reach.CELL, 2, 3, "m", True, False, ""
        ),
    )
}
WAITING: Final = {"reason": NEW, "reason_at_ms": NOW}
HELD: Final = {"state": JobState.HELD, "changed_at_ms": NOW, "reason": NEW, "reason_at_ms": NOW}
CANCELLED: Final = {
    "state": JobState.CANCELLED,
    "changed_at_ms": NOW,
    "reason": Reason("cancelled", "no more"),
    "reason_at_ms": NOW,
    "outcome": "",
}
PLACED: Final = {
    "state": JobState.STARTING,
    "attempt": 3,
    "changed_at_ms": NOW,
    "reason": None,
    "reason_at_ms": NOW,
}
AGAIN: Final = {
    "state": JobState.QUEUED,
    "changed_at_ms": NOW,
    "queued_at_ms": NOW,
    "not_before_ms": 0,
    "reason": None,
    "reason_at_ms": NOW,
    "failed": 0,
    "stalled": 0,
}
REQUEUED: Final = AGAIN | {"not_before_ms": 3_000}
STARTED: Final = {"state": JobState.RUNNING, "changed_at_ms": NOW}
STOPPING: Final = {
    "state": JobState.STOPPING,
    "changed_at_ms": NOW,
    "reason": Reason("stopping_drained", "node drains"),
    "reason_at_ms": NOW,
}
RETRIED: Final = {
    "state": JobState.QUEUED,
    "changed_at_ms": NOW,
    "queued_at_ms": NOW,
    "not_before_ms": 5_000,
    "reason": Reason("program_failed", "exit 1"),
    "reason_at_ms": NOW,
    "failed": 5,
    "stalled": 2,
    "outcome": "failed",
}
SAVED: Final = {"durable_step": 200, "stalled": 0}

S: Final = JobState
LEGAL: Final[Mapping[tuple[JobState, type], Mapping[str, Any]]] = {
    (S.QUEUED, facts.JobWaiting): WAITING,
    (S.QUEUED, facts.JobHeld): HELD,
    (S.QUEUED, facts.JobCancelled): CANCELLED,
    (S.QUEUED, facts.GangPlaced): PLACED,
    (S.HELD, facts.JobReleased): AGAIN,
    (S.HELD, facts.JobRequeued): REQUEUED,
    (S.HELD, facts.JobCancelled): CANCELLED,
    (S.STARTING, facts.AttemptStarted): STARTED,
    (S.STARTING, facts.AttemptStopping): STOPPING,
    (S.STARTING, facts.AttemptEnded): RETRIED,
    (S.STARTING, facts.CheckpointSaved): SAVED,
    (S.RUNNING, facts.AttemptStopping): STOPPING,
    (S.RUNNING, facts.AttemptEnded): RETRIED,
    (S.RUNNING, facts.CheckpointSaved): SAVED,
    (S.STOPPING, facts.JobWaiting): WAITING,
    (S.STOPPING, facts.AttemptStopping): STOPPING,
    (S.STOPPING, facts.AttemptEnded): RETRIED,
    (S.STOPPING, facts.CheckpointSaved): SAVED,
    (S.SUCCEEDED, facts.JobRequeued): REQUEUED,
    (S.FAILED, facts.JobRequeued): REQUEUED,
    (S.CANCELLED, facts.JobRequeued): REQUEUED,
}


def test_every_fact_about_a_job_has_an_example_here() -> None:
    assert set(FACTS) == set(get_args(facts.JobFact)) == set(job._RULES)


@pytest.mark.parametrize(("state", "kind"), every_pair(JobState, facts.JobFact), ids=pair_id)
def test_each_pair_gives_the_whole_value_or_is_illegal(state: JobState, kind: type) -> None:
    before = replace(BASE, state=state)
    changes = LEGAL.get((state, kind))
    if changes is None:
        with pytest.raises(IllegalTransition, match=f"is {state}: {kind.__name__} is not legal"):
            job.advance(before, FACTS[kind], NOW)
        return
    after = job.advance(before, FACTS[kind], NOW)
    assert after == replace(before, **changes)
    assert after.state in job.LIFECYCLE[(state, kind)]


@pytest.mark.parametrize(
    ("state", "fact"),
    [
        (S.QUEUED, replace(FACTS[facts.GangPlaced], attempt=2)),
        (S.QUEUED, replace(FACTS[facts.GangPlaced], attempt=4)),
        (S.STARTING, facts.AttemptStarted(J, 1)),
        (S.RUNNING, replace(FACTS[facts.AttemptStopping], attempt=3)),
        (S.RUNNING, replace(ENDED, attempt=1)),
        (S.RUNNING, replace(FACTS[facts.CheckpointSaved], attempt=1)),
        (S.RUNNING, replace(FACTS[facts.CheckpointSaved], step=100)),
    ],
    ids=[
        "placed again",
        "placed too far",
        "started before",
        "stopping after",
        "ended before",
        "saved before",
        "saved no further",
    ],
)
def test_a_fact_of_another_attempt_or_an_older_step_is_illegal(state: JobState, fact: Any) -> None:
    with pytest.raises(IllegalTransition, match=r"job j \(attempt 2, durable step 100\)"):
        job.advance(replace(BASE, state=state), fact, NOW)


def test_a_reason_keeps_its_age_while_its_code_stays() -> None:
    first = job.advance(BASE, facts.JobWaiting(J, Reason("why", "3 devices are missing")), NOW)
    assert (first.reason, first.reason_at_ms) == (Reason("why", "3 devices are missing"), 50)
    unexplained = replace(BASE, reason=None)
    assert job.advance(unexplained, facts.JobWaiting(J, WHY), NOW).reason_at_ms == NOW


@pytest.mark.parametrize(
    ("then", "state"),
    [
        (JobNext.QUEUED, S.QUEUED),
        (JobNext.HELD, S.HELD),
        (JobNext.SUCCEEDED, S.SUCCEEDED),
        (JobNext.FAILED, S.FAILED),
        (JobNext.CANCELLED, S.CANCELLED),
    ],
)
def test_an_ended_attempt_says_what_becomes_of_its_job(then: JobNext, state: JobState) -> None:
    before = replace(BASE, state=S.STOPPING)
    after = job.advance(before, replace(ENDED, next=then), NOW)
    waits = {} if then is JobNext.QUEUED else {"queued_at_ms": 20, "not_before_ms": 0}
    assert after == replace(before, **(RETRIED | {"state": state} | waits))


@pytest.mark.parametrize("cause", list(Cause))
def test_only_ends_that_nobody_asked_for_use_up_retries(cause: Cause) -> None:
    asked_for = {Cause.CANCELLED, Cause.HELD, Cause.REQUEUED, Cause.DRAINED, Cause.PREEMPTED}
    running = replace(BASE, state=S.RUNNING)
    after = job.advance(running, replace(ENDED, outcome=Outcome.STOPPED, cause=cause), NOW)
    counted = 0 if cause in asked_for else 1
    assert (after.failed, after.stalled) == (4 + counted, 1 + counted)
    succeeded = job.advance(running, replace(ENDED, outcome=Outcome.SUCCEEDED, cause=cause), NOW)
    assert (succeeded.failed, succeeded.stalled) == (4, 1)
    end = replace(ENDED, outcome=Outcome.FAILED, cause=cause, spared=True)
    spared = job.advance(running, end, NOW)
    assert (spared.failed, spared.stalled) == (4, 1)


@pytest.mark.parametrize(
    ("held", "state", "reason"),
    [
        (False, S.QUEUED, None),
        (True, S.HELD, Reason("submitted_held", "submitted held: release it to let it run")),
    ],
)
def test_a_job_begins_queued_or_held_as_it_asked(
    held: bool, state: JobState, reason: Reason | None
) -> None:
    spec = replace(SPEC, held=held)
    fact = facts.JobAdmitted(J, 7, 0, spec, "ann/1", b"d")
    assert job.admit(fact, job=J, number=7, by="ann", at_ms=NOW) == Job(
        J, 7, spec, "ann", state, 0, NOW, NOW, NOW, 0, reason, NOW, 0, 0, -1, ""
    )


def test_a_lost_restart_point_moves_the_job_back() -> None:
    assert job.restart_from(BASE, 50) == replace(BASE, durable_step=50)


def test_a_spec_sums_over_its_roles() -> None:
    roles = (Role("w", 3, Resources(1000, 0, 8)), Role("ps", 2, Resources(4000, 0, 0)))
    spec = replace(SPEC, roles=roles)
    assert (spec.members, spec.devices, spec.cpu_milli) == (5, 24, 11_000)
