"""What a run left unsent is told in its place, before its end: of its own attempt, of a trainer's kinds, and no more."""

from __future__ import annotations

import pytest

from services.agent import wire
from services.agent.orders import Order
from services.agent.outbox import Relayed, Report
from services.agent.relay import relayed
from tests.services.agent.test_wire import FULL
from tidemill.v1 import reports_pb2

ORDER: Order = wire.order(FULL)  # Attempt 2 of "job".


def saved(job: str = "job", attempt: int = 2, step: int = 30) -> reports_pb2.Report:
    return reports_pb2.Report(saved=reports_pb2.Saved(job=job, attempt=attempt, step=step))


def test_reports_of_its_own_attempt_are_told_in_order() -> None:
    left = [
        reports_pb2.Report(save_began=reports_pb2.SaveBegan(job="job", attempt=2, step=30)),
        saved(),
        reports_pb2.Report(removed=reports_pb2.Removed(job="job", step=10)),
        reports_pb2.Report(finished=reports_pb2.Finished(job="job", attempt=2, step=40)),
    ]
    data = [report.SerializeToString() for report in left]
    assert relayed(ORDER, data) == tuple(Relayed(each) for each in data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        saved(job="other").SerializeToString(),
        saved(attempt=1).SerializeToString(),
        saved(attempt=3).SerializeToString(),
        reports_pb2.Report(removed=reports_pb2.Removed(job="other")).SerializeToString(),
        reports_pb2.Report(run_finished=reports_pb2.RunFinished(run="job.2.1")).SerializeToString(),
        reports_pb2.Report(
            save_answered=reports_pb2.SaveAnswered(job="job", attempt=2, ask=1)
        ).SerializeToString(),
    ],
    ids=["empty", "torn", "job", "earlier", "later", "removed", "kind", "answer"],
)
def test_what_a_run_has_no_say_in_is_dropped(data: bytes) -> None:
    assert relayed(ORDER, [data]) == ()


def test_it_travels_as_this_nodes_claim_with_the_trainers_time() -> None:
    said = saved()
    said.at_ms, said.node, said.sequence = 55, "n9", 99
    said.principal.name = "user:mallory"
    sent = wire.report("n1", Report(5, 3, 77, Relayed(said.SerializeToString())))
    assert (sent.node, sent.incarnation, sent.sequence, sent.at_ms) == ("n1", 3, 5, 55)
    assert sent.principal.name == "node:n1"
    assert sent.saved == said.saved
