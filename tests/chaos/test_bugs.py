"""Planted bugs are found within a few seeds, and leave nothing behind."""

from __future__ import annotations

import pytest

from chaos.bugs import BUGS, Planting

# Quick ones here; `python -m chaos bugs` hunts all of them.
QUICK = ("chain-off", "term-ignored", "gang-half-released", "quota-leak", "double-start", "stale-set")  # fmt: skip


@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.name in QUICK], ids=lambda bug: bug.name
)
def test_planted_bug_is_found(bug: object) -> None:
    assert one(Task(bug.scenario, bug.seed, bug.name)).broken  # type: ignore[attr-defined]


def test_there_are_enough_of_them() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 12


def test_what_was_replaced_is_put_back() -> None:
    class Owner:
        def speak(self) -> str:
            return "right"

    planting = Planting()
    planting.replace(Owner, "speak", lambda _: lambda _self: "wrong")
    assert Owner().speak() == "wrong"
    planting.undo()
    assert Owner().speak() == "right"
