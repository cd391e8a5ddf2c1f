"""What trainers report: saves, receipts, answers to asks, the end of training. Only the current attempt is heard.

An old attempt's commit is refused here, which is what lets two attempts of an overlap-safe job overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from services.runtime import codec
from services.scheduler import attempts
from services.scheduler.draft import Draft, UnfitError
from services.scheduler.exit_codes import Blame
from services.scheduler.wire import NAME_CHARS, need
from statemachines.attempt import Attempt, AttemptState
from statemachines.checkpoint import Checkpoint, CheckpointState
from statemachines.cluster import Cluster
from statemachines.facts import (
    AttemptResumed,
    CheckpointCondemned,
    CheckpointFailed,
    CheckpointReleased,
    CheckpointRemoved,
    CheckpointSaved,
    CheckpointStarted,
    ResumeMismatched,
    SaveAcknowledged,
    TrainingFinished,
)
from statemachines.job import Job
from statemachines.values import Cause, JobId, JobNext, Reach, ResumePoint, Tier
from tidemill.v1 import reports_pb2

MESSAGE_CHARS: Final = 4096
URI_CHARS: Final = 4096
_OUTLIVES_A_NODE: Final = frozenset({Reach.CELL, Reach.EVERYWHERE})
_GONE_FROM: Final = frozenset(
    {CheckpointState.DURABLE, CheckpointState.CONDEMNED, CheckpointState.RELEASED}
)


def _current(draft: Draft, job: str, number: int) -> Attempt | None:
    """The attempt that the report is of, if it may still say something."""
    attempt = attempts.live(draft.cluster, JobId(job))
    if attempt is None or attempt.number != number:
        draft.ignore("old_attempt")
        return None
    return attempt


# --- saves


def _save_began(draft: Draft, said: reports_pb2.SaveBegan) -> None:
    attempt = _current(draft, said.job, said.attempt)
    if attempt is None:
        return
    job = draft.cluster.jobs[attempt.job]
    known = draft.cluster.find_checkpoint(job.id, said.step)
    saving = known is not None and known.state is CheckpointState.SAVING
    if said.step <= job.durable_step or (saving and known and known.attempt == attempt.number):
        draft.ignore("repeated_save")
        return
    draft.record(CheckpointStarted(job.id, attempt.number, said.step))


def _saved(draft: Draft, said: reports_pb2.Saved) -> None:
    need(said.step >= 0 and said.bytes >= 0, "a step or a size is negative")
    need(0 < len(said.uri) <= URI_CHARS, "no uri, or one that is too long")
    need(len(said.node) <= NAME_CHARS, f"the node's name is longer than {NAME_CHARS}")
    tier, reach = _tier(said), _reach(said)
    attempt = _current(draft, said.job, said.attempt)
    if attempt is None:
        return
    job = draft.cluster.jobs[attempt.job]
    if said.step <= job.durable_step:
        draft.ignore("repeated_save")
        return
    draft.record(
        CheckpointSaved(
            job.id, attempt.number, said.step, said.uri, said.bytes, tier, reach, max(0, said.load_ms),
            max(0, said.save_ms), said.manifest[:64], said.data_state, said.by_marker, said.node,
        )
    )  # fmt: skip
    release_older(draft, job.id)
    if _answers_the_ask(draft.cluster, attempt, said):
        attempts.stop_after_save(draft, job.id, f"saved step {said.step}")


def _tier(said: reports_pb2.Saved) -> Tier:
    try:
        return codec.decode_enum(Tier, said.tier)
    except (codec.CodecError, codec.UnknownFactError) as error:
        raise UnfitError(f"tier: {error}") from error


def _reach(said: reports_pb2.Saved) -> Reach:
    try:
        return codec.decode_enum(Reach, said.reach)
    except (codec.CodecError, codec.UnknownFactError) as error:
        raise UnfitError(f"reach: {error}") from error


def _answers_the_ask(cluster: Cluster, attempt: Attempt, said: reports_pb2.Saved) -> bool:
    """The acknowledged step is durable; a program without the SDK acknowledges nothing: its next save does."""
    if not attempts.save_wanted(cluster, attempt):
        return False
    return said.step >= attempt.ask_step if attempt.ask_step else said.by_marker


def _durable(cluster: Cluster, job: JobId) -> list[Checkpoint]:
    known = cluster.checkpoints.get(job, ())
    return [each for each in known if each.state is CheckpointState.DURABLE]


def release_older(draft: Draft, job_id: JobId) -> None:
    """The newest few are kept, and as many of those that outlive the loss of a node; the trainer may remove the rest."""
    job = draft.cluster.jobs[job_id]
    keep = max(1, job.spec.keep_checkpoints or draft.cluster.policy.keep_checkpoints)
    durable = _durable(draft.cluster, job_id)
    lasting = [each.step for each in durable if each.reach in _OUTLIVES_A_NODE][-keep:]
    for each in durable[:-keep]:
        if each.step not in lasting:
            draft.record(CheckpointReleased(job_id, each.step))


def condemned(cluster: Cluster, job: Job, resume: ResumePoint) -> list[CheckpointCondemned]:
    """An attempt that resumes from an older checkpoint leaves the newer ones behind, and will save their steps again.

    Those are on disks of nodes that it was not placed on; kept, they would have its saves refused.
    """
    why = f"it cannot be loaded where attempt {job.attempt + 1} runs, which resumes from step {resume.step}"
    return [
        CheckpointCondemned(job.id, each.step, why)
        for each in _durable(cluster, job.id)
        if each.step > resume.step
    ]


def _save_failed(draft: Draft, said: reports_pb2.SaveFailed) -> None:
    attempt = _current(draft, said.job, said.attempt)
    if attempt is None:
        return
    known = draft.cluster.find_checkpoint(attempt.job, said.step)
    if known is None or known.state is not CheckpointState.SAVING:
        draft.ignore("unknown_save")
        return
    message = said.message[:MESSAGE_CHARS]
    draft.record(CheckpointFailed(attempt.job, attempt.number, said.step, message))


def _removed(draft: Draft, said: reports_pb2.Removed) -> None:
    known = draft.cluster.find_checkpoint(JobId(said.job), said.step)
    if known is None or known.state not in _GONE_FROM:
        draft.ignore("unknown_save")
        return
    draft.record(CheckpointRemoved(known.job, known.step))


# --- asks


def _save_answered(draft: Draft, said: reports_pb2.SaveAnswered) -> None:
    attempt = _current(draft, said.job, said.attempt)
    if attempt is None:
        return
    if attempt.ask != said.ask or attempt.ask_step or said.at_step < 1:
        draft.ignore("old_answer")
        return
    if attempt.state is not AttemptState.RUNNING:
        draft.ignore("stopping_already")
        return
    if not attempts.save_wanted(draft.cluster, attempt):
        draft.ignore("called_off")
        return
    draft.record(SaveAcknowledged(attempt.job, attempt.number, said.ask, said.at_step))
    job = draft.cluster.jobs[attempt.job]
    now = attempts.live(draft.cluster, job.id)
    if job.durable_step >= said.at_step and now and attempts.save_wanted(draft.cluster, now):
        attempts.stop_after_save(draft, job.id, f"step {job.durable_step} was saved already")


# --- begin and end of training


def _resumed(draft: Draft, said: reports_pb2.Resumed) -> None:
    attempt = _current(draft, said.job, said.attempt)
    if attempt is None:
        return
    if attempt.state is AttemptState.STOPPING or attempt.resumed_step >= 0:
        draft.ignore("repeated_receipt")
        return
    if _as_decided(attempt.resume, said):
        draft.record(AttemptResumed(attempt.job, attempt.number, max(0, said.step)))
        return
    uri, manifest = said.uri[:URI_CHARS], said.manifest[:64]
    draft.record(ResumeMismatched(attempt.job, attempt.number, max(0, said.step), uri, manifest))
    decided = attempt.resume
    message = (
        f"the trainer loaded step {said.step} from {uri or 'nowhere'}, not step {decided.step} from "
        f"{decided.uri or 'the beginning'}: load exactly resume_point(), then release the job"
    )
    attempts.stop(draft, attempt, Cause.RESUME_MISMATCH, message, JobNext.HELD)


def _as_decided(decided: ResumePoint, said: reports_pb2.Resumed) -> bool:
    same = said.step == decided.step and said.uri == decided.uri
    return same and (not decided.manifest or said.manifest == decided.manifest)


def _load_failed(draft: Draft, said: reports_pb2.LoadFailed) -> None:
    attempt = _current(draft, said.job, said.attempt)
    if attempt is None:
        return
    decided = attempt.resume
    if not decided.uri or said.step != decided.step or attempt.state is AttemptState.STOPPING:
        draft.ignore("unknown_load")
        return
    why = said.message[:MESSAGE_CHARS]
    message = f"the checkpoint of step {said.step} could not be loaded: {why}"
    durable = _durable(draft.cluster, attempt.job)
    failed = next((each for each in durable if each.step == said.step), None)
    if failed is not None and not _replaceable(failed, durable):
        # Its storage may be away: without it, all that was trained is lost.
        held = (
            f"{message}; there is no other: see to its storage, then release the job to try again"
        )
        attempts.stop(draft, attempt, Cause.START_FAILED, held, JobNext.HELD)
        return
    if failed is not None:
        draft.record(CheckpointCondemned(attempt.job, said.step, why))
    attempts.fail(draft, attempt, Cause.START_FAILED, Blame.UNCLEAR, message)


def _replaceable(checkpoint: Checkpoint, durable: Sequence[Checkpoint]) -> bool:
    """Whether there is another to fall back on that outlives as much."""
    return any(
        each.step != checkpoint.step
        and (each.reach in _OUTLIVES_A_NODE or checkpoint.reach not in _OUTLIVES_A_NODE)
        for each in durable
    )


def _finished(draft: Draft, said: reports_pb2.Finished) -> None:
    attempt = _current(draft, said.job, said.attempt)
    if attempt is None:
        return
    if attempt.finished_step >= 0 or said.step < 0:
        draft.ignore("repeated_finish")
        return
    draft.record(TrainingFinished(attempt.job, attempt.number, said.step))


HANDLERS: Final[dict[str, Callable[[Draft, Any], None]]] = {
    "save_began": _save_began,
    "saved": _saved,
    "save_failed": _save_failed,
    "removed": _removed,
    "resumed": _resumed,
    "load_failed": _load_failed,
    "save_answered": _save_answered,
    "finished": _finished,
}
