"""A scheduler: recovers, stands by, leads, and ends. Turns weather and bugs into the exits that exits.py documents.

`turn` does one short piece of work, so that a service calls it in a loop and a simulation calls it when it likes.
Weather (PortError) leaves `turn` with nothing half done: calling it again is the retry. Never reads a clock or sleeps
but through its ports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.runtime.codec import UnknownFactError
from services.runtime.ports import DamagedError, InputGapError
from services.runtime.recovery import recover
from services.scheduler.exits import (
    FoldBrokenError,
    InputGapExitError,
    LogDamagedError,
    LogNewerError,
)
from services.scheduler.phases import Leading, Opening, Phase, Ports, Rules, Standby, Watch
from statemachines.cluster import Cluster


class Scheduler:
    """One candidate for the lead of a cell."""

    def __init__(self, cell: str, ports: Ports, rules: Rules, watch: Watch) -> None:
        with _documented():
            self.recovered = recover(ports.log, ports.snapshots, cell, track=True)
        self._phase: Phase = Standby(ports, rules, watch, self.recovered.cluster)

    @property
    def leads(self) -> bool:
        """Whether its term's opening has been accepted."""
        return isinstance(self._phase, Leading)

    @property
    def phase(self) -> str:
        """standby, opening or leading."""
        match self._phase:
            case Leading():
                return "leading"
            case Opening():
                return "opening"
            case _:
                return "standby"

    @property
    def cluster(self) -> Cluster:
        """The state as far as this scheduler knows it; leading, with what it has decided and not yet read back."""
        return self._phase.cluster

    def turn(self, timeout_s: float) -> None:
        """One short piece of work. Raises PortError (call again), or a SchedulerExitError: end the process."""
        with _documented():
            self._phase = self._phase.turn(timeout_s)

    def hand_over(self) -> None:
        """Stop cleanly: what was decided is in the log, another may lead at once. Raises as `turn` does."""
        with _documented():
            self._phase.hand_over()


@contextmanager
def _documented() -> Iterator[None]:
    """What a supervisor and an operator can make something of."""
    try:
        yield
    except InputGapError as error:
        raise InputGapExitError(str(error)) from error
    except DamagedError as error:
        raise LogDamagedError(str(error)) from error
    except UnknownFactError as error:
        raise LogNewerError(str(error)) from error
    except AssertionError as error:  # IllegalTransition is one.
        raise FoldBrokenError(str(error)) from error
