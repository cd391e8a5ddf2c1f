"""Attached nodes: what an agent is sent, what is acknowledged and when, and what is refused."""

from __future__ import annotations

import pytest

from services.gateway.auth import Caller
from services.gateway.beats import BATCH_BEATS, BATCH_MS, BATCHES_MAX, PULSE_MS
from services.gateway.pending import RETRY_AFTER_MS
from services.gateway.refusal import Refusal, Status
from services.gateway.reports import BEHIND_MAX
from services.gateway.sessions import LOG_FRESH_MS, RESEND_MS, AttachStream
from services.runtime.desired import applied, set_digest
from services.runtime.ports import Outgoing, PortError
from services.runtime.tokens import check_job_token
from tests.services.gateway.world import AGENT, ALICE, CELL, KEY, World, inventory
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def stream(world: World) -> AttachStream:
    """n1 is attached, joined, and has its first set."""
    stream = world.attach("n1")
    world.settle()
    world.pulled(stream)
    return stream


def beat(world: World, stream: AttachStream, sequence: int = 1, incarnation: int = 1) -> None:
    world.say(
        stream,
        beat=telemetry_pb2.Beat(node="n1", incarnation=incarnation, sequence=sequence, at_ms=1),
    )


def began(run: str, sequence: int, node: str = "n1") -> reports_pb2.Report:
    return reports_pb2.Report(
        node=node, incarnation=1, sequence=sequence, run_began=reports_pb2.RunBegan(run=run)
    )


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


# --- beats


def test_a_beat_is_published_within_its_bound_and_then_acknowledged(
    world: World, stream: AttachStream
) -> None:
    beat(world, stream, sequence=7)
    world.store()
    early = world.beat_batches()
    world.pass_ms(BATCH_MS)
    world.store()
    (batch,) = world.beat_batches()
    assert (early, [each.sequence for each in batch.beats]) == ([], [7])
    assert world.pulled(stream) == [
        wire.AttachResponse(beat_ack=wire.BeatAck(node="n1", sequence=7))
    ]


def test_all_beats_of_a_partition_share_one_record(world: World) -> None:
    stream = world.attach(*[f"n{i}" for i in range(40)])
    world.settle()
    for i in range(40):
        world.say(stream, beat=telemetry_pb2.Beat(node=f"n{i}", incarnation=1, sequence=1))
    world.pass_ms(BATCH_MS)
    world.store()
    assert len(world.beat_batches()) == 1


def test_a_full_batch_of_beats_does_not_wait(world: World, stream: AttachStream) -> None:
    for sequence in range(BATCH_BEATS):
        beat(world, stream, sequence=sequence)
    world.store()
    assert len(world.beat_batches()) == 1


def test_a_gateway_without_agents_is_heard_all_the_same(world: World) -> None:
    world.pass_ms(PULSE_MS)
    world.store()
    batches = [record for record in world.stored if record.topic == "beats"]
    assert [telemetry_pb2.BeatBatch.FromString(each.value).gateway for each in batches] == [
        "gateway-0"
    ]


def test_a_beat_that_was_not_stored_is_not_acknowledged(world: World, stream: AttachStream) -> None:
    world.failing = PortError("away")
    beat(world, stream)
    world.pass_ms(BATCH_MS)
    world.store()
    assert world.pulled(stream) == []


def test_a_beat_is_not_acknowledged_by_a_gateway_that_does_not_read_the_log(
    world: World, stream: AttachStream
) -> None:
    world.pass_ms(LOG_FRESH_MS + 1)
    beat(world, stream)
    world.pass_ms(BATCH_MS)
    world.store()
    assert world.pulled(stream) == []


def test_a_beat_of_an_incarnation_that_has_not_joined_is_not_acknowledged(world: World) -> None:
    stream = world.attach("n1")
    beat(world, stream)
    world.pass_ms(BATCH_MS)
    world.store()
    assert "beat_ack" not in world.kinds(stream)


def test_a_late_beat_of_a_lost_incarnation_is_not_acknowledged(
    world: World, stream: AttachStream
) -> None:
    beat(world, stream)
    world.lose("n1")
    world.pass_ms(BATCH_MS)
    world.store()
    assert "beat_ack" not in world.kinds(stream)


