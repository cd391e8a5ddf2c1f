"""One node as physics: what is wrong with it, whoever knows. Holds; decides nothing."""

from __future__ import annotations

from simulation.goodput.faults import Event


class Machine:
    """`bad`: a fault that is still in it; `dead`: silent, and nobody knows; `out`: in repair; `slow`: speeds, if any."""

    __slots__ = ("bad", "dead", "lemon", "number", "out", "slow")

    def __init__(self, number: int, *, lemon: bool) -> None:
        self.number = number
        self.lemon = lemon
        self.bad: Event | None = None
        self.dead = False
        self.out = False
        self.slow: list[float] = []

    @property
    def well(self) -> bool:
        """Whether a job may begin on it without a second thought."""
        return not self.dead and self.bad is None and not self.slow
