"""Simulated hosts: the real agent core, a disk that can fail, processes that outlive their agent, a network that can be cut.

What physics knows is kept here and checked as it happens: which run really holds which device, and how often each run
was really started. The cell knows none of it but by reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from google.protobuf.message import Message

from services.agent import messages as m
from services.agent import wire
from services.agent.core import NEVER, AgentCore
from services.agent.fencing import Now, Stamp
from services.agent.orders import Order
from services.agent.table import AgentState, Ending
from services.gateway.refusal import Refusal
from services.gateway.sessions import AttachStream
from simulation.kernel import US_PER_MS, Kernel
from simulation.process import Process, SimClock
from simulation.services import AGENT, GatewayProcess
from simulation.training import Gang, Program, Rank, Reporter, Storage
from statemachines.values import DeviceSpec, Evidence, Inventory, RunId
from tidemill.v1 import node_service_pb2 as pb

_CONNECT_MS = (300, 1_500)
_SILENT_STREAM_MS = 15_000


class Physics:
    """What is really so, for all hosts: gangs, storage, devices held, starts."""

    def __init__(self, kernel: Kernel, gateways: list[GatewayProcess]) -> None:
        self.kernel = kernel
        self.storage = Storage()
        self.reporter = Reporter(kernel, gateways)
        self.programs: dict[str, Program] = {}
        self.overlap_safe: dict[str, bool] = {}
        self.gangs: dict[tuple[str, int], Gang] = {}
        self.held: dict[tuple[str, int], RunId] = {}
        self.starts: dict[RunId, int] = {}
        self.alive: dict[str, dict[int, int]] = {}
        self.broken: list[str] = []

    def started(self, host: str, order: Order, exit_: Callable[[int, int], None]) -> None:
        """Processes of a run exist."""
        run = order.run
        self.starts[run] = self.starts.get(run, 0) + 1
        if self.starts[run] > 1:
            self.broken.append(f"G: run {run} was started {self.starts[run]} times")
        for grant in order.devices:
            holder = self.held.setdefault((host, grant.index), run)
            if holder != run:
                self.broken.append(
                    f"A: device {grant.index} of {host} really serves {holder} and {run}"
                )
        attempts = self.alive.setdefault(order.job, {})
        attempts[order.attempt] = attempts.get(order.attempt, 0) + 1
        if not order.overlap_safe and len(attempts) > 1:
            self.broken.append(
                f"J: attempts {sorted(attempts)} of job {order.job} really run at once"
            )
        if order.resume.uri and order.resume.uri not in self.storage.committed:
            self.broken.append(
                f"E: {run} starts from {order.resume.uri}, which was never committed"
            )
        key = (order.job, order.attempt)
        if key not in self.gangs:
            self.gangs[key] = Gang(
                self.kernel, order, self.programs[order.launch], self.storage, self.reporter
            )
        self.gangs[key].join(Rank(order, exit_))

    def ended(self, host: str, order: Order) -> None:
        """Nothing of a run lives any more."""
        for grant in order.devices:
            if self.held.get((host, grant.index)) == order.run:
                del self.held[host, grant.index]
        attempts = self.alive[order.job]
        attempts[order.attempt] -= 1
        if not attempts[order.attempt]:
            del attempts[order.attempt]
        self.gangs[order.job, order.attempt].leave(order.rank)


class HostProcess:
    """A run's processes on a host, under a supervisor that outlives the agent."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.ending: Ending | None = None


