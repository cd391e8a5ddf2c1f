"""Attached nodes: what an agent is sent, and which incarnation is refused."""

from __future__ import annotations

import pytest

from services.gateway.auth import Caller
from services.gateway.beats import BATCH_MS
from services.gateway.refusal import Refusal, Status
from services.gateway.sessions import LOG_FRESH_MS, RESEND_MS, AttachStream
from services.runtime.desired import applied, set_digest
from services.runtime.ports import Outgoing
from services.runtime.tokens import check_job_token
from tests.services.gateway.world import AGENT, CELL, KEY, ROOT, World, beat, began, inventory
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire
from tidemill.v1 import reports_pb2, telemetry_pb2

# --- attaching


def test_an_attached_node_is_welcomed_and_its_inventory_reported(world: World) -> None:
    stream = world.attach("n1")
    world.settle()
    (welcome, *_) = world.pulled(stream)
    assert welcome == wire.AttachResponse(
        welcome=wire.NodeWelcome(node="n1", cell=CELL, beat_every_ms=2_000)
    )
    assert world.gateway.cluster.nodes["n1"].inventory.address == "addr-n1"  # type: ignore[index]
    assert world.last_report().principal.name == AGENT.principal


def test_the_first_set_is_full_and_comes_only_once_the_log_knows_the_node(world: World) -> None:
    stream = world.attach("n1")
    before = world.desired(stream)
    world.settle()
    (first,) = world.desired(stream)
    assert before == []
    assert (first.node, first.full, list(first.changed), first.digest) == (
        "n1",
        True,
        [],
        set_digest({}),
    )


def test_a_token_for_some_nodes_attaches_no_other(world: World) -> None:
    bound = Caller("node:n1", "node-token", frozenset({"node"}), frozenset({"n1"}))
    stream = world.gateway.agents.open(bound)
    with pytest.raises(Refusal) as caught:
        world.attach("n2", stream=stream)
    assert (caught.value.status, caught.value.code) == (Status.PERMISSION_DENIED, "other_node")


def test_one_stream_carries_many_nodes(world: World) -> None:
    stream = world.attach("n1", "n2", "n3")
    world.settle()
    assert sorted(each.node for each in world.desired(stream)) == ["n1", "n2", "n3"]


def test_a_node_that_attaches_by_another_stream_leaves_the_old_one(world: World) -> None:
    old = world.attach("n1")
    world.settle()
    world.pulled(old)
    new = world.attach("n1")
    world.settle()
    world.pulled(new)
    world.admitted()
    assert (world.desired(old), len(world.desired(new))) == ([], 1)


def test_speaking_for_a_node_that_was_not_attached_ends_the_stream(world: World) -> None:
    stream = world.gateway.agents.open(AGENT)
    with pytest.raises(Refusal) as caught:
        beat(world, stream)
    assert caught.value.code == "not_attached"


def test_a_detached_node_gets_nothing_more(world: World, stream: AttachStream) -> None:
    world.say(stream, detach=wire.DetachNode(node="n1"))
    world.admitted()
    assert (world.pulled(stream), len(world.gateway.sessions)) == ([], 0)


# --- desired sets


def test_an_order_holds_all_that_is_needed_to_start(world: World, stream: AttachStream) -> None:
    job = world.admitted(devices=2)
    (update,) = world.desired(stream)
    (order,) = update.changed
    assert update.full is False
    assert (order.run, order.job, order.attempt, order.rank, order.role, order.action) == (
        f"{job}.1.0", job, 1, 0, "worker", wire.RUN_ACTION_RUN,
    )  # fmt: skip
    assert (len(order.devices), order.world_size, order.master_address, order.started) == (
        2, 1, "addr-n1", False,
    )  # fmt: skip
    assert check_job_token(KEY, order.token) == (job, 1)


def test_a_change_applies_to_what_was_sent_before(world: World, stream: AttachStream) -> None:
    world.admitted("r1")
    (first,) = world.desired(stream)
    world.admitted("r2")
    (second,) = world.desired(stream)
    orders = applied({}, wire.DesiredSet(changed=first.changed, digest=first.digest, full=True))
    assert orders is not None
    both = applied(orders, second)
    assert both is not None
    assert (len(both), second.full, len(second.changed)) == (2, False, 1)


