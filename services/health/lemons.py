"""Lemons: nodes that break attempt after attempt, each time alone, and look well in between.

A strike is an attempt that the hardware of one node ended; one that several nodes broke is an event of their domain.
When many nodes have strikes of one day it is a storm, and nobody is to blame for it, then or later. A node that an
operator brings back begins anew; so does everybody when we start, for an operator may have looked at them meanwhile.
Never judges by what a program said.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from services.health.messages import AttemptBroken, NodeKnown, NodeUnfit, Verdict
from services.health.rules import Rules

_NEVER: Final = -(1 << 62)
_HOUR_MS: Final = 3_600_000


class Lemons:
    """Counts strikes, and says who is to be taken out."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._nodes: dict[str, NodeKnown] = {}
        self._strikes: dict[str, deque[int]] = {}
        self._said_ms: dict[str, int] = {}
        # Who was struck within the window of storms, and when last.
        self._lately: dict[str, int] = {}

    def known(self, node: NodeKnown) -> None:
        """The node as recorded; one that is brought back into service has no past."""
        before = self._nodes.get(node.node)
        self._nodes[node.node] = node
        if before is not None and node.in_service and not before.in_service:
            self._clear(node.node)

    def forgotten(self, node: str) -> None:
        """The node was removed."""
        self._nodes.pop(node, None)
        self._clear(node)

    def struck(self, broken: AttemptBroken, now_ms: int) -> None:
        """An attempt was broken."""
        if len(broken.nodes) != 1 or broken.nodes[0] not in self._nodes:
            return
        node, most = broken.nodes[0], max(self._rules.lemon_strikes, 1)
        self._strikes.setdefault(node, deque(maxlen=most)).append(now_ms)
        self._lately[node] = now_ms
        self._forget_old(now_ms)
        if self._is_storm():
            self._blame_nobody(now_ms)

    def tick(self, now_ms: int) -> list[Verdict]:
        """Who is unfit, said again now and then until it is out of service."""
        if not self._strikes:
            return []
        self._forget_old(now_ms)
        lemons = [name for name in self._strikes if self._is_lemon(name)]
        if not lemons or self._is_storm() or len(self._nodes) < self._rules.lemon_nodes_least:
            return []
        out = sum(not self._nodes[name].in_service for name in lemons)
        room = max(1, len(self._nodes) * self._rules.lemon_percent // 100) - out
        due = [name for name in lemons if self._nodes[name].in_service][: max(room, 0)]
        return [self._say(name, now_ms) for name in due if self._may_say(name, now_ms)]

    def _is_lemon(self, name: str) -> bool:
        return 0 < self._rules.lemon_strikes <= len(self._strikes[name])

    def _is_storm(self) -> bool:
        struck, rules = len(self._lately), self._rules
        share = struck * 100 > rules.lemon_storm_percent * len(self._nodes)
        return struck >= rules.lemon_storm_least and share

    def _may_say(self, name: str, now_ms: int) -> bool:
        return now_ms - self._said_ms.get(name, _NEVER) >= self._rules.repeat_ms

    def _say(self, name: str, now_ms: int) -> Verdict:
        self._said_ms[name] = now_ms
        strikes, hours = len(self._strikes[name]), self._rules.lemon_window_ms // _HOUR_MS
        within = f"{hours // 24} days" if hours >= 48 else f"{hours} h"
        return NodeUnfit(
            name,
            self._nodes[name].incarnation,
            f"it alone broke {strikes} attempts within {within}: test it, then `tidemill uncordon {name}`",
        )

    def _blame_nobody(self, now_ms: int) -> None:
        """The strikes of a storm are no one's; older ones stay."""
        since_ms = now_ms - self._rules.lemon_storm_window_ms
        for name, strikes in list(self._strikes.items()):
            while strikes and strikes[-1] > since_ms:
                strikes.pop()
            if not strikes:
                del self._strikes[name]

    def _forget_old(self, now_ms: int) -> None:
        storm_ms = now_ms - self._rules.lemon_storm_window_ms
        self._lately = {name: at for name, at in self._lately.items() if at > storm_ms}
        since_ms = now_ms - self._rules.lemon_window_ms
        for name, strikes in list(self._strikes.items()):
            while strikes and strikes[0] <= since_ms:
                strikes.popleft()
            if not strikes:
                del self._strikes[name]

    def _clear(self, name: str) -> None:
        self._strikes.pop(name, None)
        self._lately.pop(name, None)
        self._said_ms.pop(name, None)
