"""Reports of one node on their way to their topic, in the order sent. Acknowledged when durable, never before.

One write at a time: a report is on its way only when all before it are stored, so a failed write leaves no gap behind
a later one. Sending one twice is harmless, the leader takes the first. With its stream a queue ends: the agent repeats
what was not acknowledged, so nothing of it is kept here however long the log is away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from services.gateway.effects import Effects, Now
from services.gateway.pending import RETRY_AFTER_MS
from services.gateway.refusal import Refusal, Status
from services.runtime.ports import Outgoing, PortError
from statemachines.values import NodeId

BEHIND_MAX: Final = 10_000
# A report of the gateway itself, which nobody waits for.
OWN: Final = -1


class ReportQueue:
    """`acked` is told the sequence of each report that is durable."""

    def __init__(self, effects: Effects, node: NodeId, acked: Callable[[int], None]) -> None:
        self._effects = effects
        self._node = node
        self._acked = acked
        self._waiting: deque[tuple[int, Outgoing]] = deque()
        self._publishing = 0
        self._retrying = False
        self._closed = False

    def close(self) -> None:
        """Nobody hears an acknowledgement any more: what is not on its way is not written."""
        self._closed = True
        self._waiting.clear()

    def add(self, sequence: int, record: Outgoing) -> None:
        """One more; raises Refusal when too many wait."""
        if len(self._waiting) >= BEHIND_MAX:
            raise Refusal(
                Status.RESOURCE_EXHAUSTED,
                "reports_behind",
                f"{BEHIND_MAX} reports of {self._node} wait for the log; attach again and repeat them",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._waiting.append((sequence, record))
        if not self._publishing and not self._retrying:
            self._publish()

    def _publish(self) -> None:
        self._publishing = len(self._waiting)
        self._effects.publish([record for _, record in self._waiting], self._written)

    def _written(self, error: PortError | None, now: Now) -> None:
        if self._closed:
            return
        count, self._publishing = self._publishing, 0
        if error is not None:
            self._retrying = True
            self._effects.at(now.mono_ms + RETRY_AFTER_MS, self._retry)
            return
        for sequence in [self._waiting.popleft()[0] for _ in range(count)]:
            if sequence != OWN:
                self._acked(sequence)
        if self._waiting:
            self._publish()

    def _retry(self, _now: Now) -> None:
        self._retrying = False
        if not self._closed:
            self._publish()
