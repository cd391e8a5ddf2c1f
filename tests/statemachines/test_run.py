"""The lifecycle of a run: every pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest
from msgspec.structs import replace

from statemachines import facts, run
from statemachines.lifecycle import IllegalTransition
from statemachines.run import Run, RunState
from statemachines.values import (
    Evidence,
    Grant,
    JobId,
    NodeId,
    Placement,
    Reason,
    ResumePoint,
    RunId,
)
from tests.statemachines.matrix import every_pair, pair_id

NOW: Final = 1_000
R: Final = RunId("j.1.0")
PLACEMENT: Final = Placement(R, NodeId("n1"), 0, "w", (Grant(3, 1000),), 4000, 512)
BASE: Final = Run(
    R, JobId("j"), 1, 0, "w", NodeId("n1"), (Grant(3, 1000),), 4000, 512, RunState.PLACED, 10
)
FACTS: Final[Mapping[type, Any]] = {
    facts.RunStarted: facts.RunStarted(R),
    facts.RunEnded: facts.RunEnded(R, 137, 9, Evidence.KILLED_AND_REAPED, "killed"),
    facts.NodeLost: facts.NodeLost(NodeId("n1"), 1, "silent"),
}
STARTED: Final = {"state": RunState.RUNNING, "started_at_ms": NOW}
LOST: Final = {"state": RunState.LOST, "lost_at_ms": NOW}
ENDED: Final = {
    "state": RunState.ENDED,
    "ended_at_ms": NOW,
    "exit_code": 137,
    "signal": 9,
    "evidence": Evidence.KILLED_AND_REAPED,
    "message": "killed",
}
S: Final = RunState
LEGAL: Final[Mapping[tuple[RunState, type], Mapping[str, Any]]] = {
    (S.PLACED, facts.RunStarted): STARTED,
    (S.PLACED, facts.RunEnded): ENDED,
    (S.PLACED, facts.NodeLost): LOST,
    (S.RUNNING, facts.RunEnded): ENDED,
    (S.RUNNING, facts.NodeLost): LOST,
    (S.LOST, facts.RunEnded): ENDED,
    (S.LOST, facts.NodeLost): LOST,
}


def test_every_fact_about_a_run_has_an_example_here() -> None:
    assert set(FACTS) == set(get_args(facts.RunFact)) == set(run._RULES)


@pytest.mark.parametrize(("state", "kind"), every_pair(RunState, facts.RunFact), ids=pair_id)
def test_each_pair_gives_the_whole_value_or_is_illegal(state: RunState, kind: type) -> None:
    before = replace(BASE, state=state)
    changes = LEGAL.get((state, kind))
    if changes is None:
        with pytest.raises(IllegalTransition, match=f"is {state}: {kind.__name__} is not legal"):
            run.advance(before, FACTS[kind], NOW)
        return
    after = run.advance(before, FACTS[kind], NOW)
    assert after == replace(before, **changes)
    assert after.state is run.LIFECYCLE[(state, kind)]


def test_a_run_lost_again_was_lost_when_it_first_was() -> None:
    lost = replace(BASE, state=S.LOST, lost_at_ms=500)
    assert run.advance(lost, FACTS[facts.NodeLost], NOW) == lost


def test_a_run_begins_where_it_was_placed() -> None:
    fact = facts.GangPlaced(JobId("j"), 1, (PLACEMENT,), ResumePoint(), 20_000, Reason("fits"))
    assert run.place(fact, PLACEMENT, 10) == BASE
