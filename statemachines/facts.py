"""Facts: what is now true because the leader recorded it.

One frozen value a kind, past tense, field names equal to those of protos/tidemill/v1/facts.proto. A fact never
changes meaning once released; a new meaning is a new fact. Who asked (`by`) travels beside a fact, in the entry.
"""

from __future__ import annotations

from typing import TypeAlias

from statemachines.values import (
    Cause,
    Evidence,
    Inventory,
    JobId,
    JobNext,
    JobSpec,
    NodeId,
    Outcome,
    Placement,
    QueueId,
    Reach,
    Reason,
    ResumePoint,
    RunId,
    Tier,
    Value,
)

# --- the cell


class TermOpened(Value):
    """A leader's first entry; accepted, it leads."""

    term: int
    leader: str
    nonce: str
    fold_version: int


class PolicyApplied(Value):
    """Settings that decisions depend on; recorded so that a replay decides the same."""

    aging_ms_per_point: int
    starvation_after_ms: int
    retire_after_ms: int
    fence_after_ms: int
    fence_margin_ms: int
    grace_ms: int
    save_wait_ms: int
    max_attempts: int
    max_attempts_without_progress: int
    backoff_ms: int
    keep_checkpoints: int
    start_timeout_ms: int
    port_first: int
    port_count: int


class InputParked(Value):
    """An input that cannot be decoded or is not allowed; at most 4 KiB of it are kept."""

    topic: str
    partition: int
    offset: int
    reason: str
    record: bytes


