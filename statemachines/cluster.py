"""The fold: entries in, state out. The only place where entities are swapped.

An entry is accepted only if it extends the chain; everything else is void, counted, and changes nothing, by one rule
on every reader. Facts of an accepted entry are asserted: the leader looked before it wrote, so an illegal fact is a
bug and stops the reader. No effects come out: what is owed to nodes, users and topics is computed from state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from statemachines import attempt as attempts
from statemachines import checkpoint as checkpoints
from statemachines import device as devices
from statemachines import job as jobs
from statemachines import nic as nics
from statemachines import node as nodes
from statemachines import queue as queues
from statemachines import run as runs
from statemachines.attempt import Attempt
from statemachines.checkpoint import Checkpoint, CheckpointState
from statemachines.entry import GENESIS, Entry, Recorded
from statemachines.facts import (
    AttemptEnded,
    AttemptResumed,
    AttemptStarted,
    AttemptStopping,
    BreakerClosed,
    BreakerOpened,
    CheckpointCondemned,
    CheckpointFailed,
    CheckpointReleased,
    CheckpointRemoved,
    CheckpointSaved,
    CheckpointStarted,
    DeviceDegraded,
    DeviceFact,
    DeviceFaulted,
    DeviceRecovered,
    Fact,
    GangPlaced,
    InputGapAccepted,
    InputParked,
    JobAdmitted,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobRetired,
    JobWaiting,
    NicDegraded,
    NicFact,
    NicFaulted,
    NicRecovered,
    NodeCordoned,
    NodeDrained,
    NodeDrainStarted,
    NodeJoined,
    NodeLost,
    NodeRecovered,
    NodeRemoved,
    NodeSuspected,
    NodeUncordoned,
    PolicyApplied,
    QueueApplied,
    QueueRemoved,
    RequestAccepted,
    RequestRefused,
    ResumeMismatched,
    RunEnded,
    RunStarted,
    SaveAcknowledged,
    SaveAsked,
    TermOpened,
    TrainingFinished,
)
from statemachines.job import Job
from statemachines.lifecycle import IllegalTransition
from statemachines.node import Node
from statemachines.policy import DEFAULT_POLICY, Policy
from statemachines.queue import Queue
from statemachines.run import Run, RunState
from statemachines.usage import NodeUsage, QueueUsage
from statemachines.values import JobId, NodeId, QueueId, RunId

# Raised when the meaning of any fact changes; a snapshot of another version is not used.
FOLD_VERSION: Final = 1
# A repeated request id gets its first answer for this long, by log time, unless so many came since.
ANSWER_WINDOW_MS: Final = 24 * 3_600_000
ANSWERS_KEPT: Final = 1_000_000
# Attempts of a live job whose runs are kept for people to look at; older ones are in the log.
ATTEMPTS_KEPT: Final = 10

V = TypeVar("V")


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a request was answered; `code` is empty when it was accepted."""

    digest: bytes
    kind: str
    target: str
    code: str
    field: str
    message: str
    at_ms: int


class Touched:
    """Ids whose state has changed since they were last taken, in order; for those who keep an index of their own."""

    __slots__ = ("jobs", "nodes", "queues")

    def __init__(self) -> None:
        self.jobs: dict[JobId, None] = {}
        self.nodes: dict[NodeId, None] = {}
        self.queues: dict[QueueId, None] = {}


