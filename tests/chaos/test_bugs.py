"""Planted bugs are found within a few seeds, and leave nothing behind; what was a defect once is none any more."""

from __future__ import annotations

import pytest

from chaos.bugs import BUGS, BY_NAME, ONCE, Planting
from chaos.hunt import find
from chaos.seeds import Task, one

pytestmark = pytest.mark.timeout(600)

# Quick ones here; `python -m chaos bugs` hunts all of them.
QUICK = ("chain-off", "term-ignored", "gang-half-released", "quota-leak", "double-start", "stale-set")  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_planted_bug_is_found(name: str) -> None:
    found = find(BY_NAME[name], seeds=8, processes=1)
    assert found is not None
    assert found.broken


@pytest.mark.parametrize("name", [bug.name for bug in ONCE])
def test_a_defect_that_a_history_found_stays_mended(name: str) -> None:
    bug = BY_NAME[name]
    found = find(bug, seeds=20, processes=1)
    assert found is not None, (
        "find a seed that breaks without the fix, and keep it in chaos/bugs.py"
    )
    assert one(Task(bug.scenario, found.seed)).broken == ()


def test_there_are_enough_of_them() -> None:
    assert len(BY_NAME) == len(BUGS) + len(ONCE)
    assert len(BUGS) >= 12


def test_what_was_replaced_is_put_back() -> None:
    class Owner:
        def speak(self) -> str:
            return "right"

    planting = Planting()
    planting.replace(Owner, "speak", lambda _: lambda _self: "wrong")
    assert Owner().speak() == "wrong"
    planting.undo()
    assert Owner().speak() == "right"
