"""How attempts go on and end: started, asked for a save, stopped, settled. One stop, one end a decision.

Called by whoever learned something (a report, a verdict, a request, a due time), after the fact that says so was
recorded. `settle` looks at the whole attempt, so it does not matter which of them came last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.runtime.desired import grace_ms
from services.scheduler import exit_codes, fencing, retry
from services.scheduler.draft import Draft
from services.scheduler.exit_codes import Blame
from statemachines.attempt import Attempt, AttemptState
from statemachines.cluster import Cluster
from statemachines.device import DeviceState
from statemachines.facts import (
    AttemptEnded,
    AttemptStarted,
    AttemptStopping,
    JobWaiting,
    RunEnded,
    SaveAsked,
)
from statemachines.job import Job
from statemachines.nic import NicState
from statemachines.node import Node, NodeState, ServiceState
from statemachines.run import Run, RunState
from statemachines.values import Cause, Evidence, JobId, JobNext, NodeId, Outcome

MESSAGE_CHARS: Final = 4096
_OUTCOMES: Final[Mapping[Cause, Outcome]] = {
    Cause.PROGRAM_EXITED: Outcome.SUCCEEDED,
    Cause.PROGRAM_FAILED: Outcome.FAILED,
    Cause.NODE_LOST: Outcome.LOST,
    Cause.DEVICE_FAULT: Outcome.FAILED,
    Cause.NIC_FAULT: Outcome.FAILED,
    Cause.HUNG: Outcome.FAILED,
    Cause.TIME_LIMIT: Outcome.FAILED,
    Cause.CANCELLED: Outcome.STOPPED,
    Cause.HELD: Outcome.STOPPED,
    Cause.REQUEUED: Outcome.STOPPED,
    Cause.DRAINED: Outcome.STOPPED,
    Cause.PREEMPTED: Outcome.STOPPED,
    Cause.START_FAILED: Outcome.FAILED,
    Cause.RESUME_MISMATCH: Outcome.FAILED,
}
# Causes that the loss of one of its nodes explains better: the other members failed because of it.
_EXPLAINED_BY_LOSS: Final = frozenset({Cause.PROGRAM_FAILED, Cause.START_FAILED, Cause.HUNG})


# --- reading


def live(cluster: Cluster, job: JobId) -> Attempt | None:
    """The attempt of a job that has not ended."""
    attempt = cluster.attempt(job)
    return None if attempt is None or attempt.state is AttemptState.ENDED else attempt


def live_on(cluster: Cluster, node: NodeId) -> list[Attempt]:
    """Attempts that have not ended and have an open run on this node, by job."""
    found: dict[JobId, Attempt] = {}
    for name in cluster.usage[node].runs:
        run = cluster.runs[name]
        attempt = live(cluster, run.job)
        if attempt is not None and attempt.number == run.attempt:
            found[run.job] = attempt
    return [found[job] for job in sorted(found)]


def save_wanted(cluster: Cluster, attempt: Attempt) -> bool:
    """Whether the newest early save that was asked for is still to be followed by a stop.

    One for a drain is not, once none of the attempt's nodes is draining any more; but a step that was agreed on stands,
    for it cannot be taken back from all ranks at once.
    """
    if attempt.ask == 0 or attempt.state is not AttemptState.RUNNING:
        return False
    if attempt.ask_step:
        return True
    return attempt.ask_cause is not Cause.DRAINED or any(
        node is not None and node.service is ServiceState.DRAINING
        for node in nodes_of(cluster, attempt)
    )


def nodes_of(cluster: Cluster, attempt: Attempt) -> list[Node | None]:
    """The nodes of its members in rank order; None for one that was removed after its member had ended."""
    return [cluster.nodes.get(cluster.runs[run].node) for run in attempt.runs]


# --- going on


def started(draft: Draft, job: JobId) -> None:
    """After RunStarted: the attempt runs once every member does."""
    attempt = draft.cluster.attempt(job)
    assert attempt is not None, f"job {job} has no attempt"
    if attempt.state is AttemptState.STARTING and attempt.started == len(attempt.runs):
        draft.record(AttemptStarted(job, attempt.number))


def ask_for_save(
    draft: Draft, attempt: Attempt, *, cause: Cause, then: JobNext, deadline_ms: int
) -> None:
    """Ask the trainer for a save, after which the attempt stops for `cause`; no save ends the wait at the deadline."""
    draft.record(SaveAsked(attempt.job, attempt.number, attempt.ask + 1, deadline_ms, cause, then))


def stop_after_save(draft: Draft, job: JobId, why: str) -> None:
    """The asked save is durable, or its deadline has passed: stop for what it was asked for."""
    attempt = live(draft.cluster, job)
    assert attempt is not None and attempt.ask_cause is not None and attempt.ask_next is not None, (
        f"no save of job {job} was asked for"
    )
    stop(draft, attempt, attempt.ask_cause, why, attempt.ask_next)


def stop(draft: Draft, attempt: Attempt, cause: Cause, message: str, then: JobNext) -> None:
    """Its runs must end; an attempt that is stopping already keeps its deadline when that is earlier."""
    spec = draft.cluster.jobs[attempt.job].spec
    deadline_ms = draft.now_ms + grace_ms(spec, draft.cluster.policy, cause)
    if attempt.state is AttemptState.STOPPING:
        deadline_ms = min(deadline_ms, attempt.stop_deadline_ms)
    said = message[:MESSAGE_CHARS]
    with draft.whole():
        draft.record(AttemptStopping(attempt.job, attempt.number, cause, said, then, deadline_ms))
        settle(draft, attempt.job)


def fail(draft: Draft, attempt: Attempt, cause: Cause, blame: Blame, message: str) -> None:
    """It ends badly: stop what is left of it, or end it when nothing is; its budget says what comes next."""
    job = draft.cluster.jobs[attempt.job]
    then, said = retry.consequence(draft.cluster, job, blame, message)
    # A hold for hardware is always a stop: what the attempt keeps of it ends the row (retry.py).
    held = blame is Blame.CELL and then is JobNext.HELD
    if _over(job, attempt) and not held:
        _end(draft, attempt, cause, said, then)
    else:
        stop(draft, attempt, cause, said, then)


# --- runs


def run_ended(
    draft: Draft,
    run: Run,
    evidence: Evidence,
    message: str,
    *,
    exit_code: int = 0,
    signal: int = 0,
) -> None:
    """A run is known to have ended; draws the consequence for its attempt unless that has ended already.

    Both in one entry: nothing but the end of a run makes anyone look at an attempt that has none left.
    """
    with draft.whole():
        draft.record(RunEnded(run.id, exit_code, signal, evidence, message[:MESSAGE_CHARS]))
        attempt = live(draft.cluster, run.job)
        if attempt is not None and attempt.number == run.attempt:
            _after(draft, attempt, draft.cluster.runs[run.id])


def _after(draft: Draft, attempt: Attempt, ended: Run) -> None:
    if exit_codes.clean(ended):
        settle(draft, attempt.job)
        return
    meaning = exit_codes.meaning(ended)
    blame = meaning.blame
    if attempt.state is AttemptState.STOPPING:
        if blame is Blame.CELL and attempt.stop_cause in _EXPLAINED_BY_LOSS:
            # Heard after the others had failed because of it.
            _lost(draft, attempt, meaning.cause, exit_codes.describe(ended))
        else:
            settle(draft, attempt.job)
        return
    if blame is Blame.PROGRAM and _in_doubt(draft.cluster, attempt):
        blame = Blame.UNCLEAR
    fail(draft, attempt, meaning.cause, blame, exit_codes.describe(ended))


def _in_doubt(cluster: Cluster, attempt: Attempt) -> bool:
    """Whether a node of the attempt is not as it should be, so that a member may have failed because of another's node."""
    gang = len(attempt.runs) > 1
    return any(node is None or _unwell(node, gang=gang) for node in nodes_of(cluster, attempt))


