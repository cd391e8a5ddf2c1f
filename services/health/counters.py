"""What counters of interfaces ask for: a complaint lasts until nothing was told of it for long enough.

Agents tell a crossing each minute for as long as it goes on, so silence is quiet: but for nodes that are lost, of which
nobody knows. What many nodes call faulty at once is no port's fault, and at most degrades. Congestion is told of a fabric
and never of a port. Time is judged time (see detector.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from services.health.messages import NIC_COUNTER, NodeKnown, SignalKind, Signalled
from services.health.rules import Rules
from services.health.table import CONDITION, QUIET_S, Action, Line, Table
from statemachines.nic import NicState
from statemachines.node import NodeState
from statemachines.values import Reason

# (node, nic name).
Nic: TypeAlias = tuple[str, str]
Judged: TypeAlias = tuple[NicState, Reason]
_BADNESS: Final[Mapping[NicState, int]] = {
    NicState.HEALTHY: 0,
    NicState.DEGRADED: 1,
    NicState.FAULTY: 2,
}


class _Complaint:
    """One counter of one interface that asked for something."""

    __slots__ = ("condition", "heard_ms", "quiet_ms", "reason")

    def __init__(self, condition: NicState, reason: Reason, *, quiet_s: int, heard_ms: int) -> None:
        self.condition, self.reason = condition, reason
        self.quiet_ms, self.heard_ms = quiet_s * 1000, heard_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether it has been quiet for long enough."""
        return now_ms - self.heard_ms >= self.quiet_ms


class Counters:
    """Of all interfaces."""

    def __init__(self, rules: Rules, table: Table) -> None:
        self._rules, self._table = rules, table
        self._complaints: dict[Nic, dict[str, _Complaint]] = {}
        # Nodes that told of congestion, and until when that counts.
        self._congested: dict[str, int] = {}
        self._many_faulty = False

    @property
    def congested(self) -> int:
        """Nodes that tell of congestion."""
        return len(self._congested)

    def restored(self, fact: NodeKnown, now_ms: int) -> None:
        """A node of which nothing is remembered: what is recorded because of a counter has all of its quiet time ahead."""
        states = dict(fact.nics)
        for name, code in fact.counted:
            line = self._table.find(SignalKind.NIC_COUNTER, code)
            reason = Reason(NIC_COUNTER + code, "recorded")
            self._complaints.setdefault((fact.node, name), {})[code] = _Complaint(
                states[name], reason, quiet_s=line.quiet_s if line else QUIET_S, heard_ms=now_ms
            )

    def forgotten(self, node: str) -> None:
        """The node was removed."""
        self._complaints = {nic: each for nic, each in self._complaints.items() if nic[0] != node}
        self._congested.pop(node, None)

    def told(self, signal: Signalled, line: Line, action: Action, at_ms: int) -> None:
        """A counter of an interface grew by too much, and asks for that."""
        until_ms = at_ms + line.quiet_s * 1000
        if action is Action.FABRIC:
            self._congested[signal.node] = max(until_ms, self._congested.get(signal.node, until_ms))
            return
        condition = CONDITION[action]
        if condition is None:
            return
        text = f"{line.meaning}: {signal.message}" if signal.message else line.meaning
        reason = Reason(NIC_COUNTER + signal.code, f"{text} ({action})")
        complaints = self._complaints.setdefault((signal.node, signal.nic), {})
        complaints[signal.code] = _Complaint(
            NicState(condition.value), reason, quiet_s=line.quiet_s, heard_ms=at_ms
        )

    # --- time

    def look(self, nodes: Mapping[str, NodeKnown], now_ms: int) -> int:
        """End what was quiet for long enough; answers how many nodes tell of congestion, 0 if too few for a fabric's."""
        for (node, _), complaints in self._complaints.items():
            if nodes[node].state is NodeState.LOST:
                for each in complaints.values():
                    each.heard_ms = now_ms
            for code in [code for code, each in complaints.items() if each.is_over(now_ms)]:
                del complaints[code]
        self._complaints = {nic: each for nic, each in self._complaints.items() if each}
        faulty = {
            nic[0]
            for nic, complaints in self._complaints.items()
            if any(each.condition is NicState.FAULTY for each in complaints.values())
        }
        self._many_faulty = self._is_fabric(len(faulty), len(nodes))
        for node in [node for node, until_ms in self._congested.items() if until_ms <= now_ms]:
            del self._congested[node]
        count = len(self._congested)
        return count if self._is_fabric(count, len(nodes)) else 0

    def judge(self, nic: Nic) -> Judged | None:
        """The worst of what counters say of an interface; None when they say nothing."""
        complaints = self._complaints.get(nic)
        if not complaints:
            return None
        worst = max(complaints.values(), key=lambda each: _BADNESS[each.condition])
        if worst.condition is NicState.FAULTY and self._many_faulty:
            return NicState.DEGRADED, worst.reason
        return worst.condition, worst.reason

    def _is_fabric(self, count: int, nodes: int) -> bool:
        rules = self._rules
        return count >= rules.fabric_least and count * 100 > rules.fabric_percent * nodes


def worse(one: Judged, other: Judged | None) -> Judged:
    """The worse of what a link and what counters say."""
    return other if other is not None and _BADNESS[other[0]] > _BADNESS[one[0]] else one
