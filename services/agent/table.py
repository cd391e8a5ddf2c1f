"""The run table of a node: each run the agent took on and how far it got, and the state kept across restarts.

It never talks to a process; the core moves entries, the store keeps them.
"""

from __future__ import annotations

from enum import StrEnum, unique

import msgspec

from services.agent.failures import Failure
from services.agent.orders import Order, Position
from services.agent.outbox import Report
from statemachines.values import Evidence, RunId


@unique
class Phase(StrEnum):
    """How far a run got on this node.

    pending -> starting -> running -> (stopping -> killing) -> (probing) -> ended
    strange -> ended: ordered as if it ran here, but unknown to this table.
    """

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    PROBING = "probing"
    STRANGE = "strange"
    ENDED = "ended"


# Something of the run may live here.
LIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.KILLING, Phase.STRANGE})


class Ending(msgspec.Struct, frozen=True, gc=False):
    """How a run ended and how that is known."""

    evidence: Evidence
    exit_code: int = 0
    signal: int = 0
    message: str = ""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One run. `order` is the newest order seen for it, kept when the order is gone from the set."""

    order: Order
    phase: Phase
    # The end is reported as self-fenced: this agent was cut off for too long.
    fenced: bool = False
    # While probing, the end that will be reported.
    ending: Ending | None = None
    # Sequence of the report of the end; acknowledged once the outbox no longer has it.
    end_report: int = 0

    @property
    def run(self) -> RunId:
        """The run's id."""
        return self.order.run


class AgentState(msgspec.Struct, frozen=True):
    """All that the agent must know after a restart. Stored whole, or not at all."""

    node: str
    boot_id: str
    incarnation: int = 1
    at: Position = Position()
    # Highest sequence given to a report.
    sequence: int = 0
    orders: tuple[Order, ...] = ()
    entries: tuple[Entry, ...] = ()
    reports: tuple[Report, ...] = ()
    # Of this boot.
    failures: tuple[Failure, ...] = ()
