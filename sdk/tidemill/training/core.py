"""What a trainer owes its cell: reports in order, progress now and then, an answer to an ask. No I/O, no clock.

The shell (session.py) tells it what happened and when, asks it what to send next, and tells it how that went. At most
one call is under way. Checkpoint reports are kept until they are answered; of progress the oldest goes first.
This file must never block, and never decide anything that the cell decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidemill.v1 import reports_pb2 as reports_pb
from tidemill.v1 import telemetry_pb2 as telemetry_pb

NEVER: Final = 2**62
US_PER_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Ask:
    """The agent's ask file: the newest ask, the step at which all ranks save (0: not agreed yet), and what follows."""

    ask: int = 0
    at_step: int = 0
    stop_after_save: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound and period of a session."""

    progress_every_ms: int = 1_000
    # Ranks other than 0 only show that they are alive.
    other_ranks_every_ms: int = 5_000
    progress_kept: int = 64
    advice_every_ms: int = 15_000
    first_backoff_ms: int = 250
    backoff_cap_ms: int = 15_000
    # From an answer until every rank has read it: two hops, a decision, a poll.
    lead_ms: int = 2_000


@dataclass(frozen=True, slots=True)
class SendReport:
    """A report of the spool. Must be answered before the next is sent: their order is part of what they say."""

    key: int
    report: reports_pb.Report


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Rank 0's answer to an ask. Made when it is sent, since it names a step soon to come."""

    ask: int
    at_step: int
    report: reports_pb.Report


@dataclass(frozen=True, slots=True)
class SendProgress:
    """Steps done; losing them costs nothing."""

    records: tuple[telemetry_pb.Progress, ...]


@dataclass(frozen=True, slots=True)
class AskAdvice:
    """Ask how often to save, and what may be removed."""


Call: TypeAlias = SendReport | SendAnswer | SendProgress | AskAdvice


@dataclass(slots=True)
class StepTime:
    """Mean time of a step, smoothed; while a long step runs, at least its age so far."""

    steps: int = 0
    since_ms: int = 0
    mean_us: int = 0

    def observe(self, steps: int, now_ms: int) -> None:
        """`steps` counts those done since the start."""
        if not self.since_ms:
            self.since_ms, self.steps = now_ms, steps
        elapsed_us, done = (now_ms - self.since_ms) * US_PER_MS, steps - self.steps
        if done > 0 and elapsed_us > 0:
            newest = elapsed_us // done
            self.mean_us = (self.mean_us * 3 + newest) // 4 if self.mean_us else newest
            self.steps, self.since_ms = steps, now_ms
        elif elapsed_us > self.mean_us:
            self.mean_us = elapsed_us


def lead_steps(step_us: int, lead_ms: int) -> int:
    """Steps from the current one to the first that begins at least `lead_ms` from now."""
    if step_us <= 0:
        return 2
    return 2 + lead_ms * US_PER_MS // step_us


