"""Where the time of a job went: each millisecond of it under one word. Only adds up; what is lost is moved, not made."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum, unique

import msgspec


@unique
class Phase(StrEnum):
    """What a job does now."""

    QUEUEING = "queueing"
    RESTART = "restart"  # Stopping, starting, loading, until the first new step.
    RUN = "run"
    CHECKPOINT = "checkpoint"
    DETECTION = "detection"  # It makes no progress, and nobody knows.
    HELD = "held"


class Account:
    """Milliseconds of one job by what they went to; `useful` is progress that still stands."""

    def __init__(self, phase: Phase = Phase.QUEUEING) -> None:
        self.phase = phase
        self.speed = 1.0
        self.useful_ms = 0
        self.lost_ms: Counter[str] = Counter()
        # What was lost by falling back, and when; of the time at work, how much there was to lose (ms x ms).
        self.fallen: list[tuple[int, int]] = []
        self._at_risk = 0.0
        self._at_work_ms = 0
        self._saved_ms = 0
        self._ran = False
        self._since_ms = 0
        self._sake = ""

    def spend(self, now_ms: int) -> None:
        """Book the time since the last call under the present phase."""
        spent_ms, self._since_ms = now_ms - self._since_ms, now_ms
        assert spent_ms >= 0, "time goes forward"
        if self.phase in (Phase.RUN, Phase.CHECKPOINT):
            grows = spent_ms * self.speed if self.phase is Phase.RUN else 0.0
            self._at_risk += spent_ms * (self.useful_ms - self._saved_ms + grows / 2)
            self._at_work_ms += spent_ms
        if self.phase is Phase.RUN:
            useful_ms = round(spent_ms * self.speed)
            self.useful_ms += useful_ms
            self.lost_ms["straggler"] += spent_ms - useful_ms
        elif self.phase is Phase.CHECKPOINT:
            self.lost_ms["checkpoint"] += spent_ms
        else:
            self.lost_ms[self._sake or self.phase.value] += spent_ms

    def enter(self, now_ms: int, phase: Phase) -> None:
        """What it does from now on."""
        self.spend(now_ms)
        self.phase = phase
        if phase is Phase.RUN:
            self._sake, self._ran = "", True

    def saved(self, step_ms: int) -> None:
        """Progress until here is safe."""
        self._saved_ms = step_ms

    def interrupt_for(self, sake: str) -> None:
        """Until it runs again, what it loses is lost for the sake of this."""
        self._sake = sake

    def fall_back(self, to_ms: int) -> None:
        """It goes on from here: later progress was for nothing."""
        assert to_ms <= self.useful_ms, "nobody goes on from where it has not been"
        self.lost_ms[self._sake or "rollback"] += self.useful_ms - to_ms
        if self._ran:
            self.fallen.append((self._since_ms, self.useful_ms - to_ms))
        self._ran = False
        self.useful_ms = self._saved_ms = to_ms

    @property
    def at_risk_ms(self) -> float:
        """What there was to lose, averaged over the time at work: what a fall costs on average."""
        return self._at_risk / self._at_work_ms if self._at_work_ms else 0.0

    @property
    def productive_ms(self) -> int:
        """What counts for ETTR: progress that stands, at whatever speed it was made, as in the literature."""
        return self.useful_ms + self.lost_ms["straggler"]

    @property
    def total_ms(self) -> int:
        """All that was booked."""
        return self.useful_ms + sum(self.lost_ms.values())


class JobResult(msgspec.Struct, frozen=True):
    """One job at the end. Hours are GPU-hours."""

    job: str
    nodes: int
    gpu_hours: float
    useful_gpu_hours: float
    lost_gpu_hours: dict[str, float]
    attempts: int

    @property
    def ettr(self) -> float:
        """Productive share of the time."""
        return (self.useful_gpu_hours + self.lost_gpu_hours.get("straggler", 0.0)) / self.gpu_hours


class Result(msgspec.Struct, frozen=True):
    """What came of a history. Hours are GPU-hours of all jobs; `spells` are the big job's ETTR, a quarter of a day each.

    `luck` is the share of each spell that falling back cost beyond its mean: how long before each fault it happened to save.
    """

    arm: str
    jobs: tuple[JobResult, ...]
    spells: tuple[float, ...]
    luck: tuple[float, ...]
    lost_gpu_hours: dict[str, float]
    restarts: int
    evictions: dict[str, int]
    interruptions: int  # Of the big job, by faults.
    by_hardware: int  # Of these, those whose cause is hardware.
    spares: int
    out_mean: float
    out_max: int
    replaced: int  # Lemons.
    faults: dict[str, int]

    @property
    def ettr(self) -> float:
        """Of the big job."""
        return self.jobs[0].ettr

    @property
    def cascade_share(self) -> float:
        """Of all that was lost, what jobs lost by making room for a more important one."""
        lost = sum(self.lost_gpu_hours.values())
        return self.lost_gpu_hours.get("cascade", 0.0) / lost if lost else 0.0
