"""Stragglers: nodes on which a member of a gang works for longer than the others do, step after step.

In a gang that steps together all steps take as long as the slowest member's; who is slow shows only in the time that a
rank does not wait for others, which its program measures. A member that always works for longer may have more to do: it
is measured by the least that it ever worked, beside the others, in this attempt of the job or an earlier one. Many at
once are no node's fault. What programs say takes nodes out of service only where an operator allows that.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from services.health.messages import (
    AttemptKnown,
    NodeKnown,
    NodeSlow,
    NodeUnfit,
    Progressed,
    Verdict,
)
from services.health.progress import RANKS_PER_MEMBER
from services.health.rules import Rules

_NEVER: Final = -(1 << 62)
# Of fewer members the median says too little.
MEMBERS_LEAST: Final = 4
# Jobs of which it is remembered what their members have to do.
_JOBS_MAX: Final = 10_000
_SHARE_MAX: Final = 0xFFFF
_TRAINS: Final = "train"


class _Gang:
    """One attempt. `busy` holds of each rank, in this round, the sum of what it said and how often."""

    __slots__ = ("attempt", "began_ms", "busy", "ranks", "slow")

    def __init__(self, attempt: AttemptKnown, now_ms: int) -> None:
        self.attempt = attempt
        self.began_ms = now_ms
        self.busy: dict[int, tuple[int, int]] = {}
        self.ranks = 0
        # Rounds in a row, by member.
        self.slow: dict[int, int] = {}


class Stragglers:
    """Compares the members of each gang round by round."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._nodes: dict[str, NodeKnown] = {}
        self._gangs: dict[str, _Gang] = {}
        # Of each job, by member: the least that it ever worked in a round, in thousandths of the median, at least all of it.
        self._own: OrderedDict[str, array[int]] = OrderedDict()
        self._said_ms: dict[str, int] = {}
        # Taken out because of us, until they are in service again.
        self._out: dict[str, None] = {}

    @property
    def found(self) -> int:
        """Nodes that slow a gang down now."""
        gangs = list(self._gangs.values())
        return sum(self._is_found(rounds) for gang in gangs for rounds in list(gang.slow.values()))

    # --- what the fold says

    def known(self, node: NodeKnown) -> None:
        """The node as recorded; one that is brought back into service has no past."""
        before = self._nodes.get(node.node)
        self._nodes[node.node] = node
        if before is not None and node.in_service and not before.in_service:
            self._out.pop(node.node, None)
            self._said_ms.pop(node.node, None)

    def forgotten(self, node: str) -> None:
        """The node was removed."""
        self._nodes.pop(node, None)
        self._out.pop(node, None)
        self._said_ms.pop(node, None)

    def attempt_known(self, attempt: AttemptKnown, now_ms: int) -> None:
        """Its members run."""
        gang = self._gangs.get(attempt.job)
        if gang is not None and gang.attempt.attempt == attempt.attempt:
            return
        self.gone(attempt.job)
        if attempt.members >= MEMBERS_LEAST and self._rules.straggler_percent:
            self._gangs[attempt.job] = _Gang(attempt, now_ms)

    def gone(self, job: str) -> None:
        """It runs no more; what its members have to do is remembered for its next attempt."""
        self._gangs.pop(job, None)

    def restart(self, now_ms: int) -> None:
        """Nobody could be heard until now, or an incident kept everyone from working well."""
        for gang in self._gangs.values():
            gang.began_ms = now_ms
            gang.busy.clear()
            gang.slow.clear()

    # --- telemetry

    def progressed(self, said: Progressed) -> None:
        """What a rank measured while it trained."""
        gang = self._gangs.get(said.job)
        if gang is None or gang.attempt.attempt != said.attempt or said.busy_us <= 0:
            return
        most = gang.attempt.members * RANKS_PER_MEMBER
        if said.phase != _TRAINS or not 0 <= said.rank < most:
            return
        total, count = gang.busy.get(said.rank, (0, 0))
        gang.busy[said.rank] = (total + said.busy_us, count + 1)
        gang.ranks = max(gang.ranks, said.rank + 1)

    # --- time

    def tick(self, now_ms: int) -> list[Verdict]:
        """Rounds that are over, and who was slow in enough of them."""
        verdicts: list[Verdict] = []
        for gang in self._gangs.values():
            if now_ms - gang.began_ms >= self._rules.straggler_round_ms:
                self._end_round(gang)
                gang.began_ms = now_ms
                verdicts += self._judge(gang, now_ms)
        return verdicts

    def _end_round(self, gang: _Gang) -> None:
        """Count who is slow that was not always. A member of which nothing was heard stays as it is."""
        busy = _by_member(gang)
        gang.busy.clear()
        members = gang.attempt.members
        if 2 * len(busy) <= members or len(busy) < MEMBERS_LEAST:
            return
        usual = sorted(busy.values())[(len(busy) - 1) // 2]
        share = {member: us * 1_000 // max(usual, 1) for member, us in busy.items()}
        own = self._remember(gang.attempt.job, members, share)
        more = 100 + self._rules.straggler_percent
        slow = {member for member in share if share[member] * 100 > own[member] * more}
        if len(slow) > max(1, members * self._rules.straggler_storm_percent // 100):
            gang.slow.clear()
            return
        for member in busy:
            if member in slow:
                gang.slow[member] = gang.slow.get(member, 0) + 1
            else:
                gang.slow.pop(member, None)

    def _remember(self, job: str, members: int, share: Mapping[int, int]) -> array[int]:
        """The least share of each member so far."""
        own = self._own.pop(job, None)
        if own is None or len(own) != members:
            own = array("H", [_SHARE_MAX]) * members
        for member, now in share.items():
            own[member] = max(1_000, min(own[member], now))
        self._own[job] = own
        if len(self._own) > _JOBS_MAX:
            self._own.popitem(last=False)
        return own

    def _judge(self, gang: _Gang, now_ms: int) -> list[Verdict]:
        due = [member for member, rounds in sorted(gang.slow.items()) if self._is_found(rounds)]
        return [said for member in due for said in self._say(gang, member, now_ms)]

    def _is_found(self, rounds: int) -> bool:
        return rounds >= self._rules.straggler_rounds

    def _say(self, gang: _Gang, member: int, now_ms: int) -> list[Verdict]:
        job, name = gang.attempt.job, gang.attempt.nodes[member]
        node = self._nodes.get(name)
        if node is None or not node.in_service or not self._may_say(name, now_ms):
            return []
        self._said_ms[name] = now_ms
        rules = self._rules
        why = f"member {member} of {job} has worked over {rules.straggler_percent} % longer than the others there"
        if not rules.straggler_drain_ms or not self._has_room(name):
            return [NodeSlow(name, node.incarnation, job, gang.attempt.attempt, member, why)]
        self._out[name] = None
        message = f"{why}: test it, then `tidemill uncordon {name}`"
        return [NodeUnfit(name, node.incarnation, message, rules.straggler_drain_ms)]

    def _may_say(self, name: str, now_ms: int) -> bool:
        acts = self._rules.straggler_drain_ms > 0
        every_ms = self._rules.repeat_ms if acts else self._rules.straggler_tell_ms
        return now_ms - self._said_ms.get(name, _NEVER) >= every_ms

    def _has_room(self, name: str) -> bool:
        """Of those that are out because of us, as of lemons, there are few at a time."""
        most = max(1, len(self._nodes) * self._rules.lemon_percent // 100)
        return name in self._out or len(self._out) < most


def _by_member(gang: _Gang) -> dict[int, int]:
    """What each member's slowest rank says, if it can be told which ranks are whose: all members have as many."""
    each, rest = divmod(gang.ranks, gang.attempt.members)
    if rest or not each:
        return {}
    busy: dict[int, int] = {}
    for rank, (total, count) in gang.busy.items():
        member = rank // each
        busy[member] = max(busy.get(member, 0), total // count)
    return busy
