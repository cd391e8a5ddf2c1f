"""The detector: telemetry and what the log says in, verdicts out. Pure: no clock, I/O or randomness.

Judged time is the time during which a node could have been heard by us. It goes on only when a gateway is heard on
every partition of the beats (one whose broker is gone brings none while others go on), and leaves out what passed while
we did not look (a gap between two calls: a stall, a suspended machine). When gateways come back after a while every
deadline starts anew, for agents need time to find them. So our own trouble is never taken for theirs, and one node of a
cell of one can still be lost. Verdicts are idempotent and are said again while the log does not show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from services.health.lemons import Lemons
from services.health.messages import (
    AttemptBroken,
    AttemptGone,
    AttemptKnown,
    Beat,
    IncidentKnown,
    Input,
    Known,
    NodeForgotten,
    NodeKnown,
    PathHeard,
    Progressed,
    Signalled,
    Verdict,
)
from services.health.parts import Parts
from services.health.progress import Progress
from services.health.rules import Rules
from services.health.silence import Silence
from services.health.stragglers import Stragglers
from services.health.table import Table


class Detector:
    """Judges one cell. `now_ms` is a clock that only grows, suspended time included."""

    def __init__(self, rules: Rules, table: Table, now_ms: int) -> None:
        self.silence = Silence(rules)
        self.progress = Progress(rules)
        self.parts = Parts(rules, table, self.progress)
        self.lemons = Lemons(rules)
        self.stragglers = Stragglers(rules)
        self._rules = rules
        self._unseen_ms = 0
        self._looked_ms = now_ms
        self._held_back = False
        # When each partition of the beats last brought a batch.
        self._path_at_ms: dict[int, int] = {}
        self.stalls = 0
        self.restarts = 0

    @property
    def path_heard(self) -> bool:
        """Whether a gateway was ever heard; before, nobody is judged."""
        return bool(self._path_at_ms)

    def observe(self, said: Input, now_ms: int) -> list[Verdict]:
        """Take one input. What can be said at once is; the rest at the next tick."""
        return self.observe_all((said,), now_ms)

    def observe_all(self, said: Sequence[Input], now_ms: int) -> list[Verdict]:
        """Take what came at the same time, in order."""
        at_ms = self._look(now_ms)
        beat, verdicts = self.silence.beat, list[Verdict]()
        for each in said:
            if not isinstance(each, Beat):  # By far the most are.
                self._take(each, at_ms)
            elif found := beat(each, at_ms):
                verdicts += found
        return verdicts

    def _take(self, said: PathHeard | Progressed | Signalled | Known, at_ms: int) -> None:
        match said:
            case PathHeard(partition=partition):
                self._hear(partition, at_ms)
            case Progressed():
                self.progress.progressed(said, at_ms)
                self.stragglers.progressed(said)
            case Signalled():
                self.parts.signalled(said, at_ms)
            case NodeKnown():
                self.silence.known(said, at_ms)
                self.parts.known(said, at_ms)
                self.lemons.known(said)
                self.stragglers.known(said)
            case NodeForgotten(node=node):
                self.silence.forgotten(node)
                self.parts.forgotten(node)
                self.lemons.forgotten(node)
                self.stragglers.forgotten(node)
            case AttemptKnown():
                self.progress.known(said, at_ms)
                self.stragglers.attempt_known(said, at_ms)
            case AttemptGone(job=job):
                self.progress.gone(job)
                self.stragglers.gone(job)
            case AttemptBroken():
                # What breaks during an incident breaks because of it.
                if not self.silence.incident:
                    self.lemons.struck(said, at_ms)
            case IncidentKnown(incident=incident):
                self.silence.incident_known(incident, at_ms)
            case _:
                assert_never(said)

    def tick(self, now_ms: int) -> list[Verdict]:
        """Judge; call it about once a second, when all telemetry that there is has been observed."""
        self._look(now_ms)
        if not self.path_heard:
            return []
        at_ms = min(self._path_at_ms.values())
        verdicts = self.silence.tick(at_ms, congested=self.parts.look(at_ms))
        if self.silence.incident:
            self._held_back = True  # What hangs during an incident hangs because of it.
            return verdicts
        if self._held_back:
            self._held_back = False
            self.progress.restart(at_ms)
            self.stragglers.restart(at_ms)
        return [
            *verdicts,
            *self.parts.tick(at_ms),
            *self.progress.tick(at_ms),
            *self.lemons.tick(at_ms),
            *self.stragglers.tick(at_ms),
        ]

    def _look(self, now_ms: int) -> int:
        """The judged time of a call: what passed since the last one counts only if we were looking."""
        gap_ms = now_ms - self._looked_ms
        self._looked_ms = now_ms
        if gap_ms > self._rules.own_gap_ms:
            self._unseen_ms += gap_ms
            self.stalls += 1
        return now_ms - self._unseen_ms

    def _hear(self, partition: int, at_ms: int) -> None:
        """The path to the agents is there; `at_ms` is judged time, but for the path itself."""
        before_ms = self._path_at_ms.get(partition)
        self._path_at_ms[partition] = at_ms
        if before_ms is None or at_ms - before_ms > self._rules.path_gap_ms:
            self.restarts += 1
            self.silence.restart(at_ms)
            self.progress.restart(at_ms)
            self.stragglers.restart(at_ms)