class Host(Process):
    """One node: its agent is the process that crashes and restarts; the machine can reboot or vanish."""

    def __init__(
        self,
        physics: Physics,
        gateways: list[GatewayProcess],
        name: str,
        clock: SimClock,
        *,
        devices: int,
        cpu_milli: int,
        crash_ppm: int = 0,
    ) -> None:
        super().__init__(physics.kernel, name, crash_ppm=crash_ppm)
        self.core: AgentCore | None = None
        self.cut_up = False
        self.cut_down = False
        self.disk_full = False
        self.dead = False
        self.boots = 1
        self.runs: dict[RunId, HostProcess] = {}
        self._physics, self._gateways, self._clock = physics, gateways, clock
        self._devices, self._cpu_milli = devices, cpu_milli
        self._disk: AgentState | None = None
        self._renewed: Stamp | None = None
        self._stream: AttachStream | None = None
        self._gateway: GatewayProcess | None = None
        self._heard_ms = 0
        self._events: deque[m.Event] = deque()
        self._handling = False
        self._connection = 0

    # --- life of the agent

    def begin(self) -> None:
        """Restore the state, adopt what lives, attach."""
        boot = f"boot-{self.boots}"
        state = self._disk or AgentState(self.name, boot)
        self.core = AgentCore(
            state, inventory=self._inventory(boot), now=self._now(), renewed=self._renewed
        )
        self._events.clear()
        self._handling = False
        for run in list(self.core.unadopted):
            process = self.runs.get(run)
            if process is None:
                self.feed(m.Adopted(run, alive=False))
            elif process.ending is None:
                self.feed(m.Adopted(run, alive=True))
            else:
                self.feed(m.Ended(run, process.ending))
        for run in [each for each in self.runs if each not in self.core.table]:
            self._kill_process(run, Evidence.KILLED_AND_REAPED)
        self._connect_later()

    def turn(self) -> None:
        """Time passed."""
        if self._gateway is not None and self.kernel.now_ms - self._heard_ms > _SILENT_STREAM_MS:
            self._disconnected()  # Keepalive: nothing has been heard for too long.
        self.feed(m.Tick())

    def ended(self) -> None:
        """The agent is gone; what it started goes on."""
        self.core = None
        self._close_stream()

    def reboot(self, down_ms: int) -> None:
        """The machine goes down with everything on it, and comes back."""
        for run in list(self.runs):
            self._kill_process(run, None)
        self.runs.clear()
        self.boots += 1
        self._renewed = None
        self.kernel.note(f"{self.name} reboots")
        if self.up:
            self.crash(restart_after_ms=down_ms)

    # --- the core

    def feed(self, event: m.Event) -> None:
        """Take an event, and those that its actions cause."""
        if self.core is None:
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        while self._events and self.core is not None:
            for action in self.core.handle(self._events.popleft(), self._now()):
                self.point("before action")
                self._perform(action)
        self._handling = False
        if self.core is not None:
            due_ms = min(self.core.due_ms(self._now()), 1_000 if self.core.live_runs else 5_000)
            if due_ms < NEVER:
                self.wake(max(due_ms, 1))

    def _perform(self, action: m.Action) -> None:
        match action:
            case m.Persist(version=version, state=state):
                self.later(self._chance.randint(1, 8), lambda: self._persisted(version, state))
            case m.Renew(stamp=stamp):
                self._renewed = stamp
            case m.Fetch(digest=digest):
                self.later(10, lambda: self._fetched(digest))
            case m.Start(order=order):
                self.later(self._chance.randint(20, 400), lambda: self._start(order))
            case m.Terminate(run=run):
                self._terminate(run)
            case m.Kill(run=run):
                self.later(self._chance.randint(5, 100), lambda: self._kill(run))
            case m.Probe(run=run):
                self.later(50, lambda: self.feed(m.Probed(run)))
            case m.Ask(run=run, ask=ask, at_step=at_step, stop_after=stop_after):
                process = self.runs.get(run)
                if process is not None and process.order.rank == 0:
                    gang = self._physics.gangs[process.order.job, process.order.attempt]
                    gang.ask(ask, at_step, stop_after=stop_after)
            case m.Forget(run=run):
                process = self.runs.get(run)
                if process is not None and process.ending is not None:
                    del self.runs[run]
            case m.Reconnect():
                self._disconnected()
            case m.SendAttach() | m.SendBeat() | m.SendReport() | m.SendAck() | m.SendProbeFailed():
                self._send(wire.request(self.name, action))

    # --- disk and processes

    def _persisted(self, version: int, state: AgentState) -> None:
        if self.disk_full:
            self.feed(m.PersistFailed(version))
            return
        self._disk = state
        self.point("after persist")
        self.feed(m.Persisted(version))

    def _fetched(self, digest: str) -> None:
        if self._gateway is None or self.cut_up or self.cut_down:
            self.later(500, lambda: self._fetched(digest))
            return
        self.feed(m.LaunchReady(digest))

    def _start(self, order: Order) -> None:
        self.point("before start")
        process = self.runs[order.run] = HostProcess(order)
        self._physics.started(
            self.name, order, lambda code, signal: self._exited(order.run, code, signal)
        )
        self.point("after start")
        if process.ending is None:
            self.feed(m.Started(order.run))

    def _exited(self, run: RunId, code: int, signal: int) -> None:
        """The program ended by itself; its supervisor knows how."""
        process = self.runs.get(run)
        if process is None or process.ending is not None:
            return
        process.ending = Ending(Evidence.EXIT_STATUS, exit_code=code, signal=signal)
        self._physics.ended(self.name, process.order)
        ending = process.ending
        self.later(5, lambda: self.feed(m.Ended(run, ending)))

    def _terminate(self, run: RunId) -> None:
        process = self.runs.get(run)
        if process is None or process.ending is not None:
            return
        if not self._physics.programs[process.order.launch].ignores_sigterm:
            delay_ms = self._chance.randint(10, 2_000)
            self.kernel.after(delay_ms * US_PER_MS, lambda: self._exited(run, 143, 0))

    def _kill(self, run: RunId) -> None:
        process = self.runs.get(run)
        if process is None:
            self.feed(m.Reaped(run))
            return
        if process.ending is None:
            self._kill_process(run, Evidence.EXIT_STATUS)
        ending = process.ending
        assert ending is not None, "killed"
        self.feed(m.Ended(run, ending))

    def _kill_process(self, run: RunId, evidence: Evidence | None) -> None:
        process = self.runs[run]
        if process.ending is None:
            process.ending = Ending(evidence or Evidence.KILLED_AND_REAPED, signal=9)
            self._physics.ended(self.name, process.order)

    # --- the stream

    def _connect_later(self) -> None:
        self._connection += 1
        number = self._connection
        self.later(self._chance.randint(*_CONNECT_MS), lambda: self._connect(number))

    def _connect(self, number: int) -> None:
        if number != self._connection or self._gateway is not None:
            return
        up = [each for each in self._gateways if each.up and not each.paused]
        if not up or self.cut_up or self.cut_down:
            self._connect_later()
            return
        gateway = self._chance.choice(up)
        assert gateway.core is not None, "up"
        stream = gateway.core.agents.open(AGENT)
        self._gateway, self._stream, self._heard_ms = gateway, stream, self.kernel.now_ms
        gateway.drain(stream, lambda message: self._hear(stream, message))
        gateway.lost.append(lambda: self._lost(stream))
        self.feed(m.Connected())

    def _send(self, request: pb.AttachRequest) -> None:
        gateway, stream = self._gateway, self._stream
        if gateway is None or stream is None:
            return
        delay_ms = self._chance.randint(1, 3)
        self.kernel.after(delay_ms * US_PER_MS, lambda: self._arrive(gateway, stream, request))

    def _arrive(
        self, gateway: GatewayProcess, stream: AttachStream, request: pb.AttachRequest
    ) -> None:
        if self.cut_up or self._stream is not stream or not gateway.up or gateway.core is None:
            return
        if gateway.paused:
            self.kernel.after(50 * US_PER_MS, lambda: self._arrive(gateway, stream, request))
            return
        core = gateway.core

        def take() -> None:
            try:
                core.agents.take(stream, request, gateway.now())
            except Refusal as refusal:
                self.kernel.note(f"{self.name} refused: {refusal.code}")
                self._lost(stream)
            gateway.perform()

        gateway.guarded(take)

    def _hear(self, stream: AttachStream, message: Message | None) -> None:
        """The gateway sent something; None: it cut the stream."""
        if message is None:
            self._lost(stream)
            return
        delay_ms = self._chance.randint(1, 3)
        self.kernel.after(delay_ms * US_PER_MS, lambda: self._heard(stream, message))

    def _heard(self, stream: AttachStream, message: Message) -> None:
        if self._stream is not stream or self.cut_down or not self.up:
            return
        if self.paused:
            self.kernel.after(50 * US_PER_MS, lambda: self._heard(stream, message))
            return
        self._heard_ms = self.kernel.now_ms
        assert isinstance(message, pb.AttachResponse), "what an attach stream carries"
        event = wire.event(message)
        if event is not None:
            self.guarded(lambda: self.feed(event))

    def _lost(self, stream: AttachStream) -> None:
        """The connection broke, and both ends know."""
        if self._stream is stream and self.up:
            self.later(1, lambda: self._disconnected() if self._stream is stream else None)

    def _disconnected(self) -> None:
        self._close_stream()
        self.feed(m.Disconnected())
        self._connect_later()

    def _close_stream(self) -> None:
        gateway, stream = self._gateway, self._stream
        self._gateway = self._stream = None
        if (
            gateway is not None
            and stream is not None
            and gateway.up
            and gateway.core is not None
            and not self.cut_up
        ):
            gateway.core.agents.close(stream)
            gateway.perform()

    # --- facts of the machine

    def _inventory(self, boot: str) -> Inventory:
        cards = tuple(
            DeviceSpec(i, "H100", f"{self.name}-{i}", simulated=True) for i in range(self._devices)
        )
        return Inventory(
            "10.0.0.1", self._cpu_milli, 1 << 20, cards, boot_id=boot, agent_version="sim"
        )

    def _now(self) -> Now:
        mono_ms = self._clock.monotonic_ms()
        return Now(mono_ms, mono_ms, self._clock.wall_ms())
