"""What no record can hold is refused where it comes in: it would fail the batch of everybody's writes with it."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from services.gateway.beats import BATCH_BEATS, BEAT_BYTES_MAX
from services.gateway.record import record
from services.gateway.refusal import Refusal, Status
from services.gateway.validation import LAUNCH_BYTES_MAX
from services.runtime import topics
from services.runtime.ports import INPUT_BYTES_MAX, RECORD_BYTES_MAX
from tests.services.gateway.world import World, inventory, submission, trainer
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire
from tidemill.v1 import reports_pb2, telemetry_pb2
from tidemill.v1 import training_service_pb2 as training


def swollen(message: Message, size: int) -> Message:
    """With a field that no version of ours knows, which is kept when it is copied."""
    message.MergeFromString(bytes([0x82, 0xFA, 0x01]) + _varint(size) + b"x" * size)
    return message


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def too_large(world: World, *nodes: str, **kind: Message) -> None:
    """An agent that says this is sent away, and nothing of it is stored."""
    stream = world.attach(*nodes)
    world.settle()
    stored = len(world.stored)
    with pytest.raises(Refusal, match="leave out") as refusal:
        world.say(stream, **kind)  # type: ignore[arg-type]
    assert (refusal.value.status, refusal.value.code) == (Status.INVALID_ARGUMENT, "too_large")
    world.settle()
    assert len(world.stored) == stored


@pytest.mark.parametrize(
    ("topic", "limit"),
    [(topics.REQUESTS, INPUT_BYTES_MAX), (topics.SIGNALS, RECORD_BYTES_MAX)],
)
def test_a_record_holds_what_its_store_and_its_reader_take(topic: topics.Topic, limit: int) -> None:
    room = limit - len(wire.GetBlobResponse(blob=b"x" * limit).SerializeToString()) + limit
    largest = wire.GetBlobResponse(blob=b"x" * room)
    assert len(record(topic, "k", largest).value) == limit
    largest.blob += b"x"
    with pytest.raises(Refusal, match=f"{limit + 1} bytes .* at most {limit}"):
        record(topic, "k", largest)


def test_the_largest_launch_is_a_blob_that_can_be_stored() -> None:
    assert LAUNCH_BYTES_MAX <= RECORD_BYTES_MAX


def test_unknown_fields_of_a_request_count() -> None:
    world = World()
    request = submission()
    swollen(request.spec, INPUT_BYTES_MAX)
    call = world.submit(request)
    world.settle()
    assert (world.refusal(call).code, world.stored, world.blobs) == ("too_large", [], [])


def test_what_is_too_large_fails_nobody_else() -> None:
    world = World()
    large, small = submission("large"), submission("small")
    swollen(large.spec, RECORD_BYTES_MAX)
    calls = world.submit(large), world.submit(small)
    world.settle()
    assert world.refusal(calls[0]).code == "too_large"
    assert world.submitted(calls[1]).status == jobs.SUBMIT_STATUS_ADMITTED


def test_a_node_that_attaches_with_too_much_is_sent_away() -> None:
    attached = reports_pb2.NodeAttached(
        inventory=inventory(), live_runs=["r" * 1000] * (INPUT_BYTES_MAX // 1000)
    )
    attach = wire.AttachNode(node="n1", incarnation=1, attached=attached)
    too_large(World(), "n0", attach=attach)


def test_an_agents_report_that_is_too_large_is_not_repeated_for_ever() -> None:
    began = reports_pb2.RunBegan(run="r.1.0")
    report = reports_pb2.Report(node="n1", incarnation=1, sequence=1, run_began=began)
    too_large(World(), "n1", report=swollen(report, INPUT_BYTES_MAX))


def test_a_beat_that_is_too_large_is_refused_and_a_batch_of_the_largest_is_a_record() -> None:
    beat = telemetry_pb2.Beat(node="n" * 253, incarnation=-1, sequence=-1, at_ms=-1)
    swollen(beat, BEAT_BYTES_MAX - beat.ByteSize() - 5)
    assert beat.ByteSize() == BEAT_BYTES_MAX
    batch = telemetry_pb2.BeatBatch(gateway="g" * 253, at_ms=-1, beats=[beat] * BATCH_BEATS)
    assert batch.ByteSize() <= RECORD_BYTES_MAX
    too_large(World(), "n1", beat=swollen(telemetry_pb2.Beat(node="n1"), BEAT_BYTES_MAX))


def test_a_signal_that_is_too_large_is_refused() -> None:
    signal = telemetry_pb2.Signal(node="n1", at_ms=1)
    too_large(World(), "n1", signal=swollen(signal, RECORD_BYTES_MAX))


def test_a_trainers_report_and_progress_that_are_too_large_are_refused() -> None:
    world = World()
    world.attach("n1")
    job = world.admitted()
    who = trainer(job, 1)
    progress = telemetry_pb2.Progress(job=job, attempt=1, step=1)
    swollen(progress, RECORD_BYTES_MAX)
    saved = reports_pb2.SaveBegan(job=job, attempt=1, step=1)
    report = reports_pb2.Report(save_began=saved)
    swollen(report, INPUT_BYTES_MAX)
    trainers = world.gateway.trainers
    with pytest.raises(Refusal, match="at most 1000000"):
        trainers.report_progress(
            1, who, training.ReportProgressRequest(progress=[progress]), world.now
        )
    with pytest.raises(Refusal, match="at most 524288"):
        trainers.report_checkpoint(
            2, who, training.ReportCheckpointRequest(report=report), world.now
        )