def test_beats_that_arrive_late_acknowledge_only_the_newest(
    world: World, stream: AttachStream
) -> None:
    beat(world, stream, sequence=5)
    beat(world, stream, sequence=4)
    world.pass_ms(BATCH_MS)
    world.store()
    assert world.pulled(stream) == [
        wire.AttachResponse(beat_ack=wire.BeatAck(node="n1", sequence=5))
    ]


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


# --- reports


def test_a_report_is_acknowledged_when_it_is_durable(world: World, stream: AttachStream) -> None:
    world.say(stream, report=began("x.1.0", 3))
    before = world.pulled(stream)
    world.store()
    assert (before, world.pulled(stream)) == (
        [],
        [wire.AttachResponse(report_ack=wire.ReportAck(node="n1", sequence=3))],
    )


def test_reports_that_could_not_be_stored_are_stored_in_order_later(
    world: World, stream: AttachStream
) -> None:
    world.failing = PortError("away")
    world.say(stream, report=began("x.1.0", 1))
    world.store()
    world.say(stream, report=began("y.1.0", 2))
    world.failing = None
    world.store()
    early = world.pulled(stream)
    world.pass_ms(RETRY_AFTER_MS)
    world.store()
    runs = [
        reports_pb2.Report.FromString(record.value).run_began.run
        for record in world.stored
        if record.topic == "reports"
    ]
    assert (early, runs[-2:]) == ([], ["x.1.0", "y.1.0"])
    assert world.kinds(stream) == ["report_ack", "report_ack"]


def test_one_write_of_a_nodes_reports_is_on_its_way_at_a_time(
    world: World, stream: AttachStream
) -> None:
    for sequence in range(1, 4):
        world.say(stream, report=began(f"x.{sequence}.0", sequence))
    first = world.store()
    second = world.store()
    assert ([len(write.records) for write in first], [len(write.records) for write in second]) == (
        [1],
        [2],
    )


def test_an_agent_may_not_report_on_another_nodes_run(world: World) -> None:
    stream = world.attach("n1", "n2")
    world.settle()
    job = world.admitted()
    (run,) = [run for run in world.gateway.cluster.runs.values() if run.job == job]
    other = "n2" if run.node == "n1" else "n1"
    with pytest.raises(Refusal) as caught:
        world.say(stream, report=began(run.id, 1, node=other))
    assert (caught.value.status, caught.value.code) == (
        Status.PERMISSION_DENIED,
        "other_nodes_run",
    )


def test_an_inventory_does_not_come_as_a_report(world: World, stream: AttachStream) -> None:
    report = reports_pb2.Report(
        node="n1", sequence=1, node_attached=reports_pb2.NodeAttached(inventory=inventory())
    )
    with pytest.raises(Refusal) as caught:
        world.say(stream, report=report)
    assert caught.value.code == "not_an_agents_report"


def test_who_reports_is_said_by_the_gateway_not_by_the_agent(
    world: World, stream: AttachStream
) -> None:
    report = began("x.1.0", 1)
    report.principal.name = "user:root"
    world.say(stream, report=report)
    world.store()
    assert world.last_report().principal == common_pb2.Principal(
        name=AGENT.principal, method="node-token"
    )


def test_a_signal_reaches_its_topic(world: World, stream: AttachStream) -> None:
    world.say(
        stream,
        signal=telemetry_pb2.Signal(node="n1", kind=telemetry_pb2.SIGNAL_KIND_XID, code="79"),
    )
    world.store()
    assert [record.key for record in world.stored if record.topic == "signals"] == [b"n1"]


def test_reports_that_nobody_can_store_end_the_stream_instead_of_memory(
    world: World, stream: AttachStream
) -> None:
    world.failing = PortError("away")
    for sequence in range(1, BEHIND_MAX + 1):
        world.say(stream, report=began("x.1.0", sequence))
    with pytest.raises(Refusal) as caught:
        world.say(stream, report=began("x.1.0", BEHIND_MAX + 1))
    assert caught.value.code == "reports_behind"


# --- what runs print


