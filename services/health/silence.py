"""Silence of nodes: suspect, gone, back; and the breaker that takes mass silence, or a congested fabric, for an incident.

Time is judged time (see detector.py): it stands still while nobody could be heard. Nodes are kept in the order in
which they were last heard, so that a look costs as much as there are silent ones. Never knows why time stood still.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final

from services.health.messages import (
    Beat,
    MassSilence,
    NodeBack,
    NodeGone,
    NodeKnown,
    NodeSuspect,
    SilenceOver,
    Verdict,
)
from services.health.rules import Rules
from statemachines.node import NodeState

_NEVER: Final = -(1 << 62)


class _Node:
    """What is remembered of a node that is not lost. `fell_ms`: when it was first found silent."""

    __slots__ = ("excuse_ms", "fell_ms", "heard_ms", "incarnation", "said", "said_ms", "state")

    def __init__(self, incarnation: int, state: NodeState, heard_ms: int) -> None:
        self.incarnation = incarnation
        self.state = state
        self.heard_ms = heard_ms
        self.excuse_ms = 0
        self.fell_ms: int | None = None
        self.said: type[Verdict] | None = None
        self.said_ms = _NEVER


class Silence:
    """Judges every node that the log does not call lost."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._nodes: OrderedDict[str, _Node] = OrderedDict()  # Longest silent first.
        self._lost: dict[str, int] = {}  # Lost lately: node, and when it fell silent.
        # Said to be gone while the log does not show it, and when it showed those that it does, oldest first.
        self._going: dict[str, None] = {}
        self._gone_ms: deque[int] = deque()
        self._window_began_ms = _NEVER
        self._incident = ""
        self._incident_recorded = False
        self._incident_began_ms = _NEVER
        self._incident_said_ms = _NEVER
        # Nodes that tell of a congested fabric, and whether an incident was made of it; one is enough.
        self._congested = 0
        self._congestion_known = False

    @property
    def incident(self) -> str:
        """The incident that is on; empty for none. Nothing is given up meanwhile."""
        return self._incident

    @property
    def watched(self) -> int:
        """Nodes that are not lost."""
        return len(self._nodes)

    @property
    def silent(self) -> int:
        """Of those, found silent."""
        return sum(node.fell_ms is not None for node in list(self._nodes.values()))

    # --- what the fold says

    def known(self, fact: NodeKnown, now_ms: int) -> None:
        """The node as recorded; a new one, or a new incarnation, has a whole window to speak."""
        node = self._nodes.get(fact.node)
        if fact.state is NodeState.LOST:
            self._known_lost(fact, node, now_ms)
        elif node is None or node.incarnation != fact.incarnation:
            self._lost.pop(fact.node, None)
            self._going.pop(fact.node, None)
            self._nodes[fact.node] = _Node(fact.incarnation, fact.state, now_ms)
            self._nodes.move_to_end(fact.node)
        else:
            node.state = fact.state

    def _known_lost(self, fact: NodeKnown, node: _Node | None, now_ms: int) -> None:
        """It counts for a while among those that fell, also when it was lost before we began."""
        if node is not None:
            self._gone_ms.append(now_ms)
            if node.fell_ms is not None:
                self._lost[fact.node] = node.fell_ms
            del self._nodes[fact.node]
        elif fact.node not in self._lost and fact.lost_ms < self._rules.breaker_window_ms:
            insort(self._gone_ms, now_ms - fact.lost_ms)  # At a start they come by name.
            self._lost[fact.node] = now_ms - fact.lost_ms
        self._going.pop(fact.node, None)

    def forgotten(self, node: str) -> None:
        """The node was removed."""
        for known in (self._nodes, self._lost, self._going):
            known.pop(node, None)

    def incident_known(self, incident: str, now_ms: int) -> None:
        """The log's incident is ours."""
        self._incident_recorded = bool(incident)
        if incident == self._incident:
            return
        if incident:
            self._begin_incident(incident, now_ms)
        else:
            self._end_incident(now_ms)

    def restart(self, now_ms: int) -> None:
        """Nobody could be heard until now: everyone has a whole window to speak."""
        self._window_began_ms = now_ms
        for node in self._nodes.values():
            node.heard_ms = now_ms
            node.fell_ms = None

    # --- telemetry

    def beat(self, beat: Beat, now_ms: int) -> list[Verdict]:
        """A sign of life; one of an earlier incarnation is none."""
        node = self._nodes.get(beat.node)
        if node is None or beat.incarnation < node.incarnation:
            return []
        node.heard_ms = now_ms
        node.fell_ms = None
        self._going.pop(beat.node, None)
        if node.said is not NodeBack:
            node.said = None
        # An agent that runs late may be late again: it is overloaded, not dead.
        stall_ms = beat.stall_ms
        node.excuse_ms = min(stall_ms, self._rules.lost_after_ms) if stall_ms else 0
        self._nodes.move_to_end(beat.node)
        if node.state is NodeState.SUSPECT and beat.incarnation == node.incarnation:
            return self._say(node, NodeBack(beat.node, node.incarnation), now_ms)
        return []

    # --- time

    def tick(self, now_ms: int, *, congested: int = 0) -> list[Verdict]:
        """Judge the silent. `congested` nodes tell of a fabric that is; 0: it is not."""
        fallen = list(self._fallen(now_ms))
        self._congested = congested
        self._congestion_known = self._congestion_known and congested > 0
        congestion = congested > 0 and not self._congestion_known
        if not self._incident and (self._too_many(now_ms) or congestion):
            self._begin_incident(f"{self._rules.judge}-{now_ms}", now_ms)
        if self._incident:
            self._congestion_known = congested > 0
            return self._during_incident(fallen, now_ms)
        verdicts: list[Verdict] = []
        for name, node, silent_ms in fallen:
            if silent_ms >= self._rules.lost_after_ms and self._may_go(name, now_ms):
                message = f"silent for {silent_ms // 1000} s"
                verdicts += self._say(
                    node, NodeGone(name, node.incarnation, silent_ms, message), now_ms
                )
            else:
                verdicts += self._suspect(name, node, silent_ms, now_ms)
        return verdicts

    def _fallen(self, now_ms: int) -> Iterator[tuple[str, _Node, int]]:
        """Silent nodes with how long they have been, longest first."""
        for name, node in self._nodes.items():
            silent_ms = now_ms - node.heard_ms
            if silent_ms < self._rules.suspect_after_ms:
                return
            silent_ms -= node.excuse_ms
            if silent_ms >= self._rules.suspect_after_ms:
                if node.fell_ms is None:
                    node.fell_ms = now_ms
                yield name, node, silent_ms

    def _too_many(self, now_ms: int) -> bool:
        """The breaker: too many fell silent within the window, those that were lost since then among them."""
        since_ms = now_ms - self._rules.breaker_window_ms
        self._lost = {name: fell_ms for name, fell_ms in self._lost.items() if fell_ms > since_ms}
        count = len(self._lost)
        for node in self._nodes.values():
            if node.fell_ms is None and now_ms - node.heard_ms < self._rules.suspect_after_ms:
                break
            count += node.fell_ms is not None and node.fell_ms > since_ms
        return self._is_mass(count)

    def _is_mass(self, count: int) -> bool:
        total = len(self._nodes) + len(self._lost)
        rules = self._rules
        return count >= rules.breaker_least and count * 100 > rules.breaker_percent * total

    def _may_go(self, name: str, now_ms: int) -> bool:
        """Nodes are given up no faster than the breaker would allow them to fall silent, by when the log showed it.

        What is on its way counts as well: stored late, it must not fall together with the next.
        """
        if name in self._going:
            return True
        rules, gone = self._rules, self._gone_ms
        while gone and gone[0] <= now_ms - rules.breaker_window_ms:
            gone.popleft()
        total = len(self._nodes) + len(self._lost)
        most = max(rules.breaker_least - 1, total * rules.breaker_percent // 100)
        if len(gone) + len(self._going) >= most:
            return False
        self._going[name] = None
        return True

    def _begin_incident(self, incident: str, now_ms: int) -> None:
        self._incident = incident
        self._incident_began_ms = now_ms
        self._incident_said_ms = _NEVER

    def _end_incident(self, now_ms: int) -> None:
        """Those that are silent still get another window, unless they are so many that patience ended it."""
        self._incident = ""
        if not self._is_mass(self.silent):
            self.restart(now_ms)

    def _during_incident(self, fallen: list[tuple[str, _Node, int]], now_ms: int) -> list[Verdict]:
        """Nobody is given up meanwhile."""
        verdicts: list[Verdict] = []
        for name, node, silent_ms in fallen:
            verdicts += self._suspect(name, node, silent_ms, now_ms)
        if now_ms - self._incident_said_ms < self._rules.repeat_ms:
            return verdicts
        self._incident_said_ms = now_ms
        incident, count, total = self._incident, len(fallen), len(self._nodes)
        if not self._is_over(count, now_ms):
            message = f"{count} of {total} nodes are silent at once"
            if self._congested and not self._is_mass(count):
                count = self._congested
                message = f"{count} of {total} nodes tell of a congested fabric"
            return [*verdicts, MassSilence(incident, count, message)]
        if not self._incident_recorded:
            self._end_incident(
                now_ms
            )  # Nobody recorded it; what was said of it may still be on its way.
        return [*verdicts, SilenceOver(incident)]

    def _is_over(self, silent: int, now_ms: int) -> bool:
        """When most speak again, of no congestion; or when those that do not have been given long enough, and half speak."""
        rules = self._rules
        if now_ms - max(self._window_began_ms, self._incident_began_ms) < rules.lost_after_ms:
            return False  # Too early to tell: everyone has a window to speak.
        lasted_ms = now_ms - self._incident_began_ms
        patient = lasted_ms < rules.incident_patience_ms or 2 * silent > len(self._nodes)
        return not patient or not (self._is_mass(silent) or self._congested)

    def _suspect(self, name: str, node: _Node, silent_ms: int, now_ms: int) -> list[Verdict]:
        if node.state is not NodeState.READY:
            return []
        return self._say(node, NodeSuspect(name, node.incarnation, silent_ms), now_ms)

    def _say(self, node: _Node, verdict: Verdict, now_ms: int) -> list[Verdict]:
        """Say it at once, and then again now and then for as long as the log does not show it."""
        if node.said is type(verdict) and now_ms - node.said_ms < self._rules.repeat_ms:
            return []
        node.said, node.said_ms = type(verdict), now_ms
        return [verdict]