def _unwell(node: Node, *, gang: bool) -> bool:
    """A port without a link breaks what reaches others over it, and nothing else."""
    return (
        node.state is not NodeState.READY
        or any(device.state is DeviceState.FAULTY for device in node.devices)
        or (gang and any(nic.state is NicState.FAULTY for nic in node.nics))
    )


def node_lost(draft: Draft, attempt: Attempt, node: NodeId) -> None:
    """After NodeLost: the survivors of the attempt stop, and the job goes on elsewhere as soon as that is safe."""
    message = f"node {node} was lost"
    if attempt.state is not AttemptState.STOPPING:
        fail(draft, attempt, Cause.NODE_LOST, Blame.CELL, message)
    elif attempt.stop_cause in _EXPLAINED_BY_LOSS:
        _lost(draft, attempt, Cause.NODE_LOST, message)
    else:
        settle(draft, attempt.job)


def _lost(draft: Draft, attempt: Attempt, cause: Cause, message: str) -> None:
    """It is stopping already, for something that this explains better."""
    job = draft.cluster.jobs[attempt.job]
    then, said = retry.consequence(draft.cluster, job, Blame.CELL, message)
    stop(draft, attempt, cause, said, then)


# --- ends


def settle(draft: Draft, job_id: JobId) -> None:
    """End the job's attempt if nothing of it can act any more; else say what a stopping one waits for."""
    attempt = live(draft.cluster, job_id)
    if attempt is None:
        return
    job = draft.cluster.jobs[job_id]
    if not _over(job, attempt):
        _explain(draft, job, attempt)
    elif attempt.state is AttemptState.STOPPING:
        _end_stopped(draft, attempt)
    else:
        _end_by_itself(draft, attempt)