def output(world: World, job: str, **fields: object) -> jobs.ReadLogsRequest:
    return jobs.ReadLogsRequest(job=job, **fields)  # type: ignore[arg-type]


def test_output_goes_from_the_agent_to_who_asked(world: World, stream: AttachStream) -> None:
    job = world.admitted()
    world.pulled(stream)
    reader = world.gateway.read_output(ALICE, output(world, job, follow=True, tail_bytes=10))
    (asked,) = world.pulled(stream)
    read = asked.log_read  # type: ignore[attr-defined]
    assert (read.run, read.follow, read.tail_bytes) == (f"{job}.1.0", True, 10)
    world.say(stream, log_chunk=wire.LogChunk(call=read.call, data=b"hello"))
    world.say(stream, log_chunk=wire.LogChunk(call=read.call, end=True))
    assert world.pulled(reader) == [jobs.ReadLogsResponse(data=b"hello", run=f"{job}.1.0")]
    assert reader.ended


def test_a_reader_who_leaves_has_the_agent_told(world: World, stream: AttachStream) -> None:
    job = world.admitted()
    reader = world.gateway.read_output(ALICE, output(world, job))
    world.pulled(stream)
    world.gateway.sessions.stop_reading(reader)
    (cancel,) = world.pulled(stream)
    assert cancel.log_read.cancel  # type: ignore[attr-defined]


def test_output_of_a_node_that_is_not_attached_here_is_said_to_be_elsewhere(
    world: World, stream: AttachStream
) -> None:
    job = world.admitted()
    world.gateway.agents.close(stream)
    with pytest.raises(Refusal) as caught:
        world.gateway.read_output(ALICE, output(world, job))
    assert caught.value.code == "node_not_attached"


def test_a_reader_is_told_when_the_agent_leaves(world: World, stream: AttachStream) -> None:
    job = world.admitted()
    reader = world.gateway.read_output(ALICE, output(world, job))
    world.gateway.agents.close(stream)
    with pytest.raises(Refusal) as caught:
        reader.pull(world.now)
    assert caught.value.code == "node_not_attached"


def test_an_agents_error_is_the_readers(world: World, stream: AttachStream) -> None:
    job = world.admitted()
    world.pulled(stream)
    reader = world.gateway.read_output(ALICE, output(world, job))
    (asked,) = world.pulled(stream)
    call = asked.log_read.call  # type: ignore[attr-defined]
    world.say(stream, log_chunk=wire.LogChunk(call=call, error="rotated away", end=True))
    with pytest.raises(Refusal, match="rotated away"):
        reader.pull(world.now)


def test_a_reader_that_is_too_slow_is_cut(world: World, stream: AttachStream) -> None:
    job = world.admitted()
    world.pulled(stream)
    reader = world.gateway.read_output(ALICE, output(world, job))
    (asked,) = world.pulled(stream)
    chunk = wire.LogChunk(call=asked.log_read.call, data=b"x" * (3 << 20))  # type: ignore[attr-defined]
    for _ in range(6):
        world.say(stream, log_chunk=chunk)
    with pytest.raises(Refusal) as caught:
        reader.pull(world.now)
    assert caught.value.code == "reader_too_slow"


def test_output_for_a_call_that_nobody_made_is_dropped(world: World, stream: AttachStream) -> None:
    world.say(stream, log_chunk=wire.LogChunk(call="forged", data=b"x"))
    assert world.pulled(stream) == []


def test_a_verdict_for_an_unknown_partition_changes_no_session(world: World) -> None:
    world.stored.append(Outgoing("verdicts", b"", b"\xff\xff"))
    world.settle()
    assert world.gateway.cluster.parked == 1


def test_beats_that_nobody_can_store_are_dropped_instead_of_piling_up(
    world: World, stream: AttachStream
) -> None:
    for sequence in range(10 * BATCHES_MAX):
        beat(world, stream, sequence=sequence)
        world.pass_ms(BATCH_MS)
    piled_up = len(world.gateway.effects.writes)
    world.store()
    beat(world, stream, sequence=99_999)
    world.pass_ms(BATCH_MS)
    world.store()
    assert piled_up == BATCHES_MAX
    assert world.beat_batches()[-1].beats[-1].sequence == 99_999
