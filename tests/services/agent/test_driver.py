"""The agent's shell against a real gRPC server and real processes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from services.agent.aside import Aside
from services.agent.core import AgentCore
from services.agent.counters import Counters, Line, Table
from services.agent.driver import Driver
from services.agent.environment import Surroundings
from services.agent.link import Link
from services.agent.links import Links
from services.agent.markers import describe, digest
from services.agent.runs import AgentSettings
from services.agent.store import StateStore
from services.agent.table import AgentState
from services.agent.wiring import make_clock, make_executor, process_settings
from statemachines.values import DeviceSpec, Inventory, NicSpec
from tests.services.agent.gateway import FakeGateway
from tidemill.v1 import common_pb2, telemetry_pb2
from tidemill.v1 import node_service_pb2 as pb

T = TypeVar("T")
DEVICES = tuple(
    DeviceSpec(index, "H100", f"SIMULATED-{index}", simulated=True) for index in range(4)
)
INVENTORY = Inventory("127.0.0.1", 8_000, 8_000, DEVICES, boot_id="b")

# Saves the step that it is given.
SAVE = (
    "d=$TIDEMILL_CHECKPOINT_DIR/step-$1; mkdir -p $d; echo weights > $d/shard; touch $d/COMMITTED"
)
WATCH = common_pb2.MarkerWatch(preset="directory", directory="$TIDEMILL_CHECKPOINT_DIR")


@contextlib.asynccontextmanager
async def agent(
    state: Path,
    gateway: FakeGateway,
    links: Links | None = None,
    counters: Counters | None = None,
    settings: AgentSettings | None = None,
    **parts: Any,
) -> AsyncIterator[Driver]:
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
            settings=settings,
        )
        driver = Driver(
            core,
            store=store,
            executor=executor,
            files=executor,
            link=Link(lambda: [f"127.0.0.1:{gateway.port}"]),
            links=links or Links(()),
            counters=counters or Counters(Table(), ()),
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
            **parts,
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
    launch = gateway.blob("sh", "-c", SAVE, "sh", "40", marker=WATCH)
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


@pytest.mark.parametrize("fetched", ["kept", "lost"])
async def test_checkpoints_of_an_adopted_run_are_found_though_its_launch_is_asked_for_in_vain(
    tmp_path: Path, gateway: FakeGateway, fetched: str
) -> None:
    fifo, state = tmp_path / "go", tmp_path / "state"
    script = f"mkfifo {fifo}; read word < {fifo}; {SAVE}"
    launch = gateway.blob("sh", "-c", script, "sh", "40", marker=WATCH)
    async with agent(state, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", launch)
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_began") and fifo.exists())
    if fetched == "kept":
        gateway.blobs.clear()
    else:
        shutil.rmtree(state / "launches")
    gateway.order("job.1.0", launch, started=True)
    async with agent(state, gateway):
        await gateway.until(lambda: len(gateway.messages("attach")) == 2)
        if fetched == "lost":
            await gateway.blob_asked.wait()
        await asyncio.to_thread(fifo.write_text, "go\n")
        await gateway.until(lambda: gateway.reports("run_finished"))
    assert [saved.step for saved in gateway.reports("saved")] == [40]


async def test_what_was_saved_while_no_agent_lived_is_told_before_the_end(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    fifo, state = tmp_path / "go", tmp_path / "state"
    script = f"mkfifo {fifo}; read word < {fifo}; {SAVE}"
    async with agent(state, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", gateway.blob("sh", "-c", script, "sh", "40", marker=WATCH))
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_began") and fifo.exists())
    await asyncio.to_thread(fifo.write_text, "go\n")
    await asyncio.to_thread(until_ended, state / "runs" / "job.1.0")
    gateway.blobs.clear()
    before = len(gateway.heard)
    async with agent(state, gateway):
        await gateway.until(lambda: gateway.reports("run_finished"))
    kinds = [
        said.report.WhichOneof("kind") for said in gateway.heard[before:] if said.HasField("report")
    ]
    assert kinds[-2:] == ["saved", "run_finished"]


def until_ended(folder: Path) -> None:
    """A supervisor holds its run's lock for as long as it lives."""
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)


