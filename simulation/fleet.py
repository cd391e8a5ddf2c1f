"""A fleet of simulated nodes on one real stream: the real agent core for each, and runs that only last.

For measuring and trying a cell with thousands of nodes: `python -m simulation.fleet --gateway ADDR --token-file FILE
--nodes FILE`. A run lasts as long as its command says (`simulated SECONDS`, or for ever), then exits with 0. Devices
are declared, and labelled as simulated. It never starts a process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
import msgspec

from services.agent import messages as m
from services.agent import wire
from services.agent.core import AgentCore
from services.agent.fencing import Now
from services.agent.link import LaunchGoneError, Link
from services.agent.runs import NEVER
from services.agent.table import AgentState, Ending
from statemachines.values import DeviceSpec, Evidence, Inventory, RunId
from tidemill.v1 import node_service_pb2 as pb

COMMAND: Final = "simulated"
_BOOT: Final = "simulated"
_RECONNECT_S: Final = 0.5


class NodeShape(msgspec.Struct, frozen=True):
    """A node to simulate."""

    name: str
    cpu_milli: int
    memory_mib: int
    devices: int = 0
    model: str = ""

    def inventory(self) -> Inventory:
        """As its agent would declare it."""
        cards = [
            DeviceSpec(i, self.model, f"{self.name}-{i}", simulated=True)
            for i in range(self.devices)
        ]
        return Inventory(
            "127.0.0.1", self.cpu_milli, self.memory_mib, tuple(cards),
            labels=(("simulated", "true"),), boot_id=_BOOT, agent_version="simulated",
        )  # fmt: skip


class SimulatedNode:
    """One agent core and the runs that last on it. `ends` asks for a call of `end` after a while."""

    def __init__(self, shape: NodeShape, fleet: Fleet, now: Now) -> None:
        self.name = shape.name
        self._fleet = fleet
        self._core = AgentCore(AgentState(shape.name, _BOOT), inventory=shape.inventory(), now=now)
        self._live: set[RunId] = set()
        self._events: deque[m.Event] = deque()
        self._busy = False
        self._tick_at_ms = NEVER

    def handle(self, event: m.Event, now: Now) -> None:
        """Take an event, and those that its actions cause."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        while self._events:
            for action in self._core.handle(self._events.popleft(), now):
                self._perform(action)
        self._busy = False
        due_ms = self._core.due_ms(now)
        if due_ms < NEVER and now.mono_ms + due_ms < self._tick_at_ms:
            self._tick_at_ms = now.mono_ms + due_ms
            self._fleet.call_after(due_ms / 1000, self._tick)

    def end(self, run: RunId) -> None:
        """The run has lasted as long as it should."""
        if run in self._live:
            self._live.discard(run)
            self.handle(m.Ended(run, Ending(Evidence.EXIT_STATUS)), self._fleet.now())

    def _tick(self) -> None:
        self._tick_at_ms = NEVER
        self.handle(m.Tick(), self._fleet.now())

    def _perform(self, action: m.Action) -> None:
        match action:
            case m.Persist(version=version):
                self._events.append(m.Persisted(version))
            case m.Fetch(digest=digest):
                self._fleet.fetch(digest, self)
            case m.Start(order=order):
                self._live.add(order.run)
                self._events.append(m.Started(order.run))
                lasts_s = self._fleet.lasts_s(order.launch)
                if lasts_s is not None:
                    self._fleet.call_after(lasts_s, lambda: self.end(order.run))
            case m.Terminate(run=run) | m.Kill(run=run):
                ended = run in self._live
                self._live.discard(run)
                how = Ending(Evidence.EXIT_STATUS, signal=signal.SIGTERM)
                self._events.append(m.Ended(run, how) if ended else m.Reaped(run))
            case m.Probe(run=run):
                self._events.append(m.Probed(run))
            case m.SendAttach() | m.SendBeat() | m.SendReport() | m.SendAck() | m.SendProbeFailed():
                self._fleet.send(wire.request(self.name, action))
            case m.Reconnect(reason=reason):
                self._fleet.reconnect(reason)
            case m.Renew() | m.Ask() | m.Forget():
                pass


