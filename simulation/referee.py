"""The referee: folds every stored record of the log as it is stored, before anyone else, and checks what must hold.

Steps are checked at each entry; the whole state, which costs as much as it is large, as often as the work since the
last check pays for. It also holds the log against the world: what trainers were promised, what storage really has.
Never changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from simulation.physics import Physics
from simulation.storage import PARTITIONS, Broker
from statemachines import facts, invariants
from statemachines.cluster import Cluster
from statemachines.entry import Entry, Recorded
from statemachines.facts import Fact
from statemachines.values import JobId
from statemachines.watcher import Watcher
from tidemill.v1 import verdicts_pb2

# The whole state is looked at once so many entries were folded that each bears the cost of this many entities.
_ENTITIES_PER_ENTRY: Final = 12


class Event(msgspec.Struct, frozen=True):
    """Something of a history that a person wants to see: what happened to whom, at which virtual time."""

    at_ms: int
    kind: str
    subject: str
    detail: str = ""


class Promise(msgspec.Struct, frozen=True):
    """A save that was acknowledged: its report lies before the `ends` of the partitions of reports."""

    step: int
    ends: tuple[int, ...]


class Referee:
    """Of one history. `broken` says what does not hold, `seen` how often rare things happened."""

    def __init__(self, broker: Broker, physics: Physics, cell: str) -> None:
        self.cluster = Cluster(cell)
        self.broken: list[str] = []
        self.seen: dict[str, int] = {}
        self.events: list[Event] = []
        self._broker, self._physics = broker, physics
        self._kernel = broker.kernel
        self._watcher = Watcher()
        self._unchecked = 0
        self._promises: dict[tuple[str, int], list[Promise]] = {}
        self._gone: set[tuple[str, int]] = set()
        physics.reporter.acknowledged = self._acknowledged
        broker.stored.append(self._stored)

    # --- the log

    def _stored(self, topic: str, offset: int, value: bytes) -> None:
        if topic == "verdicts":
            self._judged(value)
        if topic != "log" or self.broken:
            return
        entry = self._broker.entry(offset, value)
        void = self.cluster.void_reason(entry)
        if void:
            self.count("void entry")
            self.note("void", str(offset), void)
        try:
            if not void:
                for recorded in entry.facts:
                    self._hold_against_world(recorded, entry)
            self.broken += self._watcher.fold(self.cluster, entry)
        except Exception as error:  # noqa: BLE001 - an illegal fact, in whatever shape
            self.broken.append(f"illegal fact in entry {offset}: {type(error).__name__}: {error}")
            return
        self._kernel.note(f"entry {offset} {entry.digest.hex()[:16]}")
        if not void:
            for recorded in entry.facts:
                self._witness(recorded.fact)
        self._unchecked += 1
        cluster = self.cluster
        size = len(cluster.runs) + len(cluster.jobs) + len(cluster.nodes)
        if self._unchecked * _ENTITIES_PER_ENTRY >= size:
            self.check_state()

    def check_state(self) -> None:
        """Every invariant of the state as it is now."""
        self._unchecked = 0
        self.broken += invariants.violations(self.cluster)

    # --- the log against the world

    def _judged(self, value: bytes) -> None:
        """Remember of whom it was ever said that they are gone."""
        try:
            verdict = verdicts_pb2.Verdict.FromString(value)
        except DecodeError:  # Noise, which is parked.
            return
        if verdict.HasField("node_gone"):
            gone = verdict.node_gone
            self._gone.add((gone.node, gone.incarnation))

    def _acknowledged(self, job: str, attempt: int, step: int) -> None:
        """A trainer was told that its save is durable."""
        records = self._broker.records
        ends = [len(records.get(("reports", each), ())) for each in range(PARTITIONS["reports"])]
        self._promises.setdefault((job, attempt), []).append(Promise(step, tuple(ends)))

    def _hold_against_world(self, recorded: Recorded, entry: Entry) -> None:
        match recorded.fact:
            case facts.CheckpointSaved(job=job, attempt=attempt, step=step, uri=uri):
                really = self._physics.storage.committed.get(uri)
                if really != (job, attempt, step):
                    self.broken.append(
                        f"E: step {step} of attempt {attempt} of {job} is recorded as {uri}, which is {really}"
                    )
            case facts.NodeLost(node=node, incarnation=incarnation) if not recorded.by:
                if (node, incarnation) not in self._gone:
                    self.broken.append(
                        f"I: node {node} is lost as incarnation {incarnation}, which nobody found silent"
                    )
            case facts.RunEnded(run=run, evidence=evidence) if run in self._physics.living:
                self.broken.append(f"J: run {run} is recorded as ended by {evidence}, and lives")
            case facts.AttemptEnded(job=job, attempt=attempt):
                self._keep_promise(job, attempt, entry)
            case _:
                pass

    def _keep_promise(self, job: str, attempt: int, entry: Entry) -> None:
        """E: what was acknowledged, and lies before what had been decided by then, is what the job counts on."""
        positions = self.cluster.positions
        decided = [
            promise.step
            for promise in self._promises.pop((job, attempt), ())
            if all(
                positions.get(("reports", each), 0) >= end for each, end in enumerate(promise.ends)
            )
        ]
        durable = self.cluster.jobs[JobId(job)].durable_step
        if decided and max(decided) > durable:
            self.broken.append(
                f"E: attempt {attempt} of job {job} was told that step {max(decided)} is durable; when entry "
                f"{entry.offset} ends it, the job counts on step {durable}"
            )

    # --- what was seen

    def count(self, what: str) -> None:
        """A rare state was reached."""
        self.seen[what] = self.seen.get(what, 0) + 1

    def note(self, kind: str, subject: str, detail: str = "") -> None:
        """For the timeline."""
        self.events.append(Event(self._kernel.now_ms, kind, subject, detail))

    def _witness(self, fact: Fact) -> None:
        self.count(type(fact).__name__)
        event = event_of(fact, self._kernel.now_ms)
        if event is not None:
            self.events.append(event)
        match fact:
            case facts.AttemptEnded(cause=cause):
                self.count(f"attempt ended: {cause.value}")
            case facts.RunEnded(evidence=evidence):
                self.count(f"run ended: {evidence.value}")
            case facts.GangPlaced(resume=resume) if resume.step > 0:
                self.count("resumed from a checkpoint")
            case facts.RequestRefused(code=code):
                self.count(f"refused: {code}")
            case facts.JobWaiting(reason=reason):
                self.count(f"waits: {reason.code}")
            case facts.NodeJoined(incarnation=incarnation) if incarnation > 1:
                self.count("node came back as another incarnation")
            case _:
                pass


_SUBJECTS: Final[Mapping[str, str]] = {
    "TermOpened": "leader", "JobAdmitted": "job", "GangPlaced": "job", "AttemptStarted": "job",
    "AttemptStopping": "job", "AttemptEnded": "job", "JobHeld": "job", "JobCancelled": "job",
    "CheckpointSaved": "job", "NodeJoined": "node", "NodeSuspected": "node", "NodeRecovered": "node",
    "NodeLost": "node", "NodeCordoned": "node", "NodeUncordoned": "node", "NodeDrainStarted": "node",
    "NodeDrained": "node", "NicFaulted": "node", "NicDegraded": "node", "NicRecovered": "node",
    "DeviceFaulted": "node", "DeviceDegraded": "node", "DeviceRecovered": "node",
    "BreakerOpened": "incident", "BreakerClosed": "incident", "InputParked": "topic", "InputGapAccepted": "topic",
    "CheckpointCondemned": "job", "RunEnded": "run",
}  # fmt: skip
# All that a timeline shows: these facts, and what is noted beside them.
KINDS: Final = frozenset(_SUBJECTS) | {"fault", "final", "healed", "void"}


def event_of(fact: Fact, at_ms: int) -> Event | None:
    """What the timeline says of a fact; None for what it leaves out."""
    kind = type(fact).__name__
    subject = _SUBJECTS.get(kind)
    return (
        None if subject is None else Event(at_ms, kind, str(getattr(fact, subject)), _detail(fact))
    )


def _detail(fact: Fact) -> str:
    match fact:
        case facts.TermOpened(term=term):
            return str(term)
        case facts.AttemptEnded(cause=cause, next=following):
            return f"{cause.value} -> {following.value}"
        case facts.AttemptStopping(cause=cause):
            return cause.value
        case facts.CheckpointSaved(step=step):
            return str(step)
        case facts.GangPlaced(placements=placements, resume=resume):
            nodes = " ".join(each.node for each in placements)
            return f"{len(placements)} members from step {resume.step} on {nodes}"
        case facts.RunEnded(evidence=evidence):
            return evidence.value
        case facts.NicFaulted(nic=nic) | facts.NicDegraded(nic=nic) | facts.NicRecovered(nic=nic):
            return nic
        case _:
            return ""
