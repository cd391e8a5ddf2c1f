"""The lifecycle of an attempt: every pair, and what its counters must say before it may start or end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest
from msgspec.structs import replace

from statemachines import attempt, facts
from statemachines.attempt import Attempt, AttemptState
from statemachines.lifecycle import IllegalTransition
from statemachines.values import (
    Cause,
    Evidence,
    JobId,
    JobNext,
    NodeId,
    Outcome,
    Placement,
    Reason,
    ResumePoint,
    RunId,
)
from tests.statemachines.matrix import every_pair, pair_id

J: Final = JobId("j")
NOW: Final = 1_000
LOST: Final = 1
RUNS: Final = (RunId("j.2.0"), RunId("j.2.1"))
BASE: Final = Attempt(
    J, 2, AttemptState.STARTING, RUNS, ResumePoint(50, "file:///c", "m", 1), 20_000, Reason("fits"), 10,
    started=2, open=2, lost=2, ask=3,
)  # fmt: skip
FACTS: Final[Mapping[type, Any]] = {
    type(fact): fact
    for fact in (
        facts.AttemptStarted(J, 2),
        facts.AttemptStopping(J, 2, Cause.HUNG, "no step", JobNext.QUEUED, 9_000),
        facts.AttemptEnded(J, 2, Outcome.LOST, Cause.NODE_LOST, "n1", JobNext.QUEUED, 0),
        facts.SaveAsked(J, 2, 4, 8_000, Cause.DRAINED, JobNext.QUEUED),
        facts.SaveAcknowledged(J, 2, 3, 70),
        facts.TrainingFinished(J, 2, 90),
        facts.AttemptResumed(J, 2, 50),
        facts.ResumeMismatched(J, 2, 40, "file:///other", "x"),
        facts.RunStarted(RUNS[0]),
        facts.RunEnded(RUNS[0], 1, 0, Evidence.EXIT_STATUS, ""),
        facts.NodeLost(NodeId("n1"), 1, "silent"),
    )
}
CHANGES: Final[Mapping[type, Mapping[str, Any]]] = {
    facts.AttemptStarted: {"state": AttemptState.RUNNING, "started_at_ms": NOW},
    facts.AttemptStopping: {
        "state": AttemptState.STOPPING,
        "stop_cause": Cause.HUNG,
        "stop_message": "no step",
        "stop_next": JobNext.QUEUED,
        "stop_deadline_ms": 9_000,
    },
    facts.AttemptEnded: {
        "state": AttemptState.ENDED,
        "ended_at_ms": NOW,
        "outcome": Outcome.LOST,
        "cause": Cause.NODE_LOST,
        "message": "n1",
    },
    facts.SaveAsked: {
        "ask": 4,
        "ask_step": 0,
        "ask_deadline_ms": 8_000,
        "ask_cause": Cause.DRAINED,
        "ask_next": JobNext.QUEUED,
    },
    facts.SaveAcknowledged: {"ask_step": 70},
    facts.TrainingFinished: {"finished_step": 90},
    facts.AttemptResumed: {"resumed_step": 50},
    facts.ResumeMismatched: {"resumed_step": 40},
    facts.RunStarted: {"started": 3},
    facts.RunEnded: {"open": 1, "lost": 1},
    facts.NodeLost: {"lost": 3},
}
S: Final = AttemptState
LEGAL: Final[Mapping[AttemptState, tuple[type, ...]]] = {
    S.STARTING: (
        facts.RunStarted,
        facts.RunEnded,
        facts.NodeLost,
        facts.AttemptStarted,
        facts.AttemptStopping,
        facts.AttemptEnded,
        facts.TrainingFinished,
        facts.AttemptResumed,
        facts.ResumeMismatched,
    ),
    S.RUNNING: (
        facts.RunEnded,
        facts.NodeLost,
        facts.SaveAsked,
        facts.SaveAcknowledged,
        facts.TrainingFinished,
        facts.AttemptResumed,
        facts.ResumeMismatched,
        facts.AttemptStopping,
        facts.AttemptEnded,
    ),
    S.STOPPING: (
        facts.RunStarted,
        facts.RunEnded,
        facts.NodeLost,
        facts.AttemptStopping,
        facts.TrainingFinished,
        facts.AttemptEnded,
    ),
    S.ENDED: (facts.RunEnded,),
}


def advance(before: Attempt, fact: Any) -> Attempt:
    return attempt.advance(before, fact, NOW, lost=LOST)


def test_every_fact_about_an_attempt_has_an_example_here() -> None:
    assert set(FACTS) == set(CHANGES) == set(get_args(facts.AttemptFact)) == set(attempt._RULES)


@pytest.mark.parametrize(
    ("state", "kind"), every_pair(AttemptState, facts.AttemptFact), ids=pair_id
)
def test_each_pair_gives_the_whole_value_or_is_illegal(state: AttemptState, kind: type) -> None:
    before = replace(BASE, state=state)
    if kind not in LEGAL[state]:
        with pytest.raises(IllegalTransition, match=f"is {state}: {kind.__name__} is not legal"):
            advance(before, FACTS[kind])
        return
    after = advance(before, FACTS[kind])
    assert after == replace(before, **CHANGES[kind])
    assert after.state is attempt.LIFECYCLE[(state, kind)]


@pytest.mark.parametrize(
    ("state", "counters", "fact"),
    [
        (S.STARTING, {"started": 1}, FACTS[facts.AttemptStarted]),
        (S.RUNNING, {"lost": 1}, FACTS[facts.AttemptEnded]),
        (S.RUNNING, {"ask": 4}, FACTS[facts.SaveAsked]),
        (S.RUNNING, {"ask": 4}, FACTS[facts.SaveAcknowledged]),
        (S.RUNNING, {"ask_step": 60}, FACTS[facts.SaveAcknowledged]),
    ],
    ids=["not all started", "some are open", "asked before", "not the newest ask", "answered"],
)
def test_a_fact_that_its_counters_deny_is_illegal(
    state: AttemptState, counters: dict[str, int], fact: Any
) -> None:
    with pytest.raises(IllegalTransition, match="attempt 2 of job j"):
        advance(replace(BASE, state=state, **counters), fact)


def test_a_run_that_was_not_lost_leaves_the_lost_ones_alone() -> None:
    ended = attempt.advance(BASE, FACTS[facts.RunEnded], NOW)
    assert ended == replace(BASE, open=1)


def test_an_attempt_begins_with_every_run_open() -> None:
    placements = tuple(
        [Placement(run, NodeId("n1"), i, "w", (), 1000, 10) for i, run in enumerate(RUNS)]
    )
    fact = facts.GangPlaced(J, 2, placements, BASE.resume, 20_000, BASE.why)
    assert attempt.place(fact, NOW) == Attempt(
        J, 2, S.STARTING, RUNS, BASE.resume, 20_000, BASE.why, NOW, open=2
    )
