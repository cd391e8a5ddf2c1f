"""The agent's shell against a real gRPC server and real processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.agent.core import AgentCore
from services.agent.driver import Driver
from services.agent.environment import Surroundings
from services.agent.link import Link
from services.agent.markers import describe, digest
from services.agent.store import StateStore
from services.agent.table import AgentState
from services.agent.wiring import make_clock, make_executor, process_settings
from statemachines.values import DeviceSpec, Inventory
from tests.services.agent.gateway import FakeGateway
from tidemill.v1 import common_pb2
from tidemill.v1 import node_service_pb2 as pb

INVENTORY = Inventory(
    "127.0.0.1", 8_000, 8_000, (DeviceSpec(0, "H100", "SIMULATED-0", simulated=True),), boot_id="b"
)


@contextlib.asynccontextmanager
async def agent(state: Path, gateway: FakeGateway) -> AsyncIterator[Driver]:
    """An agent of node n1 that ends with the block; its runs go on."""
    with contextlib.ExitStack() as held:
        store = StateStore(state)
        held.callback(store.close)
        bounds = process_settings(log_mib=1, processes_max=512, ended_runs_kept=8)
        executor = make_executor(state, bounds)
        held.callback(executor.close)
        core = AgentCore(
            store.load() or AgentState("n1", "b"),
            inventory=INVENTORY,
            now=Driver.read_clocks(make_clock()),
            renewed=store.renewed(),
        )
        driver = Driver(
            core,
            store=store,
            executor=executor,
            files=executor,
            link=Link(lambda: [f"127.0.0.1:{gateway.port}"]),
            clock=make_clock(),
            around=Surroundings(
                cell="",
                node="n1",
                gateway="",
                inventory=INVENTORY,
                checkpoint_root=str(state / "checkpoints"),
                checkpoint_reach="node",
                host=(("PATH", "/usr/bin:/bin"),),
            ),
        )
        running = asyncio.ensure_future(driver.run())
        try:
            yield driver
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    fake = FakeGateway()
    await fake.start()
    yield fake
    await fake.stop()


async def test_an_ordered_run_is_started_once_and_its_end_is_reported(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    launch = gateway.blob("sh", "-c", "echo rank $RANK of $TIDEMILL_JOB in $TIDEMILL_CELL; exit 3")
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", launch)
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_finished"))
        gateway.send_set()
        await gateway.until(lambda: len(gateway.messages("ack")) >= 2)
        gateway.say(pb.AttachResponse(log_read=pb.LogRead(call="c", run="job.1.0")))
        await gateway.until(lambda: any(chunk.end for chunk in gateway.messages("log_chunk")))
    assert [end.exit_code for end in gateway.reports("run_finished")] == [3]
    assert [began.run for began in gateway.reports("run_began")] == ["job.1.0"]
    printed = b"".join(chunk.data for chunk in gateway.messages("log_chunk"))
    assert printed == b"rank 0 of job in c\n"
    [end] = gateway.reports("run_finished")
    assert end.evidence == common_pb2.EVIDENCE_EXIT_STATUS


async def test_a_new_agent_takes_over_a_run_and_tells_how_it_ended(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    fifo = tmp_path / "go"
    launch = gateway.blob("sh", "-c", f"mkfifo {fifo}; read word < {fifo}; exit 7")
    async with agent(tmp_path / "state", gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", launch)
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_began"))
    gateway.order("job.1.0", launch, started=True)
    async with agent(tmp_path / "state", gateway):
        await gateway.until(lambda: len(gateway.messages("attach")) == 2)
        assert list(gateway.messages("attach")[-1].attached.live_runs) == ["job.1.0"]
        gateway.send_set()
        await asyncio.to_thread(fifo.write_text, "go\n")
        await gateway.until(lambda: gateway.reports("run_finished"))
    assert [(e.run, e.exit_code) for e in gateway.reports("run_finished")] == [("job.1.0", 7)]


async def test_checkpoints_found_by_their_marker_are_reported_before_the_end(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    script = "d=$TIDEMILL_CHECKPOINT_DIR/step-$1; mkdir -p $d; echo weights > $d/shard; touch $d/COMMITTED"
    watch = common_pb2.MarkerWatch(preset="directory", directory="$TIDEMILL_CHECKPOINT_DIR")
    launch = gateway.blob("sh", "-c", script, "sh", "40", marker=watch)
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", launch)
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_finished"))
    kinds = [
        message.report.WhichOneof("kind") for message in gateway.heard if message.HasField("report")
    ]
    assert kinds == ["run_began", "saved", "run_finished"]
    [saved] = gateway.reports("saved")
    folder = tmp_path / "checkpoints" / "job" / "a1" / "step-40"
    assert (saved.step, saved.uri, saved.by_marker) == (40, str(folder), True)
    assert (saved.reach, saved.bytes) == (common_pb2.REACH_NODE, len("weights\n"))
    assert saved.manifest == digest(describe(folder))
