"""Reports and signals of agents: in order, acknowledged when durable, of their own runs alone."""

from __future__ import annotations

import pytest

from services.gateway.beats import BATCH_MS
from services.gateway.effects import WRITES_MAX
from services.gateway.pending import RETRY_AFTER_MS
from services.gateway.refusal import Refusal, Status
from services.gateway.reports import BEHIND_MAX
from services.gateway.sessions import AttachStream
from services.runtime.ports import PortError
from tests.services.gateway.world import AGENT, World, beat, began, inventory
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2
from tidemill.v1 import node_service_pb2 as wire


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


def probe_failed() -> telemetry_pb2.Signal:
    """The agent's word that a device must not be granted again."""
    return telemetry_pb2.Signal(
        node="n1", incarnation=1, kind=telemetry_pb2.SIGNAL_KIND_PROBE_FAILED, device=3
    )


def test_after_a_failed_device_that_was_not_stored_no_later_beat_is_acknowledged(
    world: World, stream: AttachStream
) -> None:
    beat(world, stream, sequence=1)
    world.pass_ms(BATCH_MS)
    world.store()
    before = world.kinds(stream)
    world.say(stream, signal=probe_failed())
    world.failing = PortError("away")
    world.store()
    world.failing = None
    beat(world, stream, sequence=2)
    world.pass_ms(BATCH_MS)
    world.store()
    assert before == ["beat_ack"]
    with pytest.raises(Refusal) as caught:
        world.pulled(stream)
    assert (caught.value.code, caught.value.retry_after_ms) == ("signal_not_stored", RETRY_AFTER_MS)


def test_a_failed_device_that_is_stored_holds_back_no_beat(
    world: World, stream: AttachStream
) -> None:
    world.say(stream, signal=probe_failed())
    beat(world, stream)
    world.pass_ms(BATCH_MS)
    world.store()
    assert world.kinds(stream) == ["beat_ack"]


def test_a_congested_log_ends_the_stream_that_tells_of_a_failed_device_and_no_other(
    world: World, stream: AttachStream
) -> None:
    for _ in range(WRITES_MAX):
        world.gateway.effects.publish([], lambda _error, _now: None)
    link = telemetry_pb2.Signal(node="n1", kind=telemetry_pb2.SIGNAL_KIND_NIC_LINK)
    world.say(stream, signal=link)
    with pytest.raises(Refusal) as caught:
        world.say(stream, signal=probe_failed())
    world.store()
    assert caught.value.code == "signal_not_stored"
    assert [record for record in world.stored if record.topic == "signals"] == []


def test_another_signal_that_was_not_stored_is_lost_and_costs_no_stream(
    world: World, stream: AttachStream
) -> None:
    xid = telemetry_pb2.Signal(node="n1", kind=telemetry_pb2.SIGNAL_KIND_XID, code="79")
    world.say(stream, signal=xid)
    world.failing = PortError("away")
    world.store()
    assert world.pulled(stream) == []


def test_reports_that_nobody_can_store_end_the_stream_instead_of_memory(
    world: World, stream: AttachStream
) -> None:
    world.failing = PortError("away")
    for sequence in range(1, BEHIND_MAX + 1):
        world.say(stream, report=began("x.1.0", sequence))
    with pytest.raises(Refusal) as caught:
        world.say(stream, report=began("x.1.0", BEHIND_MAX + 1))
    assert caught.value.code == "reports_behind"


def test_reports_of_a_stream_that_is_gone_are_the_agents_to_repeat(
    world: World, stream: AttachStream
) -> None:
    world.failing = PortError("away")
    world.say(stream, report=began("x.1.0", 1))
    world.store()
    world.gateway.agents.close(stream)
    world.failing = None
    world.pass_ms(RETRY_AFTER_MS)
    written = [write.records for write in world.store()]
    again = world.attach("n1")
    world.say(again, report=began("x.1.0", 1))
    world.settle()
    assert [records for records in written if records[0].topic == "reports"] == []
    assert (world.last_report().run_began.run, "report_ack" in world.kinds(again)) == (
        "x.1.0",
        True,
    )


@pytest.mark.parametrize("failing", [None, PortError("away")])
def test_what_waits_behind_a_write_of_a_stream_that_is_gone_is_dropped(
    world: World, stream: AttachStream, failing: PortError | None
) -> None:
    for sequence in range(1, 4):
        world.say(stream, report=began(f"x.{sequence}.0", sequence))
    world.gateway.agents.close(stream)
    world.failing = failing
    (on_its_way,) = world.store()
    world.failing = None
    world.pass_ms(RETRY_AFTER_MS)
    later = [write for write in world.store() if write.records[0].topic == "reports"]
    assert (len(on_its_way.records), later) == (1, [])