def test_an_ended_run_is_removed_from_the_set(world: World, stream: AttachStream) -> None:
    job = world.admitted()
    world.pulled(stream)
    world.say(stream, report=began(f"{job}.1.0", 1))
    world.finished(stream, "n1", f"{job}.1.0", sequence=2)
    world.settle()
    updates = world.desired(stream)
    assert [list(each.removed) for each in updates] == [[f"{job}.1.0"]]


def test_a_cancelled_job_is_ordered_to_stop(world: World, stream: AttachStream) -> None:
    job = world.admitted()
    world.pulled(stream)
    world.change(jobs.CancelJobRequest(job=job))
    world.settle()
    ((order,),) = [each.changed for each in world.desired(stream)]
    assert order.action == wire.RUN_ACTION_STOP


def test_nothing_is_sent_while_nothing_changes(world: World, stream: AttachStream) -> None:
    world.gateway.sessions.everyone()
    assert world.pulled(stream) == []


def test_many_changes_before_a_pull_are_one_set(world: World, stream: AttachStream) -> None:
    world.admitted("r1")
    world.admitted("r2")
    (update,) = world.desired(stream)
    assert len(update.changed) == 2


def test_sets_and_acks_go_in_the_order_that_they_came_and_in_turn(world: World) -> None:
    nodes = [f"n{number}" for number in range(4)]
    stream = world.attach(*nodes)
    world.settle()
    world.pulled(stream)
    for node in nodes:
        world.say(stream, beat=telemetry_pb2.Beat(node=node, incarnation=1, sequence=1))
    world.pass_ms(BATCH_MS)
    world.store()
    world.gateway.sessions.everyone()
    world.admitted(members=4, devices=4)
    sent = [
        (message.beat_ack.node, message.desired.node)
        for message in world.pulled(stream)
        if isinstance(message, wire.AttachResponse)
    ]
    assert sent == [pair for node in nodes for pair in ((node, ""), ("", node))]


def test_an_ack_of_another_digest_brings_a_full_set_after_a_pause(
    world: World, stream: AttachStream
) -> None:
    world.admitted()
    (sent,) = world.desired(stream)
    wrong = wire.DesiredAck(node="n1", term=sent.term, offset=sent.offset, digest=b"x" * 32)
    world.say(stream, ack=wrong)
    at_once = world.desired(stream)
    world.pass_ms(RESEND_MS)
    (again,) = world.desired(stream)
    assert (at_once, again.full, again.digest) == ([], True, sent.digest)


def test_an_ack_of_the_right_digest_brings_nothing(world: World, stream: AttachStream) -> None:
    world.admitted()
    (sent,) = world.desired(stream)
    right = wire.DesiredAck(node="n1", term=sent.term, offset=sent.offset, digest=sent.digest)
    world.say(stream, ack=right)
    world.pass_ms(RESEND_MS)
    assert world.pulled(stream) == []


def test_an_ack_of_an_earlier_set_is_not_compared_with_a_later_one(
    world: World, stream: AttachStream
) -> None:
    world.admitted("r1")
    (first,) = world.desired(stream)
    world.admitted("r2")
    world.desired(stream)
    late = wire.DesiredAck(node="n1", term=first.term, offset=first.offset, digest=first.digest)
    world.say(stream, ack=late)
    world.pass_ms(RESEND_MS)
    assert world.pulled(stream) == []


def test_a_gateway_that_is_behind_the_agent_sends_nothing_until_it_has_caught_up(
    world: World,
) -> None:
    world.attach("n1")
    world.settle()
    stream = world.attach(
        "n1", term=1, offset=len(world.log)
    )  # It has stored what we have not read.
    world.store()
    early = world.desired(stream)
    world.admitted()
    assert (early, [each.full for each in world.desired(stream)]) == ([], [True])


