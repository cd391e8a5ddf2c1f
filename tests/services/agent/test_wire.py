"""Orders as they travel: every field arrives, and both sides compute one digest of a set."""

from __future__ import annotations

import pytest

from services.agent import wire
from services.agent.orders import Order, follow, set_digest
from services.agent.outbox import Report, RunFinished, Saved
from services.runtime import desired
from statemachines.values import Evidence, Reach, RunId, Tier
from tidemill.v1 import common_pb2
from tidemill.v1 import node_service_pb2 as pb

FULL = pb.RunOrder(
    run="job.2.1", job="job", attempt=2, rank=1, role="worker", action=pb.RUN_ACTION_RUN, grace_ms=1,
    devices=[common_pb2.Grant(index=3, milli=1000)], cpu_milli=4, memory_mib=5, launch="ab" * 32,
    members=2, processes=3, world_size=6, first_global_rank=3, master_address="10.0.0.1",
    master_port=29_500, resume=common_pb2.ResumePoint(step=7, uri="/u", manifest="cd", attempt=1),
    token="t", fence_after_ms=8, overlap_safe=True, save_ask=9, save_at_step=10,
    stop_after_save=True, name="train", gang_nodes=["n1", "n2"], started=True,
)  # fmt: skip


def test_every_field_of_an_order_arrives() -> None:
    fields = {field.name for field in pb.RunOrder.DESCRIPTOR.fields}
    assert set(Order.__struct_fields__) == fields | {"digest"}
    assert {field.name for field, _ in FULL.ListFields()} == fields
    got = wire.order(FULL)
    for name in fields - {"action", "devices", "resume", "gang_nodes"}:
        assert getattr(got, name) == getattr(FULL, name), name
    assert (got.action, got.gang_nodes) == ("run", ("n1", "n2"))
    assert [(grant.index, grant.milli) for grant in got.devices] == [(3, 1000)]
    assert (got.resume.step, got.resume.uri, got.resume.attempt) == (7, "/u", 1)


def test_agent_and_gateway_compute_the_same_digest() -> None:
    other = pb.RunOrder(run="job.2.0", action=pb.RUN_ACTION_STOP)
    orders = {each.run: each for each in (other, FULL)}
    whole = desired.full_set("n1", 1, 2, orders)
    taken = follow({}, wire.desired_set(whole))
    assert taken is not None
    assert set_digest(taken.values()) == desired.set_digest(orders) == whole.digest


def test_changes_of_a_set_lead_to_the_same_set() -> None:
    before = {"a.1.0": pb.RunOrder(run="a.1.0", action=pb.RUN_ACTION_RUN), FULL.run: FULL}
    after = {"b.1.0": pb.RunOrder(run="b.1.0", action=pb.RUN_ACTION_STOP), FULL.run: FULL}
    change = desired.changes("n1", 1, 3, before=before, after=after)
    assert change is not None
    first = follow({}, wire.desired_set(desired.full_set("n1", 1, 2, before)))
    assert first is not None
    second = follow(first, wire.desired_set(change))
    assert second is not None
    assert sorted(second) == ["b.1.0", "job.2.1"]
    assert follow({}, wire.desired_set(change)) is None


def test_an_order_without_an_action_is_not_guessed() -> None:
    with pytest.raises(wire.BadOrderError, match="cannot be followed"):
        wire.order(pb.RunOrder(run="job.1.0"))


@pytest.mark.parametrize("run", ["", "../etc", "a/b.1.0", ".1.0", "x" * 129, "a\nb"])
def test_a_name_that_could_be_a_path_is_refused_at_the_door(run: str) -> None:
    with pytest.raises(wire.BadOrderError, match="not the name of a run"):
        wire.order(pb.RunOrder(run=run, action=pb.RUN_ACTION_RUN))


def test_every_evidence_travels() -> None:
    for evidence in Evidence:
        claim = Report(1, 1, 1, RunFinished(RunId("job.1.0"), evidence))
        sent = wire.report("n1", claim).run_finished.evidence
        assert common_pb2.Evidence.Name(sent) == f"EVIDENCE_{evidence.name}"


def test_a_found_checkpoint_travels_as_seen_by_its_marker() -> None:
    saved = Saved("job", 2, 30, "/u", 40, Tier.REMOTE, Reach.CELL, "ab" * 32)
    sent = wire.report("n1", Report(5, 3, 77, saved))
    assert (sent.node, sent.incarnation, sent.sequence, sent.at_ms) == ("n1", 3, 5, 77)
    assert (sent.saved.by_marker, sent.saved.node) == (True, "n1")
    assert (sent.saved.tier, sent.saved.reach) == (common_pb2.TIER_REMOTE, common_pb2.REACH_CELL)
