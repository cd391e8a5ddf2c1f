"""Devices and network interfaces: definite events become conditions, by table, by counters or by how long a port is down.

A condition is said again now and then until the log shows it. A port that is down while its gangs go on is given the
time that a collective survives; while they stand still it is not. One that never had a link is no fault: nobody
relied on it. Time is judged time (see detector.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, TypeAlias

from services.health.counters import Counters, worse
from services.health.messages import (
    DeviceJudged,
    NicJudged,
    NodeKnown,
    SignalKind,
    Signalled,
    Verdict,
)
from services.health.progress import Progress
from services.health.rules import Rules
from services.health.table import CONDITION, Action, Line, Table
from statemachines.device import DeviceState
from statemachines.nic import NicState
from statemachines.values import Reason

_NEVER: Final = -(1 << 62)
# (node, device index) or (node, nic name).
Device: TypeAlias = tuple[str, int]
Nic: TypeAlias = tuple[str, str]


class _Wanted:
    """A device's condition that the log does not show yet."""

    __slots__ = ("condition", "reason", "said_ms")

    def __init__(self, condition: DeviceState, reason: Reason) -> None:
        self.condition = condition
        self.reason = reason
        self.said_ms = _NEVER


class _Port:
    """What a port did since we look, if it was `heard`; `down_ms` None while it is up."""

    __slots__ = ("down_ms", "downs", "heard", "said", "said_ms", "stalls", "up_ms")

    def __init__(self) -> None:
        self.heard = False
        self.down_ms: int | None = None
        self.up_ms = _NEVER
        self.downs: deque[int] = deque()
        self.stalls = False
        self.said: NicState | None = None
        self.said_ms = _NEVER