def _over(job: Job, attempt: Attempt) -> bool:
    """No run can act any more, or those left are lost and may: their commits are refused."""
    return attempt.open == 0 or (job.spec.overlap_safe and attempt.open == attempt.lost)


def _end_stopped(draft: Draft, attempt: Attempt) -> None:
    if attempt.finished_step >= 0 and _all_clean(draft.cluster, attempt):
        _end(draft, attempt, Cause.PROGRAM_EXITED, "", JobNext.SUCCEEDED)
        return
    assert attempt.stop_cause is not None, "it is stopping"
    then, said = retry.after_stop(draft.cluster, attempt)
    _end(draft, attempt, attempt.stop_cause, said, then)


def _end_by_itself(draft: Draft, attempt: Attempt) -> None:
    """Every run has ended with exit code 0: success, unless the trainer stopped because a save was asked for."""
    if attempt.ask_step and attempt.finished_step < 0:
        assert attempt.ask_cause is not None and attempt.ask_next is not None, (
            "a save was asked for"
        )
        _end(draft, attempt, attempt.ask_cause, "stopped after the save", attempt.ask_next)
        return
    _end(draft, attempt, Cause.PROGRAM_EXITED, "", JobNext.SUCCEEDED)


def _all_clean(cluster: Cluster, attempt: Attempt) -> bool:
    return all(exit_codes.clean(cluster.runs[run]) for run in attempt.runs)


def _end(draft: Draft, attempt: Attempt, cause: Cause, message: str, then: JobNext) -> None:
    cluster = draft.cluster
    wait_until = 0
    if then is JobNext.QUEUED:
        wait_until = retry.not_before_ms(cluster, cluster.jobs[attempt.job], cause, draft.now_ms)
    said, spared = message[:MESSAGE_CHARS], retry.spared(cluster, attempt, cause)
    draft.record(
        AttemptEnded(
            attempt.job, attempt.number, _OUTCOMES[cause], cause, said, then, wait_until, spared
        )
    )


def _explain(draft: Draft, job: Job, attempt: Attempt) -> None:
    """A stopping attempt of which only lost runs are left waits for proof that they are dead."""
    if attempt.state is not AttemptState.STOPPING or attempt.open != attempt.lost:
        return
    lost = [draft.cluster.runs[run] for run in attempt.runs]
    lost = [run for run in lost if run.state is RunState.LOST]
    reason = fencing.waits_for_proof(draft.cluster, job, lost)
    if job.reason is None or job.reason.code != reason.code:
        draft.record(JobWaiting(job.id, reason))