class Cluster:
    """State of one cell. Read freely; only `fold` and, on the leader, `apply` change it.

    Primary state: everything up to `answers`; it depends on the accepted entries alone, not on where the log keeps
    them (`offset`) or on what else is there (`voided`). What follows `answers` is derived from it and rebuilt, not
    stored, when a snapshot is loaded.
    """

    def __init__(self, cell: str, *, track: bool = False) -> None:
        self.cell = cell
        self.offset = -1
        self.voided = 0
        self.head = GENESIS
        self.term = 0
        self.leader = ""
        self.at_ms = 0
        self.term_opened_at_ms = 0
        self.next_number = 1
        self.parked = 0
        self.facts = 0
        self.incident: BreakerOpened | None = None
        self.policy: Policy = DEFAULT_POLICY
        self.positions: dict[tuple[str, int], int] = {}
        self.queues: dict[QueueId, Queue] = {}
        self.jobs: dict[JobId, Job] = {}
        self.attempts: dict[JobId, tuple[Attempt, ...]] = {}
        self.runs: dict[RunId, Run] = {}
        self.checkpoints: dict[JobId, tuple[Checkpoint, ...]] = {}
        self.nodes: dict[NodeId, Node] = {}
        # Ordered: its oldest is taken off all the time, which a plain dict makes slower and slower.
        self.answers: OrderedDict[str, Answer] = OrderedDict()
        self.usage: dict[NodeId, NodeUsage] = {}
        self.queue_usage: dict[QueueId, QueueUsage] = {}
        self.job_numbers: dict[int, JobId] = {}
        self._lines: dict[QueueId, tuple[QueueUsage, ...]] = {}
        self._touched = Touched() if track else None

    # --- the chain

    def void_reason(self, entry: Entry) -> str:
        """Why the fold would not take this entry; empty when it would."""
        if entry.cell != self.cell:
            return f"of cell {entry.cell}, not {self.cell}"
        if entry.prev != self.head:
            return "does not extend the head"
        if entry.term < self.term:
            return f"term {entry.term} is over: the log is at term {self.term}"
        return ""

    def fold(self, entry: Entry) -> bool:
        """Take an entry if it extends the chain; the only way that state changes on a reader."""
        if entry.prev != self.head or entry.term < self.term or entry.cell != self.cell:
            self.voided += 1
            self.offset = entry.offset
            return False  # A replaced leader, a retry, or an entry after a gap.
        self.offset = entry.offset
        at_ms = entry.at_ms
        handlers = _HANDLERS
        for recorded in entry.facts:
            fact = recorded.fact
            try:
                handlers[type(fact)](self, fact, recorded.by, at_ms)
            except LookupError as error:
                raise _unknown(fact, error) from error
        self.facts += len(entry.facts)
        self.seal(entry)
        return True

    def apply(self, recorded: Recorded, at_ms: int) -> None:
        """Take one fact ahead of its entry: the leader's working state. `seal` must follow with the entry."""
        fact = recorded.fact
        try:
            _HANDLERS[type(fact)](self, fact, recorded.by, at_ms)
        except LookupError as error:
            raise _unknown(fact, error) from error
        self.facts += 1

    def seal(self, entry: Entry) -> None:
        """Move head, term, time and positions to those after `entry`, whose facts have been applied."""
        for position in entry.consumed:
            self.positions[(position.topic, position.partition)] = position.next_offset
        self.head, self.term, self.at_ms = entry.digest, entry.term, entry.at_ms
        self._forget_answers(entry.at_ms - ANSWER_WINDOW_MS)

    def settle(self, entry: Entry) -> None:
        """The sealed entry was read back: it lies at `entry.offset`, which no state depends on."""
        self.offset = entry.offset

    def skip(self, offset: int) -> None:
        """A record that does not extend the chain lies at `offset`: the leader's side of a fold that answers False."""
        self.voided += 1
        self.offset = offset

    def derive(self) -> None:
        """Compute again, from the primary state, all that follows from it."""
        self.usage = {name: NodeUsage() for name in self.nodes}
        for run in self.runs.values():
            if run.state is not RunState.ENDED:
                self.usage[run.node].take(run)
        self.queue_usage, self._lines = {}, {}
        for name in self.queues:  # A parent came before those below it.
            self._open_queue(name)
        self.job_numbers = {}
        for job in self.jobs.values():
            self.job_numbers[job.number] = job.id
            self._count_job(job, 1)
            if job.state in jobs.LIVE:
                self._charge_queues(job, 1)

    def take_touched(self) -> Touched:
        """What changed since the last call; only with track=True."""
        assert self._touched is not None, "Cluster(track=True) is needed to take what was touched"
        taken, self._touched = self._touched, Touched()
        return taken

    # --- reading

    def attempt(self, job: JobId) -> Attempt | None:
        """The current or last attempt of a job."""
        tried = self.attempts.get(job)
        return tried[-1] if tried else None

    def find_attempt(self, job: JobId, number: int) -> Attempt | None:
        """The attempt of that number, if it is still kept."""
        for candidate in reversed(self.attempts.get(job, ())):
            if candidate.number == number:
                return candidate
        return None

    def job_at(self, number: int) -> Job | None:
        """The job of a small integer alias, while it is in hot state."""
        job = self.job_numbers.get(number)
        return self.jobs[job] if job is not None else None

    def queue_line(self, queue: QueueId) -> list[Queue]:
        """The queue and those above it, nearest first."""
        line: list[Queue] = []
        name: str = queue
        while name:
            found = self.queues.get(QueueId(name))
            assert found is not None, f"queue {queue}: its line is broken at {name!r}"
            line.append(found)
            name = found.parent
        return line

    # --- the cell

    def _term_opened(self, fact: TermOpened, _by: str, at_ms: int) -> None:
        if fact.fold_version > FOLD_VERSION:
            raise IllegalTransition(
                f"fold version {FOLD_VERSION}", f"older than the log's {fact.fold_version}", fact
            )
        self.leader, self.term_opened_at_ms = fact.leader, at_ms

    def _policy_applied(self, fact: PolicyApplied, _by: str, _at_ms: int) -> None:
        self.policy = fact

    def _input_parked(self, _fact: InputParked, _by: str, _at_ms: int) -> None:
        self.parked += 1

    def _input_gap_accepted(self, fact: InputGapAccepted, _by: str, _at_ms: int) -> None:
        self.positions[(fact.topic, fact.partition)] = fact.to_offset

    def _breaker_opened(self, fact: BreakerOpened, _by: str, _at_ms: int) -> None:
        self.incident = fact

    def _breaker_closed(self, _fact: BreakerClosed, _by: str, _at_ms: int) -> None:
        self.incident = None

    def _request_accepted(self, fact: RequestAccepted, _by: str, at_ms: int) -> None:
        self._answer(fact.request, Answer(fact.digest, fact.kind, fact.target, "", "", "", at_ms))

    def _request_refused(self, fact: RequestRefused, _by: str, at_ms: int) -> None:
        answer = Answer(
            fact.digest, fact.kind, fact.target, fact.code, fact.field, fact.message, at_ms
        )
        self._answer(fact.request, answer)

    def _answer(self, request: str, answer: Answer) -> None:
        if request in self.answers:
            self.answers.move_to_end(request)  # The oldest stay first.
        self.answers[request] = answer

    def _forget_answers(self, before_ms: int) -> None:
        answers = self.answers
        while answers:
            oldest = answers[next(iter(answers))]
            if oldest.at_ms >= before_ms and len(answers) <= ANSWERS_KEPT:
                return
            answers.popitem(last=False)

    # --- queues

    def _queue_applied(self, fact: QueueApplied, _by: str, _at_ms: int) -> None:
        before = self.queues.get(fact.queue)
        assert before is None or before.parent == fact.parent, (
            f"queue {fact.queue} cannot change its parent"
        )
        assert not fact.parent or fact.parent in self.queues, (
            f"queue {fact.queue}: no parent {fact.parent}"
        )
        self.queues[fact.queue] = queues.apply(fact)
        if before is None:
            self._open_queue(fact.queue)
        if self._touched:
            self._touched.queues[fact.queue] = None

    def _open_queue(self, name: QueueId) -> None:
        """A queue counts in its own usage and in that of those above it, which never change."""
        usage, parent = QueueUsage(), self.queues[name].parent
        self.queue_usage[name] = usage
        self._lines[name] = (usage, *self._lines[QueueId(parent)]) if parent else (usage,)

    def _queue_removed(self, fact: QueueRemoved, _by: str, _at_ms: int) -> None:
        assert self.queue_usage[fact.queue].jobs == 0, f"queue {fact.queue} still has jobs"
        below = [each.id for each in self.queues.values() if each.parent == fact.queue]
        assert not below, f"queue {fact.queue} still has queues below it: {below}"
        del self.queues[fact.queue], self.queue_usage[fact.queue], self._lines[fact.queue]
        if self._touched:
            self._touched.queues[fact.queue] = None

    # --- jobs

    def _job_admitted(self, fact: JobAdmitted, by: str, at_ms: int) -> None:
        assert fact.number == self.next_number, (
            f"job {fact.job}: number {fact.number}, not {self.next_number}"
        )
        names = _names(fact)
        for i, name in enumerate(names):
            assert name not in self.jobs, f"job {name} exists already"
            job = jobs.admit(fact, job=name, number=fact.number + i, by=by, at_ms=at_ms)
            self.jobs[name] = job
            self.job_numbers[job.number] = name
            self._count_job(job, 1)
            if self._touched:
                self._touched.jobs[name] = None
        self.next_number += len(names)
        self._answer(fact.request, Answer(fact.digest, "SubmitJob", fact.job, "", "", "", at_ms))

    def _job_fact(self, fact: Any, _by: str, at_ms: int) -> None:
        self._advance_job(fact, at_ms)

    def _job_retired(self, fact: JobRetired, _by: str, _at_ms: int) -> None:
        job = self.jobs[fact.job]
        if job.state not in jobs.ENDED:
            raise IllegalTransition(f"job {job.id}", job.state, fact)
        for tried in self.attempts.pop(job.id, ()):
            self._forget_runs(tried)
        self.checkpoints.pop(job.id, None)
        self._count_job(job, -1)
        del self.jobs[job.id], self.job_numbers[job.number]
        if self._touched:
            self._touched.jobs[job.id] = None

    def _advance_job(self, fact: Any, at_ms: int) -> Job:
        before = self.jobs[fact.job]
        job = jobs.advance(before, fact, at_ms)
        self._swap_job(before, job)
        return job

    def _swap_job(self, before: Job, job: Job) -> None:
        self.jobs[job.id] = job
        was, now = before.state, job.state
        if was is not now:
            for usage in self._lines[job.spec.queue]:
                usage.states[was] -= 1
                usage.states[now] += 1
        if self._touched:
            self._touched.jobs[job.id] = None

    def _count_job(self, job: Job, by: int) -> None:
        for usage in self._lines[job.spec.queue]:
            usage.states[job.state] += by

    # --- attempts

    def _gang_placed(self, fact: GangPlaced, _by: str, at_ms: int) -> None:
        job = self._advance_job(fact, at_ms)
        self._charge_queues(job, 1)
        tried = self.attempts.get(fact.job, ())
        if len(tried) >= ATTEMPTS_KEPT:
            oldest = tried[0]
            if oldest.open == 0:
                self._forget_runs(oldest)
                tried = tried[1:]
        self.attempts[fact.job] = (*tried, attempts.place(fact, at_ms))
        for placement in fact.placements:
            run = runs.place(fact, placement, at_ms)
            assert run.id not in self.runs, f"run {run.id} exists already"
            self.runs[run.id] = run
            self.usage[run.node].take(run)
            if self._touched:
                self._touched.nodes[run.node] = None

    def _attempt_started(self, fact: AttemptStarted, _by: str, at_ms: int) -> None:
        self._advance_job(fact, at_ms)
        self._swap_attempt(attempts.advance(self._current(fact.job, fact.attempt), fact, at_ms))

    def _attempt_stopping(self, fact: AttemptStopping, _by: str, at_ms: int) -> None:
        self._advance_job(fact, at_ms)
        attempt = attempts.advance(self._current(fact.job, fact.attempt), fact, at_ms)
        self._swap_attempt(attempt)
        self._touch_nodes(attempt)

    def _attempt_ended(self, fact: AttemptEnded, _by: str, at_ms: int) -> None:
        job = self._advance_job(fact, at_ms)
        attempt = attempts.advance(self._current(fact.job, fact.attempt), fact, at_ms)
        assert attempt.open == 0 or job.spec.overlap_safe, (
            f"{job.id}: runs left and not overlap-safe"
        )
        self._swap_attempt(attempt)
        self._charge_queues(job, -1)
        if attempt.open:
            self._touch_nodes(attempt)

    def _attempt_fact(self, fact: Any, _by: str, at_ms: int) -> None:
        attempt = attempts.advance(self._current(fact.job, fact.attempt), fact, at_ms)
        self._swap_attempt(attempt)
        self._touch_nodes(attempt)
        if self._touched:
            self._touched.jobs[fact.job] = None

    def _current(self, job: JobId, number: int) -> Attempt:
        attempt = self.attempts[job][-1]
        assert attempt.number == number, f"job {job} is at attempt {attempt.number}, not {number}"
        return attempt

    def _swap_attempt(self, attempt: Attempt) -> None:
        job = attempt.job
        tried = self.attempts[job]
        if len(tried) == 1:
            self.attempts[job] = (attempt,)
            return
        self.attempts[job] = tuple(
            [attempt if other.number == attempt.number else other for other in tried]
        )

    def _charge_queues(self, job: Job, sign: int) -> None:
        spec = job.spec
        devices, cpu_milli = spec.demand()
        for usage in self._lines[spec.queue]:
            usage.devices += sign * devices
            usage.cpu_milli += sign * cpu_milli

    def _forget_runs(self, attempt: Attempt) -> None:
        assert attempt.open == 0, f"attempt {attempt.number} of job {attempt.job} has open runs"
        for run in attempt.runs:
            del self.runs[run]

    def _touch_nodes(self, attempt: Attempt) -> None:
        if self._touched:
            for run in attempt.runs:
                self._touched.nodes[self.runs[run].node] = None

    # --- runs

    def _run_started(self, fact: RunStarted, _by: str, at_ms: int) -> None:
        run = runs.advance(self.runs[fact.run], fact, at_ms)
        self.runs[run.id] = run
        self._swap_attempt(attempts.advance(self._of(run), fact, at_ms))
        if self._touched:
            self._touch_run(self._touched, run)

    def _run_ended(self, fact: RunEnded, _by: str, at_ms: int) -> None:
        before = self.runs[fact.run]
        run = runs.advance(before, fact, at_ms)
        self.runs[run.id] = run
        self.usage[run.node].give_back(run)
        attempt = attempts.advance(
            self._of(run), fact, at_ms, lost=1 if before.state is RunState.LOST else 0
        )
        self._swap_attempt(attempt)
        if self._touched:
            self._touch_run(self._touched, run)

    def _of(self, run: Run) -> Attempt:
        newest = self.attempts[run.job][-1]
        if newest.number == run.attempt:
            return newest
        attempt = self.find_attempt(run.job, run.attempt)
        assert attempt is not None, f"run {run.id}: its attempt is gone"
        return attempt

    @staticmethod
    def _touch_run(touched: Touched, run: Run) -> None:
        touched.jobs[run.job] = None
        touched.nodes[run.node] = None

    # --- checkpoints

    def _checkpoint_started(self, fact: CheckpointStarted, _by: str, at_ms: int) -> None:
        self._current(fact.job, fact.attempt)
        before = self.find_checkpoint(fact.job, fact.step)
        self._keep_checkpoint(
            checkpoints.begin(fact, at_ms)
            if before is None
            else checkpoints.advance(before, fact, at_ms)
        )

    def _checkpoint_saved(self, fact: CheckpointSaved, _by: str, at_ms: int) -> None:
        self._current(fact.job, fact.attempt)
        before = self.find_checkpoint(fact.job, fact.step)
        self._keep_checkpoint(
            checkpoints.saved(fact, started_at_ms=at_ms, at_ms=at_ms)
            if before is None
            else checkpoints.advance(before, fact, at_ms)
        )
        self._advance_job(fact, at_ms)

    def _checkpoint_fact(self, fact: Any, _by: str, at_ms: int) -> None:
        before = self.find_checkpoint(fact.job, fact.step)
        assert before is not None, f"job {fact.job} has no checkpoint of step {fact.step}"
        self._keep_checkpoint(checkpoints.advance(before, fact, at_ms))
        job, durable = self.jobs[fact.job], self.newest_durable(fact.job)
        step = durable.step if durable else -1
        if step != job.durable_step:
            self._swap_job(job, jobs.restart_from(job, step))
        elif self._touched:
            self._touched.jobs[fact.job] = None

    def find_checkpoint(self, job: JobId, step: int) -> Checkpoint | None:
        """The checkpoint of a job at a step, in whatever state."""
        for checkpoint in self.checkpoints.get(job, ()):
            if checkpoint.step == step:
                return checkpoint
        return None

    def newest_durable(self, job: JobId) -> Checkpoint | None:
        """The newest checkpoint that may be loaded."""
        for checkpoint in reversed(self.checkpoints.get(job, ())):
            if checkpoint.state is CheckpointState.DURABLE:
                return checkpoint
        return None

    def _keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        others = self.checkpoints.get(checkpoint.job, ())
        self.checkpoints[checkpoint.job] = checkpoints.keep(others, checkpoint)
        if self._touched:
            self._touched.jobs[checkpoint.job] = None

    # --- nodes

    def _node_joined(self, fact: NodeJoined, _by: str, at_ms: int) -> None:
        before = self.nodes.get(fact.node)
        if before is None:
            self.usage[fact.node] = NodeUsage()
        self._swap_node(
            nodes.join(fact, at_ms) if before is None else nodes.advance(before, fact, at_ms)
        )

    def _node_fact(self, fact: Any, _by: str, at_ms: int) -> None:
        self._swap_node(nodes.advance(self.nodes[fact.node], fact, at_ms))

    def _node_lost(self, fact: NodeLost, _by: str, at_ms: int) -> None:
        self._swap_node(nodes.advance(self.nodes[fact.node], fact, at_ms))
        newly: dict[tuple[JobId, int], int] = {}
        for name in self.usage[fact.node].runs:
            before = self.runs[name]
            self.runs[name] = runs.advance(before, fact, at_ms)
            if before.state is not RunState.LOST:
                newly[(before.job, before.attempt)] = newly.get((before.job, before.attempt), 0) + 1
        for (job, number), lost in newly.items():
            attempt = self.find_attempt(job, number)
            assert attempt is not None, f"attempt {number} of job {job} is gone"
            self._swap_attempt(attempts.advance(attempt, fact, at_ms, lost=lost))
            if self._touched:
                self._touched.jobs[job] = None

    def _node_removed(self, fact: NodeRemoved, _by: str, _at_ms: int) -> None:
        assert not self.usage[fact.node].runs, f"node {fact.node} still holds runs"
        del self.nodes[fact.node], self.usage[fact.node]
        if self._touched:
            self._touched.nodes[fact.node] = None

    def _device_fact(self, fact: DeviceFact, _by: str, _at_ms: int) -> None:
        node = self.nodes[fact.node]
        places = {device.spec.index: at for at, device in enumerate(node.devices)}
        at = places[fact.index]
        changed = devices.advance(node.devices[at], fact)
        self._swap_node(replace(node, devices=_put(node.devices, at, changed)))

    def _nic_fact(self, fact: NicFact, _by: str, _at_ms: int) -> None:
        node = self.nodes[fact.node]
        places = {nic.spec.name: at for at, nic in enumerate(node.nics)}
        at = places[fact.nic]
        changed = nics.advance(node.nics[at], fact)
        self._swap_node(replace(node, nics=_put(node.nics, at, changed)))

    def _swap_node(self, node: Node) -> None:
        self.nodes[node.id] = node
        if self._touched:
            self._touched.nodes[node.id] = None