class Parts:
    """Judges what signals are about."""

    def __init__(self, rules: Rules, table: Table, progress: Progress) -> None:
        self._rules = rules
        self._table = table
        self._progress = progress
        self._counters = Counters(rules, table)
        self._nodes: dict[str, NodeKnown] = {}
        self._devices: dict[str, Mapping[int, DeviceState]] = {}
        self._nics: dict[str, Mapping[str, NicState]] = {}
        self._wanted: dict[Device, _Wanted] = {}
        self._ports: dict[Nic, _Port] = {}
        # Ports that have had a link: at their agent's attach, or since.
        self._linked: set[Nic] = set()
        self._seen: dict[tuple[Device | Nic, str, str], deque[int]] = {}
        # Cards that are to be replaced: to be there again, or cool, makes none of them whole.
        self._rma: set[Device] = set()

    # --- what the fold says

    def known(self, fact: NodeKnown, now_ms: int) -> None:
        """Conditions as recorded; what was wanted and is there now need not be said again."""
        node = fact.node
        before = self._devices.get(node, {})
        if fact.counted and node not in self._nodes:
            self._counters.restored(fact, now_ms)
            self._ports |= {(node, name): _Port() for name, _ in fact.counted}
        self._nodes[node] = fact
        self._devices[node], self._nics[node] = dict(fact.devices), dict(fact.nics)
        self._linked |= {(node, name) for name, _ in fact.nics if name not in fact.unlinked}
        for index, state in fact.devices:
            if state is DeviceState.HEALTHY and before.get(index) is DeviceState.FAULTY:
                self._rma.discard((node, index))  # Another card.
            wanted = self._wanted.get((node, index))
            if wanted is not None and wanted.condition is state:
                del self._wanted[node, index]

    def forgotten(self, node: str) -> None:
        """The node was removed."""
        for table in (self._nodes, self._devices, self._nics):
            table.pop(node, None)
        self._counters.forgotten(node)
        self._wanted = {key: value for key, value in self._wanted.items() if key[0] != node}
        self._ports = {key: value for key, value in self._ports.items() if key[0] != node}
        self._linked = {port for port in self._linked if port[0] != node}
        self._seen = {key: value for key, value in self._seen.items() if key[0][0] != node}
        self._rma = {device for device in self._rma if device[0] != node}

    # --- telemetry

    def signalled(self, signal: Signalled, now_ms: int) -> None:
        """Something happened; what comes of it is said at the next tick. Of an earlier incarnation it means nothing."""
        known = self._nodes.get(signal.node)
        if known is None or signal.incarnation < known.incarnation:
            return
        at_ms = now_ms - signal.age_ms
        if signal.kind is SignalKind.NIC_LINK:
            self._link(signal, at_ms)
            return
        line = self._table.find(signal.kind, signal.code)
        if line is None:
            return
        if signal.kind is SignalKind.NIC_COUNTER:
            self._count(signal, line, at_ms)
            return
        # A switch of the node serves all its devices.
        every = signal.kind is SignalKind.SXID
        for index in self._devices[signal.node] if every else (signal.device,):
            self._event((signal.node, index), line, signal, at_ms)

    def _event(self, device: Device, line: Line, signal: Signalled, at_ms: int) -> None:
        now = self._devices[device[0]].get(device[1])
        if now is None:
            return
        if device in self._wanted:  # The log will show it soon.
            now = self._wanted[device].condition
        again = now is not DeviceState.FAULTY and self._happens_again(device, line, at_ms)
        action = line.again_action if again else line.action
        if action is Action.RMA and now is not DeviceState.FAULTY:
            self._rma.add(
                device
            )  # As the log will say: who repairs a device must see that it takes another one.
        elif action is Action.RECOVERED and device in self._rma:
            return
        condition = CONDITION[action]
        if condition is None or condition is now:
            return
        if condition is DeviceState.DEGRADED and now is DeviceState.FAULTY:
            return  # What is worse is known already.
        code = f"{signal.kind}_{signal.code}" if signal.code else str(signal.kind)
        text = f"{line.meaning}: {signal.message}" if signal.message else line.meaning
        self._wanted[device] = _Wanted(condition, Reason(code, f"{text} ({action})"))

    def _count(self, signal: Signalled, line: Line, at_ms: int) -> None:
        nic = (signal.node, signal.nic)
        if signal.nic in self._nics[signal.node]:
            self._ports.setdefault(nic, _Port())
            again = self._happens_again(nic, line, at_ms)
            action = line.again_action if again else line.action
            self._counters.told(signal, line, action, at_ms)

    def _happens_again(self, part: Device | Nic, line: Line, at_ms: int) -> bool:
        """Asked only of a device that works: a fault that is known does not happen again by being told again."""
        if not line.again_count:
            return False
        seen = self._seen.setdefault((part, line.kind, line.code), deque())
        seen.append(at_ms)
        while seen[0] <= at_ms - line.again_within_s * 1000:
            seen.popleft()
        return len(seen) >= line.again_count

    def _link(self, signal: Signalled, at_ms: int) -> None:
        nic = (signal.node, signal.nic)
        if signal.code == "up":
            self._linked.add(nic)
        elif nic not in self._linked:
            return
        port = self._ports.setdefault(nic, _Port())
        port.heard = True
        if signal.code == "down" and port.down_ms is None:
            port.down_ms, port.stalls = at_ms, False
            port.downs.append(at_ms)
        elif signal.code == "up" and port.down_ms is not None:
            port.down_ms, port.up_ms = None, at_ms

    @property
    def congested_nodes(self) -> int:
        """Nodes that tell of congestion, few or many."""
        return self._counters.congested

    # --- time

    def look(self, now_ms: int) -> int:
        """Counters that are quiet again; answers how many nodes tell of a congested fabric, 0 when they are too few."""
        return self._counters.look(self._nodes, now_ms)

    def tick(self, now_ms: int) -> list[Verdict]:
        """Conditions that the log does not show, and what ports that are down bring with them."""
        verdicts: list[Verdict] = []
        for (node, index), wanted in self._wanted.items():
            if now_ms - wanted.said_ms >= self._rules.repeat_ms:
                wanted.said_ms = now_ms
                incarnation = self._nodes[node].incarnation
                verdicts.append(
                    DeviceJudged(node, incarnation, index, wanted.condition, wanted.reason)
                )
        for nic, port in self._ports.items():
            verdicts += self._judge_port(nic, port, now_ms)
        return verdicts

    def _judge_port(self, nic: Nic, port: _Port, now_ms: int) -> list[Verdict]:
        node, name = nic
        recorded = self._nics.get(node, {}).get(name)
        hung: list[Verdict] = []
        if port.down_ms is not None:
            stalls = self._progress.stands_still_on(nic, port.down_ms, now_ms)
            port.stalls = port.stalls or stalls
            # Only once the log shows the port: the leader then knows why the job hangs, and where not to put it again.
            # Verdicts of a node and of a job come by different partitions, in any order.
            if recorded is None or recorded is NicState.FAULTY:
                hung = self._progress.stalled_on(nic, port.down_ms, now_ms)
        judged = self._condition(nic, port, now_ms)
        if recorded is None or judged is None or judged[0] is recorded:
            return hung
        condition, reason = judged
        if port.said is condition and now_ms - port.said_ms < self._rules.repeat_ms:
            return hung
        port.said, port.said_ms = condition, now_ms
        return [NicJudged(node, self._nodes[node].incarnation, name, condition, reason), *hung]

    def _condition(self, nic: Nic, port: _Port, now_ms: int) -> tuple[NicState, Reason] | None:
        """What the interface is by its link and its counters, and why; None while it is too early to tell."""
        linked = self._linked_as(port, now_ms) if port.heard else self._recorded_as(nic)
        counted = self._counters.judge(nic)
        return worse(linked, counted) if linked is not None else None

    def _recorded_as(self, nic: Nic) -> tuple[NicState, Reason] | None:
        """Of a link that nobody told us of: what stands in the log, unless a counter brought it there."""
        node = self._nodes[nic[0]]
        if nic[1] in dict(node.counted):
            return NicState.HEALTHY, Reason("quiet", "its counters are quiet")
        state = self._nics[nic[0]].get(nic[1])
        return None if state is None else (state, Reason("recorded", "as it is recorded"))

    def _linked_as(self, port: _Port, now_ms: int) -> tuple[NicState, Reason] | None:
        rules = self._rules
        while port.downs and port.downs[0] <= now_ms - rules.port_flap_window_ms:
            port.downs.popleft()
        if port.down_ms is not None:
            down_ms = now_ms - port.down_ms
            if port.stalls:
                return NicState.FAULTY, Reason("port_down", "down, and its gang stands still")
            if down_ms >= rules.port_down_ms:
                return NicState.FAULTY, Reason("port_down", f"down for {down_ms // 1000} s")
            return None
        if now_ms - port.up_ms < rules.port_steady_ms:
            return None
        if len(port.downs) >= rules.port_flaps:
            window_min = rules.port_flap_window_ms // 60_000
            why = f"down {len(port.downs)} times within {window_min} min"
            return NicState.DEGRADED, Reason("port_flaps", why)
        return NicState.HEALTHY, Reason("port_up", "up and steady")
