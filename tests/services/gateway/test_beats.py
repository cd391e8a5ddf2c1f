"""Beats: published within their bound, acknowledged when they are stored and the fold lets them stand."""

from __future__ import annotations

from services.gateway.beats import BATCH_BEATS, BATCH_MS, BATCHES_MAX, PULSE_MS, Beats
from services.gateway.effects import Effects, Now
from services.gateway.sessions import LOG_FRESH_MS, AttachStream
from services.runtime.ports import PortError
from services.runtime.topics import partition_of
from tests.services.gateway.world import World, beat
from tidemill.v1 import node_service_pb2 as wire
from tidemill.v1 import telemetry_pb2

START = Now(0, 0)


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


def test_every_partition_is_published_however_many_there_are() -> None:
    partitions = 2 * BATCHES_MAX
    effects = Effects()
    told: list[telemetry_pb2.Beat] = []
    beats = Beats(
        effects, gateway="gw", partitions=partitions, published=lambda some, _now: told.extend(some)
    )
    effects.tick(START)
    pulsed, *_ = effects.take()
    for number in range(20 * partitions):
        beats.take(telemetry_pb2.Beat(node=f"n{number}"), START)
    effects.tick(Now(0, BATCH_MS))
    batches, *_ = effects.take()
    for write in (*pulsed, *batches):
        effects.written(write.id, None, START)
    assert [{write.records[0].partition for write in some} for some in (pulsed, batches)] == [
        set(range(partitions))
    ] * 2
    assert len(told) == 20 * partitions


def test_one_partition_that_nobody_can_store_keeps_no_other_from_being_published() -> None:
    effects = Effects()
    beats = Beats(effects, gateway="gw", partitions=2, published=lambda _some, _now: None)
    stuck = telemetry_pb2.Beat(node="n1")
    partition = partition_of(b"n1", 2)
    other = next(f"n{i}" for i in range(99) if partition_of(f"n{i}".encode(), 2) != partition)
    for _ in range(2 * BATCHES_MAX):
        beats.take(stuck, START)
        beats.flush(START)
    beats.take(telemetry_pb2.Beat(node=other), START)
    beats.flush(START)
    writes, *_ = effects.take()
    to = [write.records[0].partition for write in writes]
    assert (to.count(partition), to.count(1 - partition)) == (BATCHES_MAX, 1)