class Fleet:
    """All nodes of one stream."""

    def __init__(self, shapes: Sequence[NodeShape], link: Link) -> None:
        now = self.now()
        self._link = link
        self._nodes: Mapping[str, SimulatedNode] = {
            shape.name: SimulatedNode(shape, self, now) for shape in shapes
        }
        self._outgoing: asyncio.Queue[pb.AttachRequest] = asyncio.Queue()
        self._lasts_s: dict[str, float | None] = {}
        self._fetching: dict[str, list[SimulatedNode]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer = 0
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._call: grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse] | None = None

    @staticmethod
    def now() -> Now:
        """All clocks of this host."""
        mono_ms = time.monotonic_ns() // 1_000_000
        return Now(mono_ms, mono_ms, time.time_ns() // 1_000_000)

    async def run(self) -> None:
        """Attach and stay attached until cancelled."""
        timers = asyncio.create_task(self._run_timers())
        try:
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await self._attached()
                for node in self._nodes.values():
                    node.handle(m.Disconnected(), self.now())
                await asyncio.sleep(_RECONNECT_S)
                await self._link.turn()
        finally:
            timers.cancel()

    # --- what nodes ask for

    def send(self, request: pb.AttachRequest) -> None:
        """To the gateway, when attached."""
        self._outgoing.put_nowait(request)

    def reconnect(self, reason: str) -> None:
        """Drop the stream and attach anew."""
        print(f"fleet: reconnects: {reason}", file=sys.stderr)
        if self._call is not None:
            self._call.cancel()

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, after a while."""
        self._timer += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._timer, call))
        self._woken.set()

    def lasts_s(self, launch: str) -> float | None:
        """How long a run of this launch lasts; None: for ever."""
        return self._lasts_s[launch]

    def fetch(self, digest: str, node: SimulatedNode) -> None:
        """Tell the node once what the launch says is known."""
        if digest in self._lasts_s:
            node.handle(m.LaunchReady(digest), self.now())
            return
        waiting = self._fetching.setdefault(digest, [])
        waiting.append(node)
        if len(waiting) == 1:
            task = asyncio.create_task(self._fetch(digest))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # --- the stream

    async def _attached(self) -> None:
        self._outgoing = asyncio.Queue()
        self._call = self._link.attach()
        sending = asyncio.create_task(self._send_all(self._call))
        try:
            for node in self._nodes.values():
                node.handle(m.Connected(), self.now())
            async for answer in _answers(self._call):
                event = wire.event(answer)
                kind = answer.WhichOneof("kind")
                if event is not None and kind is not None:
                    about: str = getattr(answer, kind).node
                    self._nodes[about].handle(event, self.now())
        finally:
            sending.cancel()
            self._call.cancel()

    async def _send_all(
        self, call: grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]
    ) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await self._outgoing.get())

    async def _fetch(self, digest: str) -> None:
        try:
            launch = await self._link.launch(digest)
            self._lasts_s[digest] = _lasts_s(launch.argv)
            event: m.Event = m.LaunchReady(digest)
        except LaunchGoneError as error:
            event = m.LaunchMissing(digest, str(error))
        for node in self._fetching.pop(digest):
            node.handle(event, self.now())

    async def _run_timers(self) -> None:
        while True:
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()
            wait_s = self._timers[0][0] - time.monotonic() if self._timers else None
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), wait_s)


async def _answers(
    call: grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse],
) -> AsyncIterator[pb.AttachResponse]:
    async for answer in call:
        yield answer


def _lasts_s(argv: Sequence[str]) -> float | None:
    if len(argv) == 2 and argv[0] == COMMAND:
        with contextlib.suppress(ValueError):
            return float(argv[1])
    return None


def main(argv: Sequence[str]) -> int:
    """Simulate the nodes of a file until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m simulation.fleet", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--gateway", required=True, help="address of a gateway, HOST:PORT")
    parser.add_argument(
        "--token-file", required=True, type=Path, help="file that holds a node token"
    )
    parser.add_argument(
        "--nodes",
        required=True,
        type=Path,
        help="JSON list of {name, cpu_milli, memory_mib, devices, model}",
    )
    options = parser.parse_args(argv)
    shapes = msgspec.json.decode(options.nodes.read_bytes(), type=list[NodeShape])
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        asyncio.run(
            _main(shapes, options.gateway, options.token_file.read_text(encoding="ascii").strip())
        )
    return 0


async def _main(shapes: Sequence[NodeShape], gateway: str, token: str) -> None:
    task = asyncio.current_task()
    assert task is not None, "asyncio.run makes a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await Fleet(shapes, Link(lambda: (gateway,), token=token)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
