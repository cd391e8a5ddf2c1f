"""A simulated process: started, crashed, paused and thawed; its work is called when something woke it.

What it holds in memory is gone with a crash. A crash can strike at any port call, which is between any two lines of a
driver. While paused, time passes and nothing of it happens.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVarTuple

from simulation.kernel import US_PER_MS, Kernel

Given = TypeVarTuple("Given")


class Crash(BaseException):
    """The process is gone, here and now."""


class SimClock:
    """Clocks of one host: its wall goes `ahead_ms` before virtual time, and can be stepped."""

    def __init__(self, kernel: Kernel, *, ahead_ms: int) -> None:
        self._kernel = kernel
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        """See Clock."""
        return self.ahead_ms + self._kernel.now_ms

    def monotonic_ms(self) -> int:
        """See Clock."""
        return self._kernel.now_ms


class Process(ABC):
    """One process. Subclasses say how it begins and what a turn is."""

    def __init__(self, kernel: Kernel, name: str, *, crash_ppm: int = 0) -> None:
        self.kernel = kernel
        self.name = name
        self.up = False
        self.paused = False
        self._thaws_us = 0
        self.crashes = 0
        self.crash_ppm = crash_ppm
        # Crash at the so many-th point from now on; 0: not so.
        self.crash_in = 0
        # Crash when this place is reached next; empty: nowhere.
        self.crash_at = ""
        self.chance = kernel.chance(f"process {name}")
        # When it has its next turn, if it has one.
        self._wake_us: int | None = None
        self._life = 0
        self._restart_ms = (200, 2_000)

    # --- life

    def start(self) -> None:
        """Begin, as a supervisor does; an end while starting is answered by another start."""
        self.up = True
        self._life += 1
        self.guarded(self.begin)
        if self.up:
            self.wake(0)

    def crash(self, restart_after_ms: int | None = None) -> None:
        """SIGKILL; a supervisor starts it again, by default soon."""
        if not self.up:
            return
        self.up = False
        self.crash_in, self.crash_at = 0, ""
        self.paused, self._thaws_us = False, 0  # SIGKILL reaches the stopped as well.
        self.crashes += 1
        self._life += 1
        self._wake_us = None
        self.kernel.note(f"{self.name} crashes")
        self.ended()
        delay_ms = (
            self.chance.randint(*self._restart_ms) if restart_after_ms is None else restart_after_ms
        )
        self.kernel.after(delay_ms * US_PER_MS, self.start)

    def pause(self, duration_ms: int) -> None:
        """SIGSTOP for a while; of two at once the longer counts."""
        thaws_us = self.kernel.now_us + duration_ms * US_PER_MS
        if not self.up or thaws_us <= self._thaws_us:
            return
        self.paused, self._thaws_us = True, thaws_us
        self.kernel.note(f"{self.name} pauses {duration_ms}")
        self.kernel.at(thaws_us, self._thaw)

    def _thaw(self) -> None:
        if self._thaws_us != self.kernel.now_us:
            return  # It was killed, or is paused for longer.
        self.paused, self._thaws_us = False, 0
        self.thawed()
        if self.up:
            self.wake(0)

    # --- work

    def wake(self, after_ms: int) -> None:
        """Have a turn by then at the latest."""
        kernel, before_us = self.kernel, self._wake_us
        at_us = kernel.now_us + after_ms * US_PER_MS
        if before_us is None or at_us < before_us:
            self._wake_us = at_us
            kernel.post(at_us, self._turn)

    def _turn(self) -> None:
        if self._wake_us != self.kernel.now_us:
            return  # Since then an earlier one was wanted.
        self._wake_us = None
        if self.up and not self.paused:
            self.guarded(self.turn)

    def guarded(self, work: Callable[[*Given], None], *given: *Given) -> None:
        """Do work of this process; a crash inside ends it. What else is raised is a bug, and ends it too."""
        try:
            work(*given)
        except Crash:
            self.crash()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.kernel.troubles.append(
                f"bug: {self.name} raised {type(error).__name__} at {where.filename}:{where.lineno}: {error}"
            )
            self.crash()

    def later(self, after_ms: int, work: Callable[[*Given], None], *given: *Given) -> None:
        """Do work of this life of the process later; dropped when it has crashed, delayed while it is paused."""
        due = partial(self._later, self._life, work, given)
        self.kernel.post(self.kernel.now_us + after_ms * US_PER_MS, due)

    def _later(self, life: int, work: Callable[[*Given], None], given: tuple[*Given]) -> None:
        if life != self._life or not self.up:
            return
        if self.paused:
            self.kernel.after(50 * US_PER_MS, partial(self._later, life, work, given))
            return
        self.guarded(work, *given)

    def point(self, where: str) -> None:
        """A place where it may crash."""
        if self.crash_in:
            self.crash_in -= 1
            if not self.crash_in:
                raise Crash
        if self.crash_at and where == self.crash_at:
            raise Crash
        if self.crash_ppm and self.chance.randrange(1_000_000) < self.crash_ppm:
            raise Crash

    @abstractmethod
    def begin(self) -> None:
        """What its main does before the first turn."""

    @abstractmethod
    def turn(self) -> None:
        """One piece of work; wakes itself for the next."""

    def ended(self) -> None:  # noqa: B027 - most need nothing
        """It is gone: others notice what they would notice."""

    def thawed(self) -> None:  # noqa: B027 - most need nothing
        """It runs again after a pause."""
