"""The agent as a process: killed, frozen, ended, badly set; its runs are real and outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.runtime.adapters import process_tree
from services.runtime.exits import ExitCode
from tests.services.agent.gateway import FakeGateway
from tidemill.v1 import common_pb2
from tidemill.v1 import node_service_pb2 as pb

RSS_MIB_MAX = 60
WITHIN_S = 60.0


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    fake = FakeGateway()
    await fake.start()
    yield fake
    await fake.stop()


class Agent:
    """`tidemilld agent` of node n1 as a child process."""

    def __init__(self, home: Path, gateway: FakeGateway) -> None:
        self._home, self._gateway = home, gateway
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return (self._home / "agent.log").read_text()

    async def start(self, *flags: str) -> None:
        with (self._home / "agent.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.agent", "--node", "n1", "--directory", self._home,
                "--gateway", f"127.0.0.1:{self._gateway.port}", "--fake-gpus", "2xH100", *flags,
                stderr=log, env={"PATH": os.environ["PATH"]},
            )  # fmt: skip

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), WITHIN_S)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
        await self.ended()


@pytest.fixture
async def agent(tmp_path: Path, gateway: FakeGateway) -> AsyncIterator[Agent]:
    made = Agent(tmp_path, gateway)
    yield made
    if made._process is not None:
        await made.kill()
        await made.start("--end-runs")
        await gateway.until(lambda: gateway.messages("attach"))
        made.send(signal.SIGTERM)
        await made.ended()


async def attached(gateway: FakeGateway, times: int = 1) -> None:
    await gateway.until(lambda: len(gateway.messages("attach")) >= times)
    beats = len(gateway.messages("beat"))
    await gateway.until(lambda: len(gateway.messages("beat")) > beats)


async def running(gateway: FakeGateway, script: str, **fields: object) -> None:
    """Order a run and wait for its start."""
    gateway.order("job.1.0", gateway.blob("sh", "-c", script), **fields)
    gateway.send_set()
    await gateway.until(lambda: gateway.reports("run_began"))


async def pid_in(path: Path) -> int:
    while not (path.exists() and path.read_text().strip()):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)
    return int(path.read_text())  # noqa: ASYNC240


def lives(pid: int) -> bool:
    process = process_tree.look(pid)
    return process is not None and not process.dead


async def test_a_run_outlives_kill_9_of_its_agent_and_the_next_one_tells_its_end(
    tmp_path: Path, gateway: FakeGateway, agent: Agent
) -> None:
    fifo, mine = tmp_path / "go", tmp_path / "pid"
    os.mkfifo(fifo)
    await agent.start()
    await attached(gateway)
    await running(gateway, f"echo $$ >> {mine}; read word < {fifo}; exit 21")
    pid = await pid_in(mine)
    await agent.kill()
    assert lives(pid)
    gateway.order("job.1.0", gateway.orders["job.1.0"].launch, started=True)
    await agent.start()
    await attached(gateway, times=2)
    assert list(gateway.messages("attach")[-1].attached.live_runs) == ["job.1.0"]
    gateway.send_set()
    await asyncio.to_thread(fifo.write_text, "go\n")
    await gateway.until(lambda: gateway.reports("run_finished"))
    [end] = gateway.reports("run_finished")
    assert (end.exit_code, end.evidence) == (21, common_pb2.EVIDENCE_EXIT_STATUS)
    assert mine.read_text().split() == [str(pid)]


async def test_an_end_while_the_agent_was_dead_is_told_by_the_next(
    tmp_path: Path, gateway: FakeGateway, agent: Agent
) -> None:
    fifo, mine = tmp_path / "go", tmp_path / "pid"
    os.mkfifo(fifo)
    await agent.start()
    await attached(gateway)
    await running(gateway, f"echo $$ > {mine}; read word < {fifo}; exit 22")
    pid = await pid_in(mine)
    await agent.kill()
    await asyncio.to_thread(fifo.write_text, "go\n")
    while lives(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await agent.start()
    await gateway.until(lambda: gateway.reports("run_finished"))
    assert gateway.reports("run_finished")[0].exit_code == 22


async def test_a_frozen_agents_run_is_fenced_by_its_supervisor_and_told_after_the_thaw(
    tmp_path: Path, gateway: FakeGateway, agent: Agent
) -> None:
    mine = tmp_path / "pid"
    await agent.start()
    await attached(gateway)
    await running(
        gateway, f"trap '' TERM; echo $$ > {mine}; while :; do sleep 1; done", fence_after_ms=1_500
    )
    pid = await pid_in(mine)
    agent.send(signal.SIGSTOP)
    while lives(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    agent.send(signal.SIGCONT)
    await gateway.until(lambda: gateway.reports("run_finished"))
    [end] = gateway.reports("run_finished")
    assert (end.evidence, end.signal) == (common_pb2.EVIDENCE_SELF_FENCED, 9)


async def test_a_frozen_agents_run_that_may_overlap_is_left_alone_where_another_is_fenced(
    tmp_path: Path, gateway: FakeGateway, agent: Agent
) -> None:
    """The other one's end says that time enough has passed: it may go on without its agent for three times as long."""
    fifo, mine = tmp_path / "go", tmp_path / "pid"
    os.mkfifo(fifo)
    await agent.start()
    await attached(gateway)
    other = gateway.blob("sh", "-c", f"echo $$ > {mine}; exec sleep 1000")
    gateway.order("other.1.0", other, fence_after_ms=1_500)
    await running(gateway, f"read word < {fifo}; exit 23", fence_after_ms=500, overlap_safe=True)
    await gateway.until(lambda: len(gateway.reports("run_began")) == 2)
    pid = await pid_in(mine)
    agent.send(signal.SIGSTOP)
    while lives(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    agent.send(signal.SIGCONT)
    run = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # Raises when nobody reads it any more.
    os.write(run, b"go\n")
    os.close(run)
    await gateway.until(lambda: len(gateway.reports("run_finished")) == 2)
    ends = {end.run: (end.exit_code, end.evidence) for end in gateway.reports("run_finished")}
    assert ends["job.1.0"] == (23, common_pb2.EVIDENCE_EXIT_STATUS)
    assert ends["other.1.0"][1] == common_pb2.EVIDENCE_SELF_FENCED


async def test_asked_to_end_the_agent_leaves_runs_alone_or_ends_them_as_told(
    tmp_path: Path, gateway: FakeGateway, agent: Agent
) -> None:
    mine = tmp_path / "pid"
    await agent.start()
    await attached(gateway)
    await running(gateway, f"echo $$ > {mine}; exec sleep 1000")
    pid = await pid_in(mine)
    agent.send(signal.SIGTERM)
    assert await agent.ended() == ExitCode.STOPPED
    assert lives(pid)
    await agent.start("--end-runs")
    await attached(gateway, times=2)
    agent.send(signal.SIGTERM)
    assert await agent.ended() == ExitCode.STOPPED
    assert not lives(pid)


async def test_a_refused_node_kills_its_runs_and_comes_back_as_the_next_incarnation(
    tmp_path: Path, gateway: FakeGateway, agent: Agent
) -> None:
    mine = tmp_path / "pid"
    await agent.start()
    await attached(gateway)
    await running(gateway, f"echo $$ > {mine}; exec sleep 1000")
    pid = await pid_in(mine)
    gateway.refuse_below = 5
    gateway.say(pb.AttachResponse(refused=pb.NodeRefused(node="n1", code="x", next_incarnation=5)))
    await gateway.until(lambda: gateway.messages("attach")[-1].incarnation == 5)
    assert not lives(pid)
    await gateway.until(lambda: gateway.reports("run_finished"))
    [end] = gateway.reports("run_finished")
    assert end.evidence == common_pb2.EVIDENCE_KILLED_AND_REAPED


async def test_reports_wait_for_a_gateway_that_went_away(
    tmp_path: Path, gateway: FakeGateway, agent: Agent
) -> None:
    await agent.start()
    await attached(gateway)
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    await running(gateway, f"read word < {fifo}; exit 24")
    port = gateway.port
    await gateway.stop()
    await asyncio.to_thread(fifo.write_text, "go\n")
    await gateway.start(port)
    await gateway.until(lambda: gateway.reports("run_finished"))
    assert gateway.reports("run_finished")[0].exit_code == 24


async def test_an_agent_at_rest_is_small_and_says_how_it_is(
    gateway: FakeGateway, agent: Agent
) -> None:
    await agent.start()
    await attached(gateway)
    status = Path(f"/proc/{agent.process.pid}/status").read_text()  # noqa: ASYNC240
    [rss_kib] = re.findall(r"VmRSS:\s+(\d+) kB", status)
    assert int(rss_kib) / 1024 < RSS_MIB_MAX
    [address] = re.findall(r'"address": "([^"]+)"', agent.log)

    def ask(page: str) -> str:
        with urllib.request.urlopen(f"http://{address}/{page}", timeout=10) as answer:
            return str(answer.read().decode())

    assert (await asyncio.to_thread(ask, "readyz")).strip() == "ready"
    metrics = await asyncio.to_thread(ask, "metrics")
    assert "tidemill_agent_attached 1.0" in metrics
    assert 'tidemill_agent_runs{phase="running"} 0.0' in metrics


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--fake-gpus", "many"), ExitCode.SETTINGS, "such as 8xH100"),
        (("--labels", "zone"), ExitCode.SETTINGS, "NAME=VALUE"),
        (("--token-file", "/no/such"), ExitCode.SETTINGS, "cannot read /no/such"),
        (("--node", "a/b"), ExitCode.SETTINGS, "node"),
    ],
)
async def test_a_wrong_setting_ends_it_with_a_message(
    gateway: FakeGateway, tmp_path: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    agent = Agent(tmp_path, gateway)
    await agent.start(*flags)
    assert await agent.ended() == code
    assert said in agent.log


async def test_a_second_agent_on_one_state_directory_does_not_start(
    gateway: FakeGateway, agent: Agent, tmp_path: Path
) -> None:
    await agent.start()
    await attached(gateway)
    second = Agent(tmp_path, gateway)
    await second.start()
    assert await second.ended() == ExitCode.UNAVAILABLE
    assert "another agent uses" in second.log