@dataclass(slots=True)
class TrainerCore:
    """The state of one rank's conversation with its cell."""

    job: str
    attempt: int
    rank: int
    limits: Limits = field(default_factory=Limits)
    step: int = 0
    advised_interval_ms: int = 0
    durable_step: int = 0
    released: tuple[int, ...] = ()
    refused: int = 0
    dropped_progress: int = 0
    _ask: Ask = field(default_factory=Ask)
    _answered: Ask = field(default_factory=Ask)
    _attempted_save: int = -1
    _misses: int = 0
    _time: StepTime = field(default_factory=StepTime)
    _reports: deque[SendReport] = field(default_factory=deque)
    _progress: deque[telemetry_pb.Progress] = field(default_factory=deque)
    _last_seen: tuple[int, str] = (-1, "")
    _last_busy: tuple[int, int] = (0, 0)
    _progress_due_ms: int = 0
    _advice_due_ms: int = 0
    _quiet_until_ms: int = 0
    _failures: int = 0

    # ------------------------------------------------------------ what happened

    def observe_ask(self, ask: Ask) -> None:
        """The ask file as it is now; an older ask than the known one is ignored."""
        if ask.ask < self._ask.ask:
            return
        if ask.ask > self._ask.ask:
            self._misses = 0
        self._ask = ask

    def observe_steps(
        self,
        step: int,
        steps: int,
        now_ms: int,
        *,
        at_ms: int,
        phase: str,
        metrics: Mapping[str, float],
        busy_us: int = 0,
    ) -> None:
        """A look at the training loop: current step, steps done since the start, what it is busy with.

        `at_ms` is the wall clock, for people; `now_ms` only grows. Nothing new is nothing to report: a side thread
        that goes on says nothing about a loop that does not. `busy_us`: of all steps, the time not spent waiting for
        others; 0: not measured.
        """
        self.step = step
        self._time.observe(steps, now_ms)
        if now_ms < self._progress_due_ms or self._last_seen == (steps, phase):
            return
        every = self.limits.other_ranks_every_ms if self.rank else self.limits.progress_every_ms
        self._progress_due_ms, self._last_seen = now_ms + every, (steps, phase)
        if len(self._progress) >= self.limits.progress_kept:
            self._progress.popleft()
            self.dropped_progress += 1
        record = telemetry_pb.Progress(
            job=self.job, attempt=self.attempt, rank=self.rank, step=step, at_ms=at_ms, phase=phase
        )
        record.step_us = self._time.mean_us
        record.busy_us = self._mean_busy_us(steps, busy_us)
        record.metrics.update(metrics)
        self._progress.append(record)

    def _mean_busy_us(self, steps: int, busy_us: int) -> int:
        """Of the steps since the last report. The first one has nothing to be compared with."""
        (steps_before, busy_before), self._last_busy = self._last_busy, (steps, busy_us)
        done = steps - steps_before
        return max(busy_us - busy_before, 0) // done if done > 0 and busy_before else 0

    def save_attempted(self, step: int) -> None:
        """This rank has written, or failed to write, its part of the checkpoint of `step`."""
        self._attempted_save = max(self._attempted_save, step)

    def add_report(self, key: int, report: reports_pb.Report) -> None:
        """A report now in the spool."""
        self._reports.append(SendReport(key, report))

    def add_spooled(self, spooled: Iterable[tuple[int, reports_pb.Report]]) -> None:
        """Reports that an earlier process of this run left unsent; they go first."""
        self._reports.extendleft(reversed([SendReport(key, report) for key, report in spooled]))

    # ------------------------------------------------------------ what the loop asks

    @property
    def save_at(self) -> int:
        """The step at which every rank saves because it was asked to; -1: none."""
        return self._ask.at_step if self._ask.at_step > 0 else -1

    @property
    def stop_at(self) -> int:
        """Training stops once it has tried to save a step at or above this one."""
        return self._ask.at_step if self._ask.at_step > 0 and self._ask.stop_after_save else NEVER

    @property
    def owes_reports(self) -> int:
        """Checkpoint reports not answered yet."""
        return len(self._reports)

    # ------------------------------------------------------------ what to send

    def due(self, now_ms: int) -> Call | None:
        """What to send now: an answer first, then reports in order, progress, and at last advice."""
        if now_ms < self._quiet_until_ms:
            return None
        if self._owes_answer():
            return self._answer()
        if self._reports:
            return self._reports[0]
        if self._progress:
            return SendProgress(tuple(self._progress))
        if self.rank == 0 and now_ms >= self._advice_due_ms:
            return AskAdvice()
        return None

    def next_due_ms(self, now_ms: int) -> int:
        """When to ask `due` again if nothing happens before."""
        if self._owes_answer() or self._reports or self._progress:
            return max(now_ms, self._quiet_until_ms)
        advice = self._advice_due_ms if self.rank == 0 else NEVER
        return max(now_ms, self._quiet_until_ms, advice)

    def sent(self, call: Call, now_ms: int) -> None:
        """The gateway took it."""
        self._failures, self._quiet_until_ms = 0, 0
        match call:
            case SendReport(key=key, report=report):
                self._forget(key)
                if report.WhichOneof("kind") == "saved":
                    self._advice_due_ms = min(self._advice_due_ms, now_ms + 2_000)
            case SendAnswer():
                self._note_answer(call)
            case SendProgress(records=records):
                self._forget_progress(records)
            case AskAdvice():
                self._advice_due_ms = now_ms + self.limits.advice_every_ms

    def advised(self, interval_ms: int, durable_step: int, released: Iterable[int]) -> None:
        """The answer to AskAdvice."""
        self.advised_interval_ms, self.durable_step = interval_ms, durable_step
        self.released = tuple(sorted(released))

    def not_sent(self, call: Call, now_ms: int, *, refused: bool, chance: float = 1.0) -> None:
        """The gateway is away (wait, doubling, scaled by `chance` in 0.5..1), or refused it for good."""
        if refused:
            self.refused += 1
            match call:
                case SendReport(key=key):
                    self._forget(key)
                case SendAnswer():
                    self._note_answer(call)
                case SendProgress(records=records):
                    self._forget_progress(records)
                case AskAdvice():
                    self._advice_due_ms = now_ms + self.limits.advice_every_ms
            return
        wait_ms = min(
            self.limits.backoff_cap_ms, self.limits.first_backoff_ms << min(self._failures, 16)
        )
        self._failures += 1
        self._quiet_until_ms = now_ms + int(wait_ms * chance)

    # ------------------------------------------------------------ asks

    def _owes_answer(self) -> bool:
        """Rank 0 answers each ask once, and again when the step that it named went by without a save."""
        if self.rank or not self._ask.ask:
            return False
        if not self._again and self._ask.at_step == 0:
            return True
        named = max(self._answered.at_step if self._again else 0, self._ask.at_step)
        return self.step > named > self._attempted_save

    @property
    def _again(self) -> bool:
        return self._answered.ask == self._ask.ask

    def _answer(self) -> SendAnswer:
        """Each miss doubles the lead."""
        lead_ms = self.limits.lead_ms << min(self._misses, 6)
        at_step = self.step + lead_steps(self._time.mean_us, lead_ms)
        answer = reports_pb.SaveAnswered(
            job=self.job, attempt=self.attempt, ask=self._ask.ask, at_step=at_step
        )
        return SendAnswer(self._ask.ask, at_step, reports_pb.Report(save_answered=answer))

    def _note_answer(self, call: SendAnswer) -> None:
        self._misses = self._misses + 1 if self._answered.ask == call.ask else 1
        self._answered = Ask(call.ask, call.at_step)

    # ------------------------------------------------------------ bookkeeping

    def _forget(self, key: int) -> None:
        if self._reports and self._reports[0].key == key:
            self._reports.popleft()

    def _forget_progress(self, records: tuple[telemetry_pb.Progress, ...]) -> None:
        """Those sent may have been dropped, and others added, while the call was under way."""
        gone = {id(record) for record in records}
        self._progress = deque(record for record in self._progress if id(record) not in gone)