def test_a_gateway_that_does_not_read_the_log_sends_no_sets(world: World) -> None:
    world.attach("n1")
    world.settle()
    world.pass_ms(LOG_FRESH_MS + 1)
    stream = world.attach("n1")
    stale = world.desired(stream)
    world.show()
    assert (stale, len(world.desired(stream))) == ([], 1)


def test_a_node_that_comes_back_with_another_address_changes_its_gangs_orders(
    world: World,
) -> None:
    stream = world.attach("n1", "n2")
    world.settle()
    world.admitted(members=2, devices=4)
    world.pulled(stream)
    moved = reports_pb2.NodeAttached(inventory=inventory("elsewhere"))
    attach = wire.AttachNode(node="n1", incarnation=1, attached=moved)
    other = world.gateway.agents.open(AGENT)
    world.gateway.agents.take(other, wire.AttachRequest(attach=attach), world.now)
    world.settle()
    addresses = {order.master_address for each in world.desired(stream) for order in each.changed}
    assert addresses == {"elsewhere"}


def test_a_node_that_joins_and_is_removed_in_one_entry_ends_no_gateway(
    world: World, stream: AttachStream
) -> None:
    world.change(fleet.CordonNodeRequest(node="n1"), ROOT)
    world.settle()
    world.attach("n1", incarnation=2, stream=stream)
    call = world.change(fleet.RemoveNodeRequest(node="n1"), ROOT)
    world.store()
    before = len(world.log)
    world.decide(order=("reports", "requests"))
    world.show()
    assert isinstance(world.answers[call], fleet.RemoveNodeResponse)
    assert (len(world.log) - before, dict(world.gateway.cluster.nodes)) == (1, {})


# --- lost and back


def test_a_lost_node_is_told_so_once_with_the_incarnation_to_come_back_as(
    world: World, stream: AttachStream
) -> None:
    world.lose("n1")
    refused = world.pulled(stream)
    world.lose("n1")
    assert [message.refused.next_incarnation for message in refused] == [2]  # type: ignore[attr-defined]
    assert world.pulled(stream) == []


def test_a_lost_incarnation_that_attaches_again_is_refused(
    world: World, stream: AttachStream
) -> None:
    world.lose("n1")
    again = world.attach("n1", incarnation=1)
    assert world.kinds(again) == ["refused"]


def test_another_boot_comes_as_another_incarnation(world: World, stream: AttachStream) -> None:
    again = world.attach("n1", boot="boot-2")
    assert world.kinds(again) == ["refused"]
    world.attach("n1", incarnation=2, boot="boot-2", stream=again)
    world.settle()
    assert world.gateway.cluster.nodes["n1"].inventory.boot_id == "boot-2"  # type: ignore[index]
    assert "desired" in world.kinds(again)


def test_an_end_that_a_refused_incarnation_reports_is_evidence_all_the_same(
    world: World, stream: AttachStream
) -> None:
    job = world.admitted()
    world.lose("n1")
    world.pulled(stream)
    world.finished(stream, "n1", f"{job}.1.0", sequence=1)
    world.settle()
    assert world.kinds(stream) == ["report_ack"]
    assert world.last_report().run_finished.run == f"{job}.1.0"


def test_the_next_incarnation_joins_and_gets_a_full_set(world: World, stream: AttachStream) -> None:
    world.lose("n1")
    world.pulled(stream)
    world.attach("n1", incarnation=2, stream=stream)
    world.settle()
    assert world.gateway.cluster.nodes["n1"].incarnation == 2  # type: ignore[index]
    assert "desired" in world.kinds(stream)


def test_an_older_incarnation_than_the_one_in_the_log_is_refused(world: World) -> None:
    world.attach("n1", incarnation=3)
    world.settle()
    clone = world.attach("n1", incarnation=2)
    (refused,) = world.pulled(clone)
    assert refused.refused.next_incarnation == 4  # type: ignore[attr-defined]


def test_a_verdict_that_nobody_can_read_is_parked_and_changes_no_session(
    world: World, stream: AttachStream
) -> None:
    world.stored.append(Outgoing("verdicts", b"", b"\xff\xff"))
    world.settle()
    assert (world.gateway.cluster.parked, world.pulled(stream)) == (1, [])