async def test_an_order_that_cannot_be_followed_costs_the_connection_and_nothing_else(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.orders["../x"] = pb.RunOrder(run="../x", action=pb.RUN_ACTION_RUN)
        gateway.send_set()
        await gateway.until(lambda: len(gateway.messages("attach")) == 2)
        gateway.orders.clear()
        gateway.order("job.1.0", gateway.blob("true"))
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_finished"))


async def test_a_launch_that_is_gone_or_damaged_is_reported_as_never_started(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("gone.1.0", "ab" * 32)
        gateway.blobs["cd" * 32] = b"something else"
        gateway.order("damaged.1.0", "cd" * 32)
        gateway.send_set()
        await gateway.until(lambda: len(gateway.reports("run_finished")) == 2)
    ends = {end.run: end for end in gateway.reports("run_finished")}
    assert {end.evidence for end in ends.values()} == {common_pb2.EVIDENCE_NEVER_STARTED}
    assert "is gone" in ends["gone.1.0"].message
    assert "was damaged" in ends["damaged.1.0"].message


async def test_a_fetch_goes_on_at_the_next_gateway_when_its_stream_ends(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    gateway.hold_blobs = True
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", gateway.blob("true"))
        gateway.send_set()
        await gateway.blob_asked.wait()
        gateway.hold_blobs = False
        gateway.cut()
        await gateway.until(lambda: len(gateway.messages("attach")) == 2)
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_finished"))


async def test_a_command_that_does_not_exist_is_reported_with_what_to_do(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", gateway.blob("no-such-command"))
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_finished"))
    [end] = gateway.reports("run_finished")
    assert end.evidence == common_pb2.EVIDENCE_NEVER_STARTED
    assert end.message.startswith("command not found: 'no-such-command'; give a path")


async def test_a_wedged_device_driver_holds_back_neither_kills_nor_ends(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    go = threading.Event()

    def wedged(devices: Sequence[DeviceSpec]) -> tuple[tuple[int, str], ...]:
        go.wait()
        return ()

    with contextlib.ExitStack() as held:
        held.callback(go.set)
        async with agent(tmp_path, gateway, settings=AgentSettings(probe_ms=100), probe=wedged):
            await gateway.until(lambda: gateway.messages("beat"))
            dies = gateway.blob("sh", "-c", "kill -9 $$")
            for run, indices in (("a.1.0", (0, 1)), ("b.1.0", (2, 3))):
                grants = [common_pb2.Grant(index=index, milli=1000) for index in indices]
                gateway.order(run, dies, devices=grants)
            deaf = gateway.blob("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
            gateway.order("deaf.1.0", deaf)
            gateway.send_set()
            await gateway.until(lambda: len(gateway.reports("run_finished")) == 2)
            failed = {signal.device for signal in gateway.messages("signal")}
            gateway.order("deaf.1.0", deaf, action=pb.RUN_ACTION_STOP, grace_ms=0, started=True)
            gateway.send_set()
            await gateway.until(lambda: len(gateway.reports("run_finished")) == 3)
    assert failed == {0, 1, 2, 3}


async def test_a_directory_that_does_not_answer_costs_its_own_job_and_no_other(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    go, dead = threading.Event(), str(tmp_path / "dead")

    class Hanging(Aside):
        """The file server of one directory is away."""

        async def call(
            self, work: Callable[[], T], *, what: str, within_s: float | None, owner: str = ""
        ) -> T:
            if dead in repr(work):
                work, within_s = partial(hang, work), 0.01
            return await super().call(work, what=what, within_s=within_s, owner=owner)

    def hang(work: Callable[[], T]) -> T:
        go.wait()
        return work()

    with contextlib.ExitStack() as held:
        held.callback(go.set)
        async with agent(tmp_path, gateway, paths=Hanging(places=2, places_each=1)):
            await gateway.until(lambda: gateway.messages("beat"))
            for run in ("bad.1.0", "bad.1.1"):
                gateway.order(run, gateway.blob("true", checkpoint_root=dead))
            gateway.send_set()
            await gateway.until(lambda: len(gateway.reports("run_finished")) == 2)
            gateway.order("good.1.0", gateway.blob("true"))
            gateway.send_set()
            await gateway.until(lambda: len(gateway.reports("run_finished")) == 3)
    ends = {end.run: end for end in gateway.reports("run_finished")}
    for run in ("bad.1.0", "bad.1.1"):
        assert ends[run].evidence == common_pb2.EVIDENCE_NEVER_STARTED
        assert ends[run].message.startswith("the directory for checkpoints did not answer")
    assert ends["good.1.0"].evidence == common_pb2.EVIDENCE_EXIT_STATUS


@pytest.mark.parametrize(
    "paths",
    [
        {"workdir": "/a\0b"},
        {"checkpoint_root": "/a\0b"},
        {"checkpoint_root": "/no-such-place" + "/d" * 2_000},
        {"marker": common_pb2.MarkerWatch(preset="directory", directory="/a\0b")},
        {"marker": common_pb2.MarkerWatch(preset="no-such-preset", directory="/a")},
    ],
)
async def test_a_path_that_can_be_none_costs_its_own_run_and_no_other(
    tmp_path: Path, gateway: FakeGateway, paths: dict[str, Any]
) -> None:
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("bad.1.0", gateway.blob("true", **paths))
        gateway.order("good.1.0", gateway.blob("true"))
        gateway.send_set()
        await gateway.until(lambda: len(gateway.reports("run_finished")) == 2)
    ends = {end.run: end for end in gateway.reports("run_finished")}
    assert ends["bad.1.0"].evidence == common_pb2.EVIDENCE_NEVER_STARTED
    assert ends["bad.1.0"].message
    assert ends["good.1.0"].evidence == common_pb2.EVIDENCE_EXIT_STATUS


async def test_output_is_followed_across_turns_of_the_ring_until_the_run_ends(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    script = "while [ ! -e go ]; do sleep 0.01; done; seq 1 300000"
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", gateway.blob("sh", "-c", script))
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_began"))
        read = pb.LogRead(call="c", run="job.1.0", follow=True)
        gateway.say(pb.AttachResponse(log_read=read))
        other = pb.LogRead(call="cancelled", run="job.1.0", follow=True)
        gateway.say(pb.AttachResponse(log_read=other))
        gateway.say(pb.AttachResponse(log_read=pb.LogRead(call="cancelled", cancel=True)))
        (tmp_path / "runs" / "job.1.0" / "go").touch()
        await gateway.until(
            lambda: any(chunk.end for chunk in gateway.messages("log_chunk") if chunk.call == "c")
        )
        for call, tail in (("tail", 7), ("none", 0)):
            run = "job.1.0" if call == "tail" else "never.1.0"
            asked = pb.LogRead(call=call, run=run, tail_bytes=tail)
            gateway.say(pb.AttachResponse(log_read=asked))
        await gateway.until(lambda: sum(c.end for c in gateway.messages("log_chunk")) == 3)
    chunks: dict[str, bytes] = {}
    for chunk in gateway.messages("log_chunk"):
        chunks[chunk.call] = chunks.get(chunk.call, b"") + chunk.data
    assert chunks["c"].endswith(b"299999\n300000\n")
    assert chunks["tail"] == b"300000\n"
    [error] = [chunk.error for chunk in gateway.messages("log_chunk") if chunk.error]
    assert "no output of never.1.0" in error
    assert not any(c.end for c in gateway.messages("log_chunk") if c.call == "cancelled")


async def test_a_gateway_that_acknowledges_nothing_does_not_start_fenced_runs(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    gateway.ack_beats = False
    async with agent(tmp_path, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("fenced.1.0", gateway.blob("true"), fence_after_ms=60_000)
        gateway.order("free.1.0", gateway.blob("true"))
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_finished"))
        assert [end.run for end in gateway.reports("run_finished")] == ["free.1.0"]
        gateway.ack_beats = True
        await gateway.until(lambda: len(gateway.reports("run_finished")) == 2)


async def test_links_are_told_when_they_change_and_again_after_each_attach(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    folder = tmp_path / "net" / "eth0"
    folder.mkdir(parents=True)
    (folder / "operstate").write_text("up\n")
    async with agent(tmp_path / "state", gateway, Links(["eth0"], tmp_path / "net")):
        await gateway.until(lambda: len(gateway.messages("signal")) == 1)
        (folder / "operstate").write_text("down\n")
        await gateway.until(lambda: len(gateway.messages("signal")) == 2)
        gateway.cut()
        await gateway.until(lambda: len(gateway.messages("signal")) == 3)
    told = [(signal.nic, signal.code) for signal in gateway.messages("signal")]
    assert told == [("eth0", "up"), ("eth0", "down"), ("eth0", "down")]


async def test_counters_that_grow_too_fast_are_told_and_again_after_each_attach(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    folder = tmp_path / "net" / "eth0" / "statistics"
    folder.mkdir(parents=True)
    (folder / "rx_dropped").write_text("10\n")
    table = Table((Line("rx_dropped", over_s=3_600, most=100),))
    counters = Counters(table, [NicSpec("eth0", 0)], tmp_path / "net")
    counters.judge(counters.read(), make_clock().monotonic_ms())  # The agent's own clock.
    (folder / "rx_dropped").write_text("999\n")
    async with agent(tmp_path / "state", gateway, counters=counters):
        await gateway.until(lambda: len(gateway.messages("signal")) == 1)
        gateway.cut()
        await gateway.until(lambda: len(gateway.messages("signal")) == 2)
    told = [(each.kind, each.nic, each.code) for each in gateway.messages("signal")]
    assert told == [(telemetry_pb2.SIGNAL_KIND_NIC_COUNTER, "eth0", "rx_dropped")] * 2


async def test_with_its_state_lost_an_agent_goes_on_with_what_it_started_and_starts_nothing_twice(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    state, fifo, starts = tmp_path / "state", tmp_path / "go", tmp_path / "starts"
    script = f"echo $$ >> {starts}; mkfifo {fifo} || exit 99; read word < {fifo}; exit 9"
    async with agent(state, gateway):
        await gateway.until(lambda: gateway.messages("beat"))
        gateway.order("job.1.0", gateway.blob("sh", "-c", script))
        gateway.send_set()
        await gateway.until(lambda: gateway.reports("run_began") and fifo.exists())
    (state / "state").unlink()
    async with agent(state, gateway):
        await gateway.until(lambda: len(gateway.messages("attach")) == 2)
        gateway.send_set()  # The cell had not heard of its start.
        await gateway.until(lambda: len(gateway.reports("run_began")) == 1)
        await gateway.until(lambda: gateway.messages("beat")[-1].live_runs == 1)
        await asyncio.to_thread(fifo.write_text, "go\n")
        await gateway.until(lambda: gateway.reports("run_finished"))
    assert gateway.reports("run_finished")[-1].exit_code == 9
    assert len(starts.read_text().split()) == 1
