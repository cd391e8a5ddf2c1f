"""Progress of jobs: alive without a step for too long is hung.

An attempt is watched while all its members run. What counts is growth: a higher step of any rank, or another phase. A
rank that was not heard of before is growth only when it is further than all.
Time is judged time (see detector.py). Never judges a job that did not ask for it, unless a port under it went down and
nothing shows that it can do without: it began before, and has not gone on for longer than a collective survives.
"""

from __future__ import annotations

import heapq
from typing import Final, TypeAlias

from services.health.messages import AttemptKnown, JobHung, Progressed, Verdict
from services.health.rules import Rules

_NEVER: Final = -(1 << 62)
# Processes of one member, at most; a higher rank is nobody's.
RANKS_PER_MEMBER: Final = 256
# (node, nic name).
Port: TypeAlias = tuple[str, str]


class _Rank:
    __slots__ = ("grew_ms", "phase", "step")

    def __init__(self, step: int, phase: str, grew_ms: int) -> None:
        self.step = step
        self.phase = phase
        self.grew_ms = grew_ms


class _Watch:
    """One attempt. `longest_ms` is the longest that it was ever still between two steps."""

    __slots__ = ("attempt", "began_ms", "grew_ms", "longest_ms", "ranks", "said_ms")

    def __init__(self, attempt: AttemptKnown, now_ms: int) -> None:
        self.attempt = attempt
        self.began_ms = now_ms - attempt.age_ms
        self.grew_ms = now_ms
        self.longest_ms = 0
        self.ranks: dict[int, _Rank] = {}
        self.said_ms = _NEVER


class Progress:
    """Judges every attempt whose members all run."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._watches: dict[str, _Watch] = {}
        # Of gangs, by node and job: a port concerns those of its node alone.
        self._on: dict[str, dict[str, _Watch]] = {}
        # (due, job, attempt): looked at again when due; moved on if it has grown since.
        self._due: list[tuple[int, str, int]] = []

    @property
    def watched(self) -> int:
        """Attempts that run."""
        return len(self._watches)

    # --- what the fold says

    def known(self, attempt: AttemptKnown, now_ms: int) -> None:
        """It runs; it has all of its time from now on."""
        watch = self._watches.get(attempt.job)
        if watch is not None and watch.attempt.attempt == attempt.attempt:
            return
        self.gone(attempt.job)
        watch = self._watches[attempt.job] = _Watch(attempt, now_ms)
        for node in attempt.nodes if attempt.members > 1 else ():
            self._on.setdefault(node, {})[attempt.job] = watch
        if attempt.hang_after_ms > 0:
            due_ms = now_ms + attempt.hang_after_ms
            heapq.heappush(self._due, (due_ms, attempt.job, attempt.attempt))

    def gone(self, job: str) -> None:
        """It runs no more."""
        watch = self._watches.pop(job, None)
        for node in dict.fromkeys(watch.attempt.nodes) if watch else ():
            on = self._on.get(node, {})
            on.pop(job, None)
            if not on:
                self._on.pop(node, None)

    def restart(self, now_ms: int) -> None:
        """Nobody could be heard until now."""
        for watch in self._watches.values():
            watch.grew_ms = now_ms

    # --- telemetry

    def progressed(self, report: Progressed, now_ms: int) -> None:
        """A rank said how far it is; of another attempt it says nothing."""
        watch = self._watches.get(report.job)
        if watch is None or watch.attempt.attempt != report.attempt:
            return
        if not 0 <= report.rank < watch.attempt.members * RANKS_PER_MEMBER:
            return
        rank = watch.ranks.get(report.rank)
        if rank is None:
            grows = all(report.step > known.step for known in watch.ranks.values())
            watch.ranks[report.rank] = _Rank(report.step, report.phase, now_ms)
            if not grows:
                return
        elif report.step > rank.step or report.phase != rank.phase:
            rank.step, rank.phase, rank.grew_ms = max(report.step, rank.step), report.phase, now_ms
            watch.longest_ms = max(watch.longest_ms, now_ms - watch.grew_ms)
        else:
            return
        watch.grew_ms = now_ms

    # --- time

    def tick(self, now_ms: int) -> list[Verdict]:
        """The hung ones."""
        verdicts: list[Verdict] = []
        while self._due and self._due[0][0] <= now_ms:
            _, job, number = heapq.heappop(self._due)
            watch = self._watches.get(job)
            if watch is None or watch.attempt.attempt != number:
                continue
            due_ms = watch.grew_ms + watch.attempt.hang_after_ms
            if due_ms <= now_ms:
                verdicts += self._hung(watch, now_ms)
                due_ms = now_ms + self._rules.repeat_ms
            heapq.heappush(self._due, (due_ms, job, number))
        return verdicts

    def stands_still_on(self, port: Port, down_ms: int, now_ms: int) -> bool:
        """Whether a gang with a member there made no step since the port went down, though it used to."""
        return bool(self._still_on(port, down_ms, now_ms))

    def stalled_on(self, port: Port, down_ms: int, now_ms: int) -> list[Verdict]:
        """Those gangs are hung, because of it."""
        return [
            verdict
            for watch in self._still_on(port, down_ms, now_ms)
            for verdict in self._hung(watch, now_ms, port)
        ]

    def _still_on(self, port: Port, down_ms: int, now_ms: int) -> list[_Watch]:
        on = self._on.get(port[0], {}).values()
        return [watch for watch in on if self._waits_for_port(watch, down_ms, now_ms)]

    def _waits_for_port(self, watch: _Watch, down_ms: int, now_ms: int) -> bool:
        goes_without = watch.grew_ms - down_ms > self._rules.port_down_ms
        if not watch.ranks or watch.began_ms > down_ms or goes_without:
            return False
        still_ms = now_ms - max(watch.grew_ms, down_ms)
        # One step may take longer than usual; twice the longest so far is no step any more.
        return still_ms >= max(self._rules.port_stall_ms, 2 * watch.longest_ms)

    def _hung(self, watch: _Watch, now_ms: int, port: Port = ("", "")) -> list[Verdict]:
        if now_ms - watch.said_ms < self._rules.repeat_ms:
            return []
        watch.said_ms = now_ms
        known, silent_ms = watch.attempt, now_ms - watch.grew_ms
        step = max((rank.step for rank in watch.ranks.values()), default=-1)
        first = min(
            watch.ranks,
            key=lambda number: (watch.ranks[number].grew_ms, watch.ranks[number].step, number),
            default=0,
        )
        return [JobHung(known.job, known.attempt, silent_ms, step, first, *port)]
