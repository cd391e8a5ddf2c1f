"""What a run left unsent is told in its place, before its end: of its own attempt, of a trainer's kinds, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.agent import wire
from services.agent.orders import Order
from services.agent.outbox import Relayed, Report
from services.agent.relay import KINDS, relayed
from services.gateway.validation import check
from tests.services.agent.test_wire import FULL
from tidemill.v1 import node_service_pb2 as pb
from tidemill.v1 import reports_pb2

ORDER: Order = wire.order(FULL)  # Attempt 2 of "job".


def saved(job: str = "job", attempt: int = 2, step: int = 30) -> reports_pb2.Report:
    said = reports_pb2.Saved(job=job, attempt=attempt, step=step, uri="/u")
    return reports_pb2.Report(saved=said)


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


LENGTHS = st.sampled_from([0, 1, 64, 65, 128, 129, 253, 254, 4096, 4097])
NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 4, 5, 99, 2**63 - 1])


@st.composite
def hostile_reports(draw: st.DrawFn) -> reports_pb2.Report:
    """A report of its own attempt with anything in the other fields."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    report = reports_pb2.Report()
    said = getattr(report, kind)
    said.SetInParent()
    for field in said.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING:
            setattr(said, field.name, "x" * draw(LENGTHS))
        elif field.type == field.TYPE_INT64:
            setattr(said, field.name, draw(NUMBERS))
        elif field.type == field.TYPE_ENUM:
            setattr(said, field.name, draw(st.integers(-1, 9)))
    said.job = "job"
    if kind != "removed":
        said.attempt = 2
    return report


@given(hostile_reports())
def test_what_is_told_breaks_no_rule_of_the_protos(left: reports_pb2.Report) -> None:
    for told in relayed(ORDER, [left.SerializeToString()]):
        check(pb.AttachRequest(report=wire.report("n1", Report(5, 3, 77, told))))


def test_every_kind_can_be_told() -> None:
    for kind in KINDS:
        report = reports_pb2.Report()
        said = getattr(report, kind)
        said.job = "job"
        if kind != "removed":
            said.attempt = 2
        if kind == "saved":
            said.uri = "/u"
        assert len(relayed(ORDER, [report.SerializeToString()])) == 1, kind
