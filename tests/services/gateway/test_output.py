"""What runs print, from the agent that has it to who asked."""

from __future__ import annotations

import pytest

from services.gateway.refusal import Refusal
from services.gateway.sessions import AttachStream
from tests.services.gateway.world import ALICE, World
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire


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
