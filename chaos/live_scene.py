"""What a live scenario is played on, whatever it is made of: a cell that is asked, and faults that are undone in time.

What is struck and how, is said by those who put one up: chaos/live_acts.py on processes, chaos/live_compose.py in containers.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from services.runtime.settings import CellSettings
from services.runtime.trial import READY_WITHIN_S
from simulation.faults import Fault

if TYPE_CHECKING:
    from tidemill import Client


class Cell(Protocol):
    """What is asked of any cell."""

    @property
    def name(self) -> str:
        """As its log has it."""

    @property
    def settings(self) -> CellSettings:
        """Where its log is."""

    def client(self) -> Client:
        """Another connection."""

    def until(
        self, what: str, holds: Callable[[], bool], *, within_s: float = READY_WITHIN_S
    ) -> None:
        """Look again and again until it holds. Raises TrialError."""


CellT_co = TypeVar("CellT_co", bound=Cell, covariant=True)


class Scene(ABC, Generic[CellT_co]):
    """A cell and what is to be undone. `first` is the offset from which its log is the scenario's."""

    first: int = 0
    # What jobs are run by, and what they are told.
    python: str = sys.executable
    environment: Mapping[str, str] = {}
    # Nodes as they are called here, by what scenarios call them, where that differs.
    nodes: Mapping[str, str] = {}

    def __init__(self, cell: CellT_co) -> None:
        self.cell = cell
        self.jobs: list[str] = []
        self._later: list[tuple[float, Callable[[], object]]] = []

    @property
    def rails(self) -> int:
        """Interfaces that ranks talk over: one that all share."""
        return 1

    @abstractmethod
    def strike(self, fault: Fault) -> None:
        """Do it now; what lasts is undone later."""

    @abstractmethod
    def keep(self, folder: Path) -> None:
        """Put there what the processes said."""

    def later(self, after_ms: int, undo: Callable[[], object]) -> None:
        """The end of a fault; 0: it stays until the scenario is over."""
        due = time.monotonic() + after_ms / 1000 if after_ms else float("inf")
        self._later.append((due, undo))

    def undo_due(self) -> None:
        """End what has lasted long enough."""
        now = time.monotonic()
        for each in [each for each in self._later if each[0] <= now]:
            self._later.remove(each)
            each[1]()

    def heal(self) -> None:
        """End all that is left."""
        while self._later:
            _, undo = self._later.pop(0)
            undo()