class InputGapAccepted(Value):
    """An operator let the leader go on past inputs that are gone."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    message: str


class BreakerOpened(Value):
    """Mass silence: an incident of the fabric or of ourselves. No node is declared lost while it lasts."""

    incident: str
    message: str
    nodes: int


class BreakerClosed(Value):
    """The incident is over."""

    incident: str


class RequestAccepted(Value):
    """The answer to a request other than a submission."""

    request: str
    digest: bytes
    kind: str
    target: str


class RequestRefused(Value):
    """A request that was not allowed or made no sense, with what to do about it."""

    request: str
    digest: bytes
    kind: str
    target: str
    code: str
    field: str
    message: str


# --- queues


class QueueApplied(Value):
    """A queue exists with these limits; -1 is no limit."""

    queue: QueueId
    parent: str
    device_limit: int
    cpu_milli_limit: int
    job_limit: int


class QueueRemoved(Value):
    """The queue is gone; it was empty."""

    queue: QueueId


# --- jobs


class JobAdmitted(Value):
    """One job, or an array of `count` jobs named "<job>_<i>" that share one spec."""

    job: JobId
    number: int
    count: int
    spec: JobSpec
    request: str
    digest: bytes


class JobWaiting(Value):
    """Why the job does not run now."""

    job: JobId
    reason: Reason


class JobHeld(Value):
    """It is not placed until released."""

    job: JobId
    reason: Reason


class JobReleased(Value):
    """A hold was lifted."""

    job: JobId


class JobRequeued(Value):
    """A held or finished job waits again."""

    job: JobId
    not_before_ms: int


class JobCancelled(Value):
    """Cancelled while nothing of it ran."""

    job: JobId
    message: str


class JobRetired(Value):
    """Leaves hot state; its history stays in the log."""

    job: JobId


# --- attempts


class GangPlaced(Value):
    """Every member has its node and devices: all or nothing."""

    job: JobId
    attempt: int
    placements: tuple[Placement, ...]
    resume: ResumePoint
    master_port: int
    why: Reason


class AttemptStarted(Value):
    """Every member runs."""

    job: JobId
    attempt: int


class AttemptStopping(Value):
    """Its runs must end; `deadline_ms` is when their grace is over."""

    job: JobId
    attempt: int
    cause: Cause
    message: str
    next: JobNext
    deadline_ms: int


class AttemptEnded(Value):
    """No run of it can act any more, or the job is overlap-safe and those left are lost.

    `spared`: hardware ended it, so that it uses up no retries. Logs of before it was recorded count such ends.
    """

    job: JobId
    attempt: int
    outcome: Outcome
    cause: Cause
    message: str
    next: JobNext
    not_before_ms: int
    spared: bool = False


class SaveAsked(Value):
    """The trainer is asked for a save; once it is durable the attempt stops for `cause`."""

    job: JobId
    attempt: int
    ask: int
    deadline_ms: int
    cause: Cause
    next: JobNext


class SaveAcknowledged(Value):
    """Rank 0 answered: every rank saves at this step."""

    job: JobId
    attempt: int
    ask: int
    at_step: int


class TrainingFinished(Value):
    """The trainer said that it is done; an exit 0 after this is success whatever was asked meanwhile."""

    job: JobId
    attempt: int
    step: int


class AttemptResumed(Value):
    """The receipt: the trainer loaded what was decided."""

    job: JobId
    attempt: int
    step: int


class ResumeMismatched(Value):
    """The trainer loaded something else than was decided."""

    job: JobId
    attempt: int
    step: int
    uri: str
    manifest: str


# --- runs


class RunStarted(Value):
    """Its processes exist."""

    run: RunId


class RunEnded(Value):
    """Nothing of it is left on its node, and how that is known."""

    run: RunId
    exit_code: int
    signal: int
    evidence: Evidence
    message: str


# --- checkpoints


class CheckpointStarted(Value):
    """A save began."""

    job: JobId
    attempt: int
    step: int


class CheckpointSaved(Value):
    """Durable: the manifest and all that it names are on storage."""

    job: JobId
    attempt: int
    step: int
    uri: str
    bytes: int
    tier: Tier
    reach: Reach
    load_ms: int
    save_ms: int
    manifest: str
    data_state: bool
    by_marker: bool
    node: str


class CheckpointFailed(Value):
    """A save came to nothing."""

    job: JobId
    attempt: int
    step: int
    message: str


class CheckpointReleased(Value):
    """The registry no longer needs it; the trainer may remove it."""

    job: JobId
    step: int


class CheckpointRemoved(Value):
    """Its files are gone."""

    job: JobId
    step: int


class CheckpointCondemned(Value):
    """It could not be loaded; the next attempt falls back one."""

    job: JobId
    step: int
    message: str


# --- nodes, devices, nics


class NodeJoined(Value):
    """A node attached: first, again, or as a new incarnation after it was lost."""

    node: NodeId
    incarnation: int
    inventory: Inventory


class NodeSuspected(Value):
    """Silent for a while: nothing new is placed there."""

    node: NodeId
    silent_ms: int


class NodeRecovered(Value):
    """A suspect spoke again."""

    node: NodeId


class NodeLost(Value):
    """Given up: its runs may still live, but the work goes on elsewhere."""

    node: NodeId
    incarnation: int
    message: str


class NodeCordoned(Value):
    """Takes nothing new."""

    node: NodeId
    message: str


class NodeUncordoned(Value):
    """In service again."""

    node: NodeId


class NodeDrainStarted(Value):
    """Takes nothing new and its runs move away, by the deadline at the latest."""

    node: NodeId
    deadline_ms: int
    message: str


class NodeDrained(Value):
    """Nothing runs there any more."""

    node: NodeId


class NodeRemoved(Value):
    """Forgotten; it held nothing."""

    node: NodeId


class DeviceDegraded(Value):
    """Usable, but not as it should be."""

    node: NodeId
    index: int
    reason: Reason


class DeviceFaulted(Value):
    """Not usable: never granted."""

    node: NodeId
    index: int
    reason: Reason


class DeviceRecovered(Value):
    """As it should be again."""

    node: NodeId
    index: int


class NicDegraded(Value):
    """Usable, but slower or less reliable than it should be."""

    node: NodeId
    nic: str
    reason: Reason


class NicFaulted(Value):
    """Down for longer than a collective survives."""

    node: NodeId
    nic: str
    reason: Reason


class NicRecovered(Value):
    """As it should be again."""

    node: NodeId
    nic: str


JobFact: TypeAlias = (
    JobWaiting
    | JobHeld
    | JobReleased
    | JobRequeued
    | JobCancelled
    | GangPlaced
    | AttemptStarted
    | AttemptStopping
    | AttemptEnded
    | CheckpointSaved
)
AttemptFact: TypeAlias = (
    AttemptStarted
    | AttemptStopping
    | AttemptEnded
    | SaveAsked
    | SaveAcknowledged
    | TrainingFinished
    | AttemptResumed
    | ResumeMismatched
    | RunStarted
    | RunEnded
    | NodeLost
)
RunFact: TypeAlias = RunStarted | RunEnded | NodeLost
CheckpointFact: TypeAlias = (
    CheckpointStarted
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointReleased
    | CheckpointRemoved
    | CheckpointCondemned
)
NodeFact: TypeAlias = (
    NodeJoined
    | NodeSuspected
    | NodeRecovered
    | NodeLost
    | NodeCordoned
    | NodeUncordoned
    | NodeDrainStarted
    | NodeDrained
)
DeviceFact: TypeAlias = DeviceDegraded | DeviceFaulted | DeviceRecovered
NicFact: TypeAlias = NicDegraded | NicFaulted | NicRecovered
QueueFact: TypeAlias = QueueApplied | QueueRemoved
CellFact: TypeAlias = (
    TermOpened
    | PolicyApplied
    | InputParked
    | InputGapAccepted
    | BreakerOpened
    | BreakerClosed
    | RequestAccepted
    | RequestRefused
)
Fact: TypeAlias = (
    CellFact
    | QueueFact
    | JobAdmitted
    | JobFact
    | JobRetired
    | AttemptFact
    | RunFact
    | CheckpointFact
    | NodeFact
    | NodeRemoved
    | DeviceFact
    | NicFact
)
