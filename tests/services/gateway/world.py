"""A cell in memory for tests of the gateway's core: topics as lists, the real leader, any number of gateways.

Each arrow of the flow is a method (`store`, `decide`, `show`), so a test can stop between any two; `settle` takes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from google.protobuf.message import Message

from services.gateway.auth import TRAINER, Caller
from services.gateway.core import GatewayCore
from services.gateway.effects import Now, Outbox, Result, Write
from services.gateway.refusal import Refusal
from services.gateway.sessions import AttachStream
from services.runtime import codec
from services.runtime.ports import InputRecord, LogRecord, Outgoing, PortError
from services.scheduler.core import LeaderCore
from services.scheduler.opening import opening
from statemachines.cluster import Cluster
from statemachines.policy import DEFAULT_POLICY
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2, verdicts_pb2
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire

CELL = "test"
KEY = bytes(range(32))
INPUTS = ("requests", "reports", "verdicts")
ALICE = Caller("user:alice", "token", frozenset({"user"}))
BOB = Caller("user:bob", "token", frozenset({"user"}))
ROOT = Caller("user:root", "token", frozenset({"admin"}))
EYES = Caller("user:eyes", "token", frozenset({"viewer"}))
AGENT = Caller("service:agent", "node-token", frozenset({"node"}))


def trainer(job: str, attempt: int) -> Caller:
    """Who shows the token of that attempt."""
    return Caller(f"job:{job}", "job-token", frozenset({TRAINER}), attempt=(job, attempt))


def submission(
    request_id: str = "r1",
    *,
    members: int = 1,
    devices: int = 1,
    argv: Sequence[str] = ("train",),
    env: dict[str, str] | None = None,
    **rest: object,
) -> jobs.SubmitJobRequest:
    """A job of `members` equal members in the default queue; `rest` are fields of the spec or of the request."""
    resources = common_pb2.Resources(cpu_milli=1000, memory_mib=64, devices=devices)
    role = common_pb2.Role(name="worker", count=members, resources=resources)
    request = jobs.SubmitJobRequest(
        request_id=request_id,
        spec=common_pb2.JobSpec(name="train", queue="default", roles=[role]),
        launch=common_pb2.Launch(argv=argv, env=env or {}),
    )
    for field, value in rest.items():
        target = request if field in {"count", "durable_only"} else request.spec
        setattr(target, field, value)
    return request


def inventory(
    address: str = "10.0.0.1", *, devices: int = 4, boot: str = "boot-1"
) -> common_pb2.Inventory:
    """A node with devices that exist on paper."""
    return common_pb2.Inventory(
        address=address,
        cpu_milli=64_000,
        memory_mib=65_536,
        boot_id=boot,
        devices=[
            common_pb2.Device(index=index, model="H100", simulated=True) for index in range(devices)
        ],
    )


def began(run: str, sequence: int, node: str = "n1") -> reports_pb2.Report:
    """An agent's report that a run began."""
    return reports_pb2.Report(
        node=node, incarnation=1, sequence=sequence, run_began=reports_pb2.RunBegan(run=run)
    )


