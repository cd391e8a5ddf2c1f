"""A cell with a leader for tests of the pure core: inputs as bytes in, whole facts out.

Every entry that the leader seals is folded by a second reader through the watcher; each step asserts that no invariant
is broken and that both have the same state digest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from google.protobuf.message import Message

from services.runtime import codec, ids
from services.runtime.ports import InputRecord, LogRecord
from services.scheduler.core import LeaderCore, Step
from services.scheduler.opening import opening
from statemachines import facts, invariants, snapshot
from statemachines.attempt import Attempt
from statemachines.cluster import Cluster
from statemachines.entry import Recorded
from statemachines.job import Job
from statemachines.policy import DEFAULT_POLICY, Policy
from statemachines.values import Evidence, JobId, JobSpec, NodeId, QueueId, Resources, Role, RunId
from statemachines.watcher import Watcher
from tidemill.v1 import common_pb2, reports_pb2, requests_pb2, verdicts_pb2

CELL = "test"
ALICE = "user:alice"
A, B = JobId("a"), JobId("b")
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
# A policy of round numbers, and one attempt more than the default before the brake.
POLICY = msgspec.structs.replace(
    DEFAULT_POLICY,
    retire_after_ms=3_600_000,
    fence_after_ms=60_000,
    fence_margin_ms=10_000,
    grace_ms=5_000,
    save_wait_ms=20_000,
    start_timeout_ms=30_000,
    max_attempts_without_progress=3,
    backoff_ms=1_000,
    keep_checkpoints=2,
)


def spec(
    *,
    name: str = "train",
    queue: str = "default",
    members: int = 1,
    devices: int = 1,
    **rest: object,
) -> JobSpec:
    """A job of `members` equal members."""
    role = Role("worker", members, Resources(1000, 1024, devices))
    return JobSpec(name, QueueId(queue), 0, (role,), **rest)  # type: ignore[arg-type]


def apply(
    queue: str,
    parent: str = "",
    *,
    device_limit: int = -1,
    cpu_milli_limit: int = -1,
    job_limit: int = -1,
) -> requests_pb2.ApplyQueue:
    """An ApplyQueue; no limit where none is given."""
    return requests_pb2.ApplyQueue(
        queue=queue, parent=parent, device_limit=device_limit, cpu_milli_limit=cpu_milli_limit, job_limit=job_limit
    )  # fmt: skip


class Cell:
    """One leader, one log, one follower. Facts of a step come back without who asked; `recorded` keeps them whole."""

    def __init__(self, *, policy: Policy = POLICY) -> None:
        self.now_ms = 1_000_000
        self.log: list[LogRecord] = []
        self.reader = Cluster(CELL)
        self.watcher = Watcher()
        self.recorded: list[Recorded] = []
        self.steps: list[Step] = []
        self.policy = policy
        self._inputs: list[InputRecord] = []
        self._ends: dict[tuple[str, int], int] = {}
        self._requests = 0
        self._terms = 0
        self.broken: list[str] = []
        self._ignored: tuple[str, ...] = ()
        self.take_over()

    # --- leading

    def take_over(self) -> None:
        """A new leader folds the log from a snapshot of the reader and opens its term."""
        self._terms += 1
        cluster = snapshot.decode(
            snapshot.encode(self.reader), offset=self.reader.offset, track=True
        )
        sealed = opening(
            cluster,
            term=self._terms,
            leader=f"leader-{self._terms}",
            nonce=f"nonce-{self._terms}",
            policy=self.policy,
            now_ms=self.now_ms,
        )
        record = self.append(sealed.value)
        assert cluster.fold(codec.decode_entry(record.offset, record.value))
        self.cluster = cluster
        self.core = LeaderCore(cluster)

    def step(self, *, after_ms: int = 0) -> list[facts.Fact]:
        """One step over all that was sent, `after_ms` later; its facts."""
        self.now_ms += after_ms
        inputs, self._inputs = self._inputs, []
        step = self.core.step(inputs, self.now_ms)
        if step is None:
            return []
        self.steps.append(step)
        now: list[Recorded] = []
        for sealed in step.sealed:
            record = self.append(sealed.value)
            entry = self.core.confirm(record)
            assert entry is not None
            now += entry.facts
        self.recorded += now
        self.check()
        return [each.fact for each in now]

    def run(self, *, after_ms: int = 0) -> list[facts.Fact]:
        """Decide what was sent, let time pass, and step until nothing more is to be done; their facts."""
        done = self.step()
        done += self.step(after_ms=after_ms)
        while (due := self.core.next_due_ms(self.now_ms)) is not None and due <= self.now_ms:
            more = self.step()
            if not more:
                break
            done += more
        return done

    def check(self) -> None:
        """Both readers agree, and no invariant is broken."""
        broken = [line for line in self.broken if not line.startswith(self._ignored or "-")]
        assert not broken, broken
        assert invariants.violations(self.cluster) == []
        assert snapshot.encode(self.cluster) == snapshot.encode(self.reader)

    def watcher_ignores(self, *letters: str) -> None:
        """Invariants that are another's to keep."""
        self._ignored = letters

    def append(self, value: bytes) -> LogRecord:
        """A record of the log, which the reader folds."""
        record = LogRecord(len(self.log), value)
        self.log.append(record)
        self.broken += self.watcher.fold(self.reader, codec.decode_entry(record.offset, value))
        return record

    # --- inputs

    def raw(self, topic: str, value: bytes, *, partition: int = 0) -> None:
        """Any bytes on a topic that the leader reads."""
        offset = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = offset + 1
        self._inputs.append(InputRecord(topic, partition, offset, b"", value))

    def take_inputs(self) -> list[InputRecord]:
        """What was sent and not yet decided, taken away."""
        inputs, self._inputs = self._inputs, []
        return inputs

    def give(self, inputs: Sequence[InputRecord]) -> None:
        """What the next step decides."""
        self._inputs += inputs

    def ask(self, kind: Message, *, by: str = ALICE, key: str = "") -> str:
        """A request; answers its key."""
        self._requests += 1
        key = key or f"{by}/{self._requests}"
        request = requests_pb2.Request(
            request=key, principal=common_pb2.Principal(name=by, method="token")
        )
        _set(request, kind)
        self.raw("requests", request.SerializeToString())
        return key

    def submit(
        self,
        job: str,
        wanted: JobSpec | None = None,
        *,
        count: int = 0,
        by: str = ALICE,
        key: str = "",
    ) -> str:
        """A SubmitJob; answers the request's key."""
        message = common_pb2.JobSpec(**codec.encode_value(wanted or spec()))
        return self.ask(requests_pb2.SubmitJob(job=job, spec=message, count=count), by=by, key=key)

    def report(self, kind: Message, *, node: str = "", incarnation: int = 1, by: str = "") -> None:
        """A report of an agent (with `node`) or of a trainer."""
        report = reports_pb2.Report(
            principal=common_pb2.Principal(name=by or (f"node:{node}" if node else "job:any")),
            node=node,
            incarnation=incarnation,
        )
        _set(report, kind)
        self.raw("reports", report.SerializeToString())

    def verdict(self, kind: Message) -> None:
        """A verdict of the health processor."""
        verdict = verdicts_pb2.Verdict(judge="health:test")
        _set(verdict, kind)
        self.raw("verdicts", verdict.SerializeToString())

    # --- common reports

    def attach(
        self,
        node: str,
        *,
        devices: int = 8,
        cpu_milli: int = 64_000,
        incarnation: int = 1,
        boot: str = "boot-1",
        nics: Sequence[str] = (),
        unlinked: Sequence[str] = (),
    ) -> None:
        """An agent attaches."""
        inventory = common_pb2.Inventory(
            address="127.0.0.1",
            cpu_milli=cpu_milli,
            memory_mib=65_536,
            devices=[
                common_pb2.Device(index=i, model="H100", uuid=f"{node}-{i}") for i in range(devices)
            ],
            nics=[common_pb2.Nic(name=name, up=name not in unlinked) for name in nics],
            boot_id=boot,
        )
        kind = reports_pb2.NodeAttached(inventory=inventory)
        self.report(kind, node=node, incarnation=incarnation)

    def began(self, run: str, *, incarnation: int = 1) -> None:
        """The agent of a run's node says that it began."""
        self.report(reports_pb2.RunBegan(run=run), node=self.node_of(run), incarnation=incarnation)

    def ended(
        self,
        run: str,
        exit_code: int = 0,
        *,
        signal: int = 0,
        evidence: Evidence = Evidence.EXIT_STATUS,
        message: str = "",
        incarnation: int = 1,
    ) -> None:
        """The agent of a run's node says that it ended."""
        word = common_pb2.Evidence.Value(f"EVIDENCE_{evidence.upper()}")
        kind = reports_pb2.RunFinished(
            run=run, exit_code=exit_code, signal=signal, evidence=word, message=message
        )
        self.report(kind, node=self.node_of(run), incarnation=incarnation)

    def saved(
        self,
        job: str,
        step: int,
        *,
        attempt: int = 1,
        reach: str = "CELL",
        node: str = "",
        by_marker: bool = False,
    ) -> None:
        """A trainer says that a checkpoint is durable."""
        self.report(
            reports_pb2.Saved(
                job=job, attempt=attempt, step=step, uri=uri(job, attempt, step), bytes=100,
                tier=common_pb2.TIER_REMOTE, reach=common_pb2.Reach.Value(f"REACH_{reach}"),
                manifest=f"m{step}", node=node, by_marker=by_marker,
            )
        )  # fmt: skip

    def gone(self, node: str, *, incarnation: int = 1) -> None:
        """The health processor gives a node up."""
        self.verdict(
            verdicts_pb2.NodeGone(node=node, incarnation=incarnation, message="silent for 15 s")
        )

    # --- common histories

    def node_of(self, run: str) -> str:
        """Where a run is."""
        known = self.cluster.runs.get(RunId(run))
        return known.node if known else "nowhere"

    def nodes(self, *names: str, devices: int = 8) -> None:
        """Nodes that have joined."""
        for name in names:
            self.attach(name, devices=devices)
        self.step()

    def placed(self, job: str, wanted: JobSpec | None = None) -> None:
        """A job that has been placed."""
        self.submit(job, wanted)
        self.step()
        assert self.job(job).attempt == 1, self.job(job).reason

    def running(self, job: str, wanted: JobSpec | None = None) -> None:
        """A job that runs."""
        self.placed(job, wanted)
        self.start(job)

    def start(self, job: str) -> list[facts.Fact]:
        """Every run of the present attempt begins."""
        for run in self.attempt(job).runs:
            self.began(run)
        return self.step()

    def state(self, job: str) -> str:
        """Where a job is."""
        return str(self.job(job).state)

    def job(self, job: str) -> Job:
        """A job as it is now."""
        return self.cluster.jobs[JobId(job)]

    def attempt(self, job: str) -> Attempt:
        """The present or last attempt of a job."""
        attempt = self.cluster.attempt(JobId(job))
        assert attempt is not None, f"job {job} has no attempt"
        return attempt

    def answer(self, key: str) -> str:
        """What a request was answered: "" when it was granted, else the code."""
        return self.cluster.answers[key].code

    def weather(self) -> dict[str, int]:
        """The inputs of the last step that changed nothing."""
        return dict(self.steps[-1].weather)


def uri(job: str, attempt: int, step: int) -> str:
    """Where the trainer of these tests saves."""
    return f"file:///ck/{job}/a{attempt}/{step}"


def digest(kind: Message) -> bytes:
    """A request's digest, as its answer carries it."""
    return ids.request_digest(kind)


def _set(envelope: Message, kind: Message) -> None:
    field = next(
        field.name
        for field in envelope.DESCRIPTOR.oneofs_by_name["kind"].fields
        if field.message_type is kind.DESCRIPTOR
    )
    getattr(envelope, field).CopyFrom(kind)
    getattr(envelope, field).SetInParent()
