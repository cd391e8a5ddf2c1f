"""Log lines of decisions: every fact while there are few, counts when there are many, alarms before the rest."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from services.scheduler.narrator import ALARMS_PER_SECOND, LINES_PER_SECOND, Narrator
from statemachines import facts
from statemachines.entry import Entry, Recorded
from statemachines.values import Cause, JobNext, Outcome, Reason
from tests.services.scheduler.cell import N1, A


def entry(*said: facts.Fact) -> Entry:
    return Entry(
        7, "test", 3, b"", b"", 0, (), tuple(Recorded(fact, "user:alice") for fact in said)
    )


def test_a_fact_is_a_line_with_its_ids_term_and_offset() -> None:
    with capture_logs() as lines:
        narrator = Narrator(structlog.get_logger(), lambda: 1.0)
        narrator.tell(entry(facts.JobHeld(A, Reason("held_by_user", "why"))))
        narrator.tell(entry(facts.InputParked("requests", 0, 9, "garbage", b"\xff")))
    assert lines == [
        {
            "event": "job_held", "log_level": "info", "term": 3, "offset": 7, "job": "a", "by": "user:alice",
            "reason": "held_by_user", "message": "why",
        },
        {
            "event": "input_parked", "log_level": "warning", "term": 3, "offset": 7, "topic": "requests",
            "partition": 0, "input_offset": 9, "reason": "garbage", "by": "user:alice",
        },
    ]  # fmt: skip


def test_thousands_of_facts_a_second_become_one_line_with_counts() -> None:
    now = [1.0]
    with capture_logs() as lines:
        narrator = Narrator(structlog.get_logger(), lambda: now[0])
        narrator.tell(entry(*[facts.JobReleased(A)] * (LINES_PER_SECOND + 1_000)))
        now[0] = 2.5
        narrator.tell(entry(facts.JobReleased(A)))
    assert len(lines) == LINES_PER_SECOND + 2
    assert lines[-2] == {"event": "facts_recorded", "log_level": "info", "job_released": 1_000}


def test_alarms_are_said_when_the_rest_is_only_counted() -> None:
    failed = facts.AttemptEnded(
        A, 1, Outcome.FAILED, Cause.PROGRAM_FAILED, "exit code 1", JobNext.FAILED, 0
    )
    lost = facts.NodeLost(N1, 1, "silent")
    with capture_logs() as lines:
        narrator = Narrator(structlog.get_logger(), lambda: 1.0)
        narrator.tell(entry(*[facts.JobReleased(A)] * 500, failed, *[lost] * 500))
    alarms = [line for line in lines if line["log_level"] == "warning"]
    assert alarms[0]["event"] == "attempt_ended"
    assert (len(lines), len(alarms)) == (ALARMS_PER_SECOND, ALARMS_PER_SECOND - LINES_PER_SECOND)
