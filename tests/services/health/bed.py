"""A test bed for the detector: virtual time, nodes that beat, a gateway that can be cut, a leader that records verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from services.health.detector import Detector
from services.health.messages import (
    NIC_COUNTER,
    AttemptGone,
    AttemptKnown,
    Beat,
    DeviceJudged,
    IncidentKnown,
    JobHung,
    MassSilence,
    NicJudged,
    NodeBack,
    NodeForgotten,
    NodeGone,
    NodeKnown,
    NodeSlow,
    NodeSuspect,
    NodeUnfit,
    PathHeard,
    Progressed,
    SignalKind,
    Signalled,
    SilenceOver,
    Verdict,
)
from services.health.rules import Rules
from services.health.service import load_table
from services.health.settings import HealthSettings
from statemachines.device import DeviceState
from statemachines.nic import NicState
from statemachines.node import NodeState

V = TypeVar("V")
STEP_MS: Final = 250
BEAT_MS: Final = 2_000
TICK_MS: Final = 1_000
START_MS: Final = 5_000_000
TABLE: Final = load_table(HealthSettings())


class Node:
    """A node as it is, and as the log has it. `mute` until the time given; a beat that was due meanwhile leaves at once."""

    def __init__(self, name: str, phase_ms: int) -> None:
        self.name = name
        self.beats_at_ms = START_MS + phase_ms
        self.incarnation = 1
        self.state = NodeState.READY
        self.mute_until_ms = 0
        self.stall_ms = 0
        self.devices = dict.fromkeys(range(2), DeviceState.HEALTHY)
        self.nics = {"ib0": NicState.HEALTHY, "ib1": NicState.HEALTHY}
        self.in_service = True
        self.lost_ms = 0
        self.unlinked: tuple[str, ...] = ()
        self.counted: tuple[tuple[str, str], ...] = ()

    def known(self) -> NodeKnown:
        parts = (tuple(self.devices.items()), tuple(self.nics.items()))
        return NodeKnown(
            self.name, self.incarnation, self.state, *parts, self.in_service, self.unlinked, self.lost_ms,
            self.counted,
        )  # fmt: skip


class Bed:
    """Nodes n0, n1 ... that beat every two seconds, one after the other."""

    def __init__(self, nodes: int, rules: Rules | None = None, *, leader: bool = True) -> None:
        self.now_ms = START_MS
        self.rules = rules or Rules(judge="test")
        self.detector = Detector(self.rules, TABLE, self.now_ms)
        self.nodes = {f"n{i}": Node(f"n{i}", i * 37 % BEAT_MS) for i in range(nodes)}
        self.said: list[tuple[int, Verdict]] = []
        self.leader = leader
        self.incident = ""
        self.path = True
        self.looking = True
        self.attempts: dict[str, AttemptKnown] = {}
        self.started_ms: dict[str, int] = {}
        # Called at every step, to make jobs progress and the like.
        self.also: list[Callable[[Bed], None]] = []
        self.recover()

    def recover(self) -> None:
        """The processor starts, or starts again: all it knows is what the log says."""
        self.detector = Detector(self.rules, TABLE, self.now_ms)
        for node in self.nodes.values():
            self.detector.observe(node.known(), self.now_ms)
        for job, attempt in self.attempts.items():
            age_ms = self.now_ms - self.started_ms[job]
            self.detector.observe(msgspec.structs.replace(attempt, age_ms=age_ms), self.now_ms)
        if self.incident:
            self.detector.observe(IncidentKnown(self.incident), self.now_ms)

    def run(self, for_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            self.now_ms += STEP_MS
            for each in self.also:
                each(self)
            if self.looking:
                self._look()

    def _look(self) -> None:
        said: list[Verdict] = []
        if self.path:
            if self._due(BEAT_MS):
                said += self.detector.observe(PathHeard(), self.now_ms)
            for node in self.nodes.values():
                if node.beats_at_ms <= self.now_ms and node.mute_until_ms <= self.now_ms:
                    node.beats_at_ms = self.now_ms + BEAT_MS
                    self.detector.observe(PathHeard(), self.now_ms)
                    beat = Beat(node.name, node.incarnation, node.stall_ms)
                    said += self.detector.observe(beat, self.now_ms)
        if self._due(TICK_MS):
            said += self.detector.tick(self.now_ms)
        self.said += [(self.now_ms - START_MS, verdict) for verdict in said]
        if self.leader:
            for verdict in said:
                self._record(verdict)

    def _due(self, every_ms: int) -> bool:
        return self.now_ms % every_ms < STEP_MS

    # --- the leader

    def _record(self, verdict: Verdict) -> None:
        match verdict:
            case NodeSuspect(node=name):
                self.record_node(name, NodeState.SUSPECT, when=NodeState.READY)
            case NodeBack(node=name):
                self.record_node(name, NodeState.READY, when=NodeState.SUSPECT)
            case NodeGone(node=name):
                assert not self.incident, "a node is given up during an incident"
                self.record_node(name, NodeState.LOST)
            case MassSilence(incident=incident):
                self.record_incident(self.incident or incident)
            case SilenceOver():
                self.record_incident("")
            case NodeUnfit(node=name):
                self.nodes[name].in_service = False
                self.tell(name)
            case NodeSlow():
                pass  # For people.
            case JobHung(job=job):
                self.attempts.pop(job, None)
                self.detector.observe(AttemptGone(job), self.now_ms)
            case DeviceJudged(node=name, index=index, condition=device):
                self.nodes[name].devices[index] = device
                self.tell(name)
            case NicJudged(node=name, nic=nic, condition=port, reason=reason):
                self._record_nic(self.nodes[name], nic, port, reason.code)

    def _record_nic(self, node: Node, nic: str, port: NicState, code: str) -> None:
        node.nics[nic] = port
        others = [each for each in node.counted if each[0] != nic]
        if port is not NicState.HEALTHY and code.startswith(NIC_COUNTER):
            others.append((nic, code.removeprefix(NIC_COUNTER)))
        node.counted = tuple(others)
        self.tell(node.name)

    def forget(self, name: str) -> None:
        """The node was removed."""
        del self.nodes[name]
        self.detector.observe(NodeForgotten(name), self.now_ms)

    def record_node(self, name: str, state: NodeState, when: NodeState | None = None) -> None:
        node = self.nodes[name]
        if when is None or node.state is when:
            node.state = state
            self.tell(name)

    def record_incident(self, incident: str) -> None:
        self.incident = incident
        self.detector.observe(IncidentKnown(incident), self.now_ms)

    def tell(self, name: str) -> None:
        """The fold shows the node as it is recorded."""
        self.detector.observe(self.nodes[name].known(), self.now_ms)

    def rejoin(self, name: str) -> None:
        """Recorded as a new incarnation."""
        node = self.nodes[name]
        node.incarnation, node.mute_until_ms = node.incarnation + 1, 0
        self.record_node(name, NodeState.READY)

    # --- what happens

    def mute(self, names: Iterable[str], for_ms: int = 1 << 40) -> None:
        """They stop to speak: dead, stopped or cut off."""
        for name in names:
            self.nodes[name].mute_until_ms = self.now_ms + for_ms

    def start(
        self, job: str, *, on: tuple[str, ...] = ("n0",), hang_after_ms: int = 0, attempt: int = 1
    ) -> None:
        """An attempt runs with a member on each node."""
        known = AttemptKnown(job, attempt, len(on), hang_after_ms, on)
        self.attempts[job] = known
        self.started_ms[job] = self.now_ms
        self.detector.observe(known, self.now_ms)

    def step(
        self, job: str, step: int, rank: int = 0, phase: str = "train", attempt: int = 1
    ) -> None:
        self.detector.observe(Progressed(job, attempt, rank, step, phase), self.now_ms)

    def signal(self, node: str, kind: SignalKind, code: str = "", **rest: object) -> None:
        incarnation = self.nodes[node].incarnation
        self.detector.observe(Signalled(node, incarnation, kind, code=code, **rest), self.now_ms)  # type: ignore[arg-type]

    def link(self, node: str, code: str, nic: str = "ib0") -> None:
        self.signal(node, SignalKind.NIC_LINK, code, nic=nic)

    # --- what was said

    def of(self, kind: type[V]) -> list[V]:
        return [verdict for _, verdict in self.said if isinstance(verdict, kind)]

    def kinds(self) -> list[str]:
        """Names of the verdicts, in order."""
        return [type(verdict).__name__ for _, verdict in self.said]

    def times(self, kind: type) -> list[int]:
        """When they were said, since the start of the bed."""
        return [at_ms for at_ms, verdict in self.said if isinstance(verdict, kind)]
