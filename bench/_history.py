"""A made history of a busy cell: legal facts in a leader's order, and the log that holds them.

Shared by benchmarks that need a log to read. Deterministic; it never decides, so placements are the simplest that fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from services.runtime import chain, codec, ids
from services.runtime.ports import EventLog
from statemachines.cluster import FOLD_VERSION, Cluster
from statemachines.entry import GENESIS, Position, Recorded
from statemachines.facts import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    CheckpointStarted,
    Fact,
    GangPlaced,
    JobAdmitted,
    JobRetired,
    JobWaiting,
    NodeJoined,
    QueueApplied,
    RunEnded,
    RunStarted,
    TermOpened,
)
from statemachines.job import JobState
from statemachines.values import (
    Cause,
    DeviceSpec,
    Evidence,
    Grant,
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
    Resources,
    ResumePoint,
    Role,
    Tier,
)

CELL: Final = "bench"
DEVICES: Final = 8
# Facts in an entry of a leader that is busy.
FACTS_PER_ENTRY: Final = 500
_QUEUE: Final = QueueId("default")


def opening(nodes: int) -> Iterator[Fact]:
    """A term, a queue and the nodes."""
    yield TermOpened(1, "bench", "nonce", FOLD_VERSION)
    yield QueueApplied(_QUEUE, "", -1, -1, -1)
    for node in range(nodes):
        devices = tuple(DeviceSpec(i, "H100", f"GPU-{node}-{i}", 81_559) for i in range(DEVICES))
        yield NodeJoined(_node(node), 1, Inventory(f"10.0.0.{node}", 128_000, 1_024_000, devices))


def spec(number: int, *, gang: bool) -> JobSpec:
    """One of a few dozen shapes: one device of a node, or a gang on two whole nodes."""
    role = Role(
        "worker", 2 if gang else 1, Resources(4_000, 16_384, DEVICES if gang else 1, ("H100",))
    )
    launch = hashlib.sha256(b"%d" % (number % 40)).hexdigest()
    labels = (("project", f"p{number % 8}"), ("team", "research"))
    return JobSpec(
        f"train-{number % 40}", _QUEUE, number % 5, (role,), launch=launch, labels=labels
    )


def admitted(number: int, *, gang: bool) -> JobAdmitted:
    """The submission of a job."""
    request = ids.request_key(client="user:bench", request=f"{number:08d}")
    job = ids.job_id(principal="user:bench", request=request)
    return JobAdmitted(
        job, number, 0, spec(number, gang=gang), request, hashlib.sha256(request.encode()).digest()
    )


def life(first_number: int, nodes: int) -> Iterator[Fact]:
    """A wave of jobs from submission until they leave hot state; every tenth trains on two whole nodes."""
    numbers = range(first_number, first_number + nodes // 2)
    jobs = [admitted(number, gang=number % 10 == 0) for number in numbers]
    yield from jobs
    yield from (JobWaiting(job.job, Reason("no_room", "waits for 1 device")) for job in jobs[::3])
    placed = [_placed(job, 2 * i) for i, job in enumerate(jobs)]
    yield from placed
    for gang in placed:
        yield from (RunStarted(placement.run) for placement in gang.placements)
        yield AttemptStarted(gang.job, 1)
    for step in (100, 200):
        for gang in placed[::2]:
            yield CheckpointStarted(gang.job, 1, step)
            yield _saved(gang.job, step)
    for gang in placed:
        for placement in gang.placements:
            yield RunEnded(placement.run, 0, 0, Evidence.EXIT_STATUS, "")
        yield AttemptEnded(
            gang.job, 1, Outcome.SUCCEEDED, Cause.PROGRAM_EXITED, "", JobNext.SUCCEEDED, 0
        )
    yield from (JobRetired(job.job) for job in jobs)


def live(jobs: int, nodes: int) -> Iterator[Fact]:
    """Jobs that are all there at once: one-device jobs fill every device of the nodes, the others wait."""
    for number in range(1, jobs + 1):
        job = admitted(number, gang=False)
        yield job
        if number > nodes * DEVICES:
            yield JobWaiting(job.job, Reason("no_room", "waits for 1 device"))
            continue
        node, device = divmod(number - 1, DEVICES)
        placed = _placed(job, node, device)
        yield placed
        yield RunStarted(placed.placements[0].run)
        yield AttemptStarted(job.job, 1)
        if number % 2:
            yield _saved(job.job, 100)


def waits(cluster: Cluster, count: int) -> Iterator[Fact]:
    """Reasons of those who wait, told again and again."""
    waiting = [job.id for job in cluster.jobs.values() if job.state is JobState.QUEUED]
    for i in range(count):
        yield JobWaiting(
            waiting[i % len(waiting)], Reason("no_room", f"waits for {1 + i % 9} devices")
        )


class Recorder:
    """Appends facts to a log as a leader's entries."""

    def __init__(
        self,
        log: EventLog,
        *,
        began_at_ms: int = 1_700_000_000_000,
        head: bytes = GENESIS,
        term: int = 1,
        cell: str = CELL,
        consumes: bool = True,
    ) -> None:
        """`consumes`: entries name inputs that they came of; a cell that goes on from here has none such."""
        self.facts = 0
        self.log_bytes = 0
        self.entries = 0
        self._log = log
        self._head, self._term, self._cell = head, term, cell
        self._consumes = consumes
        self._at_ms = began_at_ms
        self._waiting: list[Recorded] = []

    def add(self, fact: Fact) -> None:
        """Record it, in the entry that is filling."""
        asked = isinstance(fact, JobAdmitted)
        number = len(self._waiting) + 1 if self._consumes else 0
        self._waiting.append(Recorded(fact, "user:bench" if asked else "", number))
        if len(self._waiting) == FACTS_PER_ENTRY:
            self.flush()

    def flush(self) -> None:
        """Append the entry that is filling."""
        if not self._waiting:
            return
        position = Position("requests", 0, self.facts, self.facts + len(self._waiting))
        consumed = (position,) if self._consumes else ()
        body = codec.encode_body(consumed, self._waiting)
        self._at_ms += 20
        stored = codec.encode_entry(
            cell=self._cell, term=self._term, prev=self._head, at_ms=self._at_ms, body=body
        )
        self._log.append(stored)
        self._head = chain.entry_digest(
            prev=self._head, cell=self._cell, term=self._term, at_ms=self._at_ms, body=body
        )
        self.facts += len(self._waiting)
        self.log_bytes += len(stored)
        self.entries += 1
        self._waiting = []


def _node(number: int) -> NodeId:
    return NodeId(f"node-{number:05d}")


def _placed(job: JobAdmitted, first_node: int, first_device: int = 0) -> GangPlaced:
    (role,) = job.spec.roles
    grants = tuple(Grant(first_device + i, 1_000) for i in range(role.resources.devices))
    placements = tuple(
        Placement(
            ids.run_id(job.job, 1, rank), _node(first_node + rank), rank, role.name, grants,
            role.resources.cpu_milli, role.resources.memory_mib,
        )
        for rank in range(role.count)
    )  # fmt: skip
    why = Reason("placed", "tightest node first")
    return GangPlaced(job.job, 1, placements, ResumePoint(), 20_000 + job.number % 10_000, why)


def _saved(job: JobId, step: int) -> CheckpointSaved:
    uri = f"file:///checkpoints/{job}/a1/step-{step}"
    manifest = hashlib.sha256(uri.encode()).hexdigest()
    return CheckpointSaved(
        job,
        1,
        step,
        uri,
        1 << 30,
        Tier.REMOTE,
        Reach.CELL,
        2_000,
        4_000,
        manifest,
        False,
        False,
        "",
    )