class World:
    """One cell. `answers` holds what each call was told; `failing` makes every write fail with it."""

    def __init__(self) -> None:
        self.now = Now(1_000_000, 5_000)
        self.stored: list[Outgoing] = []
        self.blobs: list[bytes] = []
        self.log: list[LogRecord] = []
        self.answers: dict[int, Result] = {}
        self.failing: PortError | None = None
        self.ready: list[Outbox] = []
        self._calls = count(1)
        self._taken = dict.fromkeys(INPUTS, 0)
        self._cluster = Cluster(CELL, track=True)
        sealed = opening(
            self._cluster, term=1, leader="leader", nonce="n", policy=DEFAULT_POLICY,
            now_ms=self.now.wall_ms,
        )  # fmt: skip
        self._append(sealed.value)
        self._cluster.fold(codec.decode_entry(0, sealed.value))
        self.leader = LeaderCore(self._cluster)
        self.gateways: list[GatewayCore] = []
        self.gateway = self.start_gateway()

    def start_gateway(self) -> GatewayCore:
        """One more, which has read the log to its end."""
        numbers = count(1)
        gateway = GatewayCore(
            Cluster(CELL, track=True),
            name=f"gateway-{len(self.gateways)}",
            cell_key=KEY,
            new_id=lambda: f"made-{next(numbers)}",
        )
        self.gateways.append(gateway)
        self._show(gateway)
        return gateway

    # --- the flow, arrow by arrow

    def store(self) -> list[Write]:
        """Gateways' writes reach their topics, or fail; what they lead to is asked for next time."""
        done: list[Write] = []
        for gateway in self.gateways:
            writes, gateway.effects.writes = gateway.effects.writes, []
            for write in writes:
                if self.failing is None:
                    self.blobs.extend(write.blobs)
                    self.stored.extend(write.records)
                gateway.effects.written(write.id, self.failing, self.now)
            done += writes
        self.collect()
        return done

    def decide(self, order: Sequence[str] = INPUTS) -> None:
        """The leader decides what is stored, topic by topic; its entries reach the log."""
        inputs: list[InputRecord] = []
        for topic in order:
            records = [record for record in self.stored if record.topic == topic]
            start, self._taken[topic] = self._taken[topic], len(records)
            inputs += [
                InputRecord(topic, 0, offset, record.key, record.value)
                for offset, record in enumerate(records)
                if offset >= start
            ]
        step = self.leader.step(inputs, self.now.wall_ms)
        for sealed in step.sealed if step is not None else ():
            self.leader.confirm(self._append(sealed.value))

    def show(self) -> None:
        """Every gateway reads the log to its end."""
        for gateway in self.gateways:
            self._show(gateway)

    def settle(self) -> None:
        """All of it, until nothing moves."""
        for _ in range(20):
            before = len(self.log)
            wrote = self.store()
            self.decide()
            self.show()
            if not wrote and len(self.log) == before:
                return
        raise AssertionError("the cell does not come to rest")

    def pass_ms(self, ms: int) -> None:
        """Time passes; gateways tick when they asked to."""
        self.now = Now(self.now.wall_ms + ms, self.now.mono_ms + ms)
        for gateway in self.gateways:
            due_ms = gateway.effects.due_ms()
            if due_ms is not None and due_ms <= self.now.mono_ms:
                gateway.effects.tick(self.now)
        self.collect()

    def collect(self) -> None:
        """Take answers that no write brings."""
        for gateway in self.gateways:
            writes = gateway.effects.writes
            gateway.effects.writes = []
            _, answers, ready = gateway.effects.take()
            gateway.effects.writes = writes
            self.answers.update(answers)
            self.ready.extend(ready)

    # --- callers

    def submit(
        self,
        request: jobs.SubmitJobRequest,
        who: Caller = ALICE,
        *,
        within_ms: int = 0,
        gateway: GatewayCore | None = None,
    ) -> int:
        """A call that has not been answered yet; a refusal at once is its answer."""
        call = next(self._calls)
        deadline_ms = self.now.mono_ms + within_ms if within_ms else 0
        try:
            (gateway or self.gateway).submit(call, who, request, self.now, deadline_ms=deadline_ms)
        except Refusal as refusal:
            self.answers[call] = refusal
        self.collect()
        return call

    def admitted(self, request_id: str = "r1", who: Caller = ALICE, **rest: object) -> str:
        """The id of a job that the leader has admitted."""
        call = self.submit(submission(request_id, **rest), who)  # type: ignore[arg-type]
        self.settle()
        return self.submitted(call).job

    def change(self, request: Message, who: Caller = ALICE, *, within_ms: int = 0) -> int:
        """A call that changes something."""
        call = next(self._calls)
        deadline_ms = self.now.mono_ms + within_ms if within_ms else 0
        try:
            self.gateway.change(call, who, request, self.now, deadline_ms=deadline_ms)  # type: ignore[arg-type]
        except Refusal as refusal:
            self.answers[call] = refusal
        self.collect()
        return call

    def submitted(self, call: int) -> jobs.SubmitJobResponse:
        """The answer to a submission that was not refused."""
        answer = self.answers[call]
        assert isinstance(answer, jobs.SubmitJobResponse), answer
        return answer

    def refusal(self, call: int) -> Refusal:
        """The answer to a call that was refused."""
        answer = self.answers[call]
        assert isinstance(answer, Refusal), answer
        return answer

    # --- agents

    def attach(
        self,
        *nodes: str,
        incarnation: int = 1,
        term: int = 0,
        offset: int = 0,
        gateway: GatewayCore | None = None,
        stream: AttachStream | None = None,
        boot: str = "boot-1",
    ) -> AttachStream:
        """A stream on which these nodes have attached."""
        gateway = gateway or self.gateway
        stream = stream or gateway.agents.open(AGENT)
        for node in nodes:
            attached = reports_pb2.NodeAttached(inventory=inventory(f"addr-{node}", boot=boot))
            attach = wire.AttachNode(
                node=node, incarnation=incarnation, attached=attached, term=term, offset=offset
            )
            gateway.agents.take(stream, wire.AttachRequest(attach=attach), self.now)
        return stream

    def say(
        self, stream: AttachStream, gateway: GatewayCore | None = None, **kind: Message
    ) -> None:
        """One message of an agent."""
        message = wire.AttachRequest(**kind)  # type: ignore[arg-type]
        (gateway or self.gateway).agents.take(stream, message, self.now)

    def finished(self, stream: AttachStream, node: str, run: str, *, sequence: int) -> None:
        """The agent reports that a run exited with 0."""
        ended = reports_pb2.RunFinished(run=run, evidence=common_pb2.EVIDENCE_EXIT_STATUS)
        report = reports_pb2.Report(node=node, incarnation=1, sequence=sequence, run_finished=ended)
        self.say(stream, report=report)

    def lose(self, node: str, incarnation: int = 1) -> None:
        """The health processor gives a node up."""
        gone = verdicts_pb2.NodeGone(node=node, incarnation=incarnation, silent_ms=15_000)
        suspect = verdicts_pb2.NodeSuspect(node=node, incarnation=incarnation, silent_ms=6_000)
        for verdict in (
            verdicts_pb2.Verdict(judge="health", node_suspect=suspect),
            verdicts_pb2.Verdict(judge="health", node_gone=gone),
        ):
            self.stored.append(Outgoing("verdicts", node.encode(), verdict.SerializeToString()))
        self.settle()

    def pulled(self, outbox: Outbox) -> list[Message]:
        """All that the stream has to send now."""
        messages = []
        while (message := outbox.pull(self.now)) is not None:
            messages.append(message)
        return messages

    def kinds(self, stream: AttachStream) -> list[str]:
        """What an agent is sent now, by kind."""
        return [str(message.WhichOneof("kind")) for message in self.pulled(stream)]

    def desired(self, stream: AttachStream) -> list[wire.DesiredSet]:
        """The desired sets among what an agent is sent now."""
        return [
            message.desired
            for message in self.pulled(stream)
            if isinstance(message, wire.AttachResponse) and message.HasField("desired")
        ]

    # --- inside

    def beat_batches(self) -> list[telemetry_pb2.BeatBatch]:
        """Those that are stored and hold beats."""
        batches = [
            telemetry_pb2.BeatBatch.FromString(record.value)
            for record in self.stored
            if record.topic == "beats"
        ]
        return [batch for batch in batches if batch.beats]

    def last_report(self) -> reports_pb2.Report:
        """The newest report that is stored."""
        records = [record for record in self.stored if record.topic == "reports"]
        return reports_pb2.Report.FromString(records[-1].value)

    def _append(self, value: bytes) -> LogRecord:
        record = LogRecord(len(self.log), value)
        self.log.append(record)
        return record

    def _show(self, gateway: GatewayCore) -> None:
        for record in self.log[gateway.cluster.offset + 1 :]:
            gateway.fold(codec.decode_entry(record.offset, record.value))
        gateway.log_read(self.now)
        self.collect()


def beat(world: World, stream: AttachStream, sequence: int = 1, incarnation: int = 1) -> None:
    """A heartbeat of n1."""
    one = telemetry_pb2.Beat(node="n1", incarnation=incarnation, sequence=sequence, at_ms=1)
    world.say(stream, beat=one)
