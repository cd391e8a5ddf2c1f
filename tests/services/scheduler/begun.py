"""Cells that several tests begin with, and what they look at in the end."""

from __future__ import annotations

from statemachines import facts
from tests.services.scheduler.cell import Cell, spec


def one(**rest: object) -> Cell:
    """A cell on which job `a` of one member runs."""
    cell = Cell()
    cell.nodes("n1")
    cell.running("a", spec(**rest))  # type: ignore[arg-type]
    return cell


def gang(members: int = 3, **rest: object) -> Cell:
    """A cell of three nodes on which gang `a` runs."""
    cell = Cell()
    cell.nodes("n1", "n2", "n3", devices=1)
    cell.running("a", spec(members=members, **rest))  # type: ignore[arg-type]
    return cell


def two_nodes(**rest: object) -> Cell:
    """A cell of two nodes with one device each, on the first of which job `a` runs."""
    cell = Cell()
    cell.nodes("n1", "n2", devices=1)
    cell.running("a", spec(**rest))  # type: ignore[arg-type]
    assert cell.node_of("a.1.0") == "n1"
    return cell


def kinds(done: list[facts.Fact]) -> list[type]:
    return [type(fact) for fact in done]


def ends(done: list[facts.Fact]) -> list[facts.AttemptEnded]:
    return [fact for fact in done if isinstance(fact, facts.AttemptEnded)]


def reason(cell: Cell, job: str = "a") -> str:
    why = cell.job(job).reason
    return why.code if why else ""