def _unknown(fact: Fact, error: LookupError) -> IllegalTransition:
    return IllegalTransition(f"{error}", "nothing that this cell knows", fact)


def _put(values: tuple[V, ...], at: int, value: V) -> tuple[V, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _names(fact: JobAdmitted) -> list[JobId]:
    """The jobs that an admission makes, in order."""
    return [JobId(f"{fact.job}_{i}") for i in range(fact.count)] if fact.count else [fact.job]


_HANDLERS: Final[dict[type, Callable[[Cluster, Any, str, int], None]]] = {
    TermOpened: Cluster._term_opened,
    PolicyApplied: Cluster._policy_applied,
    InputParked: Cluster._input_parked,
    InputGapAccepted: Cluster._input_gap_accepted,
    BreakerOpened: Cluster._breaker_opened,
    BreakerClosed: Cluster._breaker_closed,
    RequestAccepted: Cluster._request_accepted,
    RequestRefused: Cluster._request_refused,
    QueueApplied: Cluster._queue_applied,
    QueueRemoved: Cluster._queue_removed,
    JobAdmitted: Cluster._job_admitted,
    JobWaiting: Cluster._job_fact,
    JobHeld: Cluster._job_fact,
    JobReleased: Cluster._job_fact,
    JobRequeued: Cluster._job_fact,
    JobCancelled: Cluster._job_fact,
    JobRetired: Cluster._job_retired,
    GangPlaced: Cluster._gang_placed,
    AttemptStarted: Cluster._attempt_started,
    AttemptStopping: Cluster._attempt_stopping,
    AttemptEnded: Cluster._attempt_ended,
    SaveAsked: Cluster._attempt_fact,
    SaveAcknowledged: Cluster._attempt_fact,
    TrainingFinished: Cluster._attempt_fact,
    AttemptResumed: Cluster._attempt_fact,
    ResumeMismatched: Cluster._attempt_fact,
    RunStarted: Cluster._run_started,
    RunEnded: Cluster._run_ended,
    CheckpointStarted: Cluster._checkpoint_started,
    CheckpointSaved: Cluster._checkpoint_saved,
    CheckpointFailed: Cluster._checkpoint_fact,
    CheckpointReleased: Cluster._checkpoint_fact,
    CheckpointRemoved: Cluster._checkpoint_fact,
    CheckpointCondemned: Cluster._checkpoint_fact,
    NodeJoined: Cluster._node_joined,
    NodeSuspected: Cluster._node_fact,
    NodeRecovered: Cluster._node_fact,
    NodeLost: Cluster._node_lost,
    NodeCordoned: Cluster._node_fact,
    NodeUncordoned: Cluster._node_fact,
    NodeDrainStarted: Cluster._node_fact,
    NodeDrained: Cluster._node_fact,
    NodeRemoved: Cluster._node_removed,
    DeviceDegraded: Cluster._device_fact,
    DeviceFaulted: Cluster._device_fact,
    DeviceRecovered: Cluster._device_fact,
    NicDegraded: Cluster._nic_fact,
    NicFaulted: Cluster._nic_fact,
    NicRecovered: Cluster._nic_fact,
}
