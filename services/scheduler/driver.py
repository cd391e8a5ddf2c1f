"""A scheduler: recovers, stands by, leads, and ends.

`turn` does one short piece of work, so that a service calls it in a loop and a simulation calls it when it likes.
Weather leaves `turn` with nothing half done: calling it again is the retry. Never reads a clock or sleeps but through
its ports. What a supervisor makes of each way to end is in services/runtime/exits.py.
"""

from __future__ import annotations

from services.runtime.recovery import recover
from services.scheduler.phases import Leading, Opening, Phase, Ports, Rules, Standby, Watch
from statemachines.cluster import Cluster


class Scheduler:
    """One candidate for the lead of a cell."""

    def __init__(self, cell: str, ports: Ports, rules: Rules, watch: Watch) -> None:
        """Recover the state; raises as `turn` does."""
        self.recovered = recover(ports.log, ports.snapshots, cell, track=True)
        recovered = self.recovered
        self._phase: Phase = Standby(
            ports, rules, watch, recovered.cluster, recovered.snapshot_offset
        )

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

    def due_in_ms(self) -> int | None:
        """When a leader's turn has something to do though nothing comes in; None: never, or it does not lead."""
        return self._phase.due_in_ms() if isinstance(self._phase, Leading) else None

    def turn(self, timeout_s: float) -> None:
        """One short piece of work, waiting at most that long.

        Raises PortError: weather, call again; but of its kinds InputGapError and DamagedError end the process, as do
        SchedulerExitError, codec.UnknownFactError (a newer version leads) and AssertionError (a bug).
        """
        self._phase = self._phase.turn(timeout_s)

    def hand_over(self) -> None:
        """Stop cleanly: what was decided is in the log, another may lead at once. Raises as `turn` does."""
        self._phase.hand_over()
