"""Simulated hosts: the real agent core, a disk that can fail, processes that outlive their agent, links that can be cut.

Two networks: the one to the gateways, which is cut one way or both, and the interfaces over which gangs talk, whose
links go down and up. What breaks is told as the agent would tell it, by signals.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from services.agent import messages as m
from services.agent import wire
from services.agent.core import AgentCore
from services.agent.fencing import Now, Stamp
from services.agent.orders import Order
from services.agent.table import AgentState, Ending
from services.gateway.refusal import Refusal
from services.gateway.sessions import AttachStream
from simulation.gateway import AGENT, Drain, GatewayProcess
from simulation.kernel import US_PER_MS
from simulation.physics import Physics
from simulation.pipe import Pipe
from simulation.process import Process, SimClock
from statemachines.values import DeviceSpec, Evidence, Inventory, NicSpec, RunId
from tidemill.v1 import node_service_pb2 as pb
from tidemill.v1 import telemetry_pb2

_CONNECT_MS = (300, 1_500)
_SILENT_STREAM_MS = 15_000
_LOOK_MS = 5_000
_TICK = m.Tick()
# What an interface runs at, in Mb/s.
RATE_MBPS: Final = 400_000
# An interface that is down is told again this often, for a signal may be lost.
_TELL_LINKS_MS = 10_000


class HostProcess:
    """A run's processes on a host, under a supervisor that outlives the agent."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.ending: Ending | None = None


class _Line:
    """One connection of a host to a gateway. A cut direction holds back what goes that way."""

    def __init__(self, host: Host, gateway: GatewayProcess, stream: AttachStream) -> None:
        self.host, self.gateway, self.stream = host, gateway, stream
        kernel, chance = host.kernel, host.chance
        self.up = Pipe(kernel, chance, self._up_blocked, self._arrive)
        self.down = Pipe(kernel, chance, self._down_blocked, host.hear)
        gateway.drain(stream, Drain(self.down.send, self._broke))

    def close(self) -> None:
        """The host hangs up; behind a cut the gateway does not learn it, and holds half a connection."""
        self.up.close()
        self.down.close()
        gateway = self.gateway
        if gateway.up and gateway.core is not None and not self.host.cut_up:
            gateway.undrain(self.stream)
            gateway.core.agents.close(self.stream)
            gateway.perform()

    def _up_blocked(self) -> bool:
        return self.host.cut_up or self.gateway.paused

    def _down_blocked(self) -> bool:
        return self.host.cut_down or self.host.paused

    def _arrive(self, request: pb.AttachRequest) -> None:
        gateway = self.gateway
        if gateway.up:
            gateway.guarded(self._take, request)

    def _take(self, request: pb.AttachRequest) -> None:
        core = self.gateway.core
        assert core is not None, "up"
        try:
            core.agents.take(self.stream, request, self.gateway.now())
        except Refusal as refusal:
            self.host.kernel.note(f"{self.host.name} refused: {refusal.code}")
            self._broke()
        self.gateway.perform()

    def _broke(self) -> None:
        """The gateway cut the stream, or crashed."""
        self.host.line_broke(self)


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
        nics: int,
        cpu_milli: int,
        crash_ppm: int = 0,
    ) -> None:
        super().__init__(physics.kernel, name, crash_ppm=crash_ppm)
        self.core: AgentCore | None = None
        self.cut_up = False
        self.cut_down = False
        self.disk_full = False
        self.disk_ms = 0
        # Of the last writes that were acknowledged, how many a power cut undoes: a disk that lies.
        self.unsynced_max = 0
        self.dead = False
        self.boots = 1
        self.links: dict[str, bool] = {f"ib{i}": True for i in range(nics)}
        # Interfaces that are up and carry nothing that a gang sends.
        self._deaf: set[str] = set()
        self.runs: dict[RunId, HostProcess] = {}
        self._physics, self._gateways, self._clock = physics, gateways, clock
        physics.reporter.ways[name] = self
        # Cards that were put into each slot until now.
        self._cards = [1] * devices
        self._cpu_milli = cpu_milli
        self._disk: AgentState | None = None
        self._written: deque[AgentState | None] = deque(maxlen=8)
        self._renewed: Stamp | None = None
        self._line: _Line | None = None
        self._heard_ms = 0
        self._events: deque[m.Event] = deque()
        self._handling = False
        self._connection = 0
        self._tell_links_ms = 0

    # --- life of the agent

    def begin(self) -> None:
        """Restore the state, adopt what lives, attach; a dead machine does nothing of it."""
        if self.dead:
            self.up = False
            return
        boot = f"boot-{self.boots}"
        state = self._disk or AgentState(self.name, boot)
        self.core = AgentCore(
            state, inventory=self._inventory(boot), now=self._now(), renewed=self._renewed
        )
        self._events.clear()
        self._handling = False
        strays = [run for run in self.runs if run not in self.core.table]
        for run in [each for each in strays if self.runs[each].ending is not None]:
            del self.runs[run]
        self.feed(m.Strays(tuple(run for run in strays if run in self.runs)))
        for run in list(self.core.unadopted):
            process = self.runs.get(run)
            if process is None:
                self.feed(m.Adopted(run, alive=False))
            elif process.ending is None:
                self.feed(m.Adopted(run, alive=True))
            else:
                self.feed(m.Ended(run, process.ending))
        self._connect_later()

    def turn(self) -> None:
        """Time passed."""
        now_ms = self.kernel.now_ms
        if now_ms >= self._tell_links_ms:
            self._tell_links_ms = now_ms + _TELL_LINKS_MS
            for name, up in self.links.items():
                if not up:
                    self._signal_link(name)
        if self._line is not None and now_ms - self._heard_ms > _SILENT_STREAM_MS:
            self._disconnected()  # Keepalive: nothing has been heard for too long.
        self.feed(_TICK)

    def ended(self) -> None:
        """The agent is gone; what it started goes on."""
        self.core = None
        self._hang_up()

    def reboot(self, down_ms: int) -> None:
        """The machine goes down with everything on it, and comes back; a lying disk has lost its last writes."""
        self._power_off()
        self.boots += 1
        if self.up:
            self.crash(restart_after_ms=down_ms)

    def die(self) -> None:
        """The machine is gone for good, until `repair`."""
        self._power_off()
        self._physics.reporter.lose(self.name)
        self.dead = True
        self.crash(restart_after_ms=0)

    def repair(self) -> None:
        """It comes back from the workshop with another boot and an empty disk."""
        if not self.dead:
            return
        self.dead = False
        self.boots += 1
        self._disk = None
        self._written.clear()
        for name in self.links:
            self.link(name, up=True)
        self.start()

    def _power_off(self) -> None:
        self.kernel.note(f"{self.name} loses power")
        for run in list(self.runs):
            self._kill_process(run, None)
        self.runs.clear()
        self._renewed = None
        for _ in range(min(self.unsynced_max, len(self._written))):
            self._disk = self._written.pop()

    # --- interfaces and devices

    def link(self, name: str, *, up: bool) -> None:
        """An interface lost or regained its link; the agent says so when it can."""
        if self.links.get(name, up) == up:
            return
        self.links[name] = up
        self.kernel.note(f"{self.name} {name} {'up' if up else 'down'}")
        self._linked()
        self._signal_link(name)

    def carry(self, name: str, *, large: bool) -> None:
        """Whether an interface takes large frames, as gangs send them; the agent's counters tell, its links do not."""
        if large:
            self._deaf.discard(name)
        else:
            self._deaf.add(name)
        self._linked()

    def _linked(self) -> None:
        works = sum(up and name not in self._deaf for name, up in self.links.items())
        self._physics.linked(self.name, up=works, of=len(self.links))

    def signal(
        self,
        kind: telemetry_pb2.SignalKind.ValueType,
        *,
        device: int = 0,
        code: str = "",
        nic: str = "",
    ) -> None:
        """Something that a device or interface did, seen by the agent; lost when it is not attached."""
        if self.core is None or self.paused:
            return
        signal = telemetry_pb2.Signal(
            node=self.name, incarnation=self.core.incarnation, at_ms=self._clock.wall_ms(),
            kind=kind, device=device, nic=nic, code=code,
        )  # fmt: skip
        if self.core.attached:
            self._send(pb.AttachRequest(signal=signal))

    def card(self, index: int) -> str:
        """The serial number of what is in a slot."""
        return f"{self.name}-{index}-{self._cards[index]}"

    def replace_card(self, index: int) -> None:
        """Another card is put into a slot; the agent finds it when it starts again."""
        self._cards[index] += 1
        self.crash()

    def join_network(self) -> None:
        """The way to the gateways is open again."""
        self.cut_up = self.cut_down = False

    def empty_disk(self) -> None:
        """The disk has room and is quick again."""
        self.disk_full, self.disk_ms = False, 0

    def tell_links(self) -> None:
        """Say how every interface is."""
        for name in self.links:
            self._signal_link(name)

    def mend(self) -> None:
        """All that can be broken of it works again."""
        self.join_network()
        self.empty_disk()
        self.unsynced_max = 0
        self.repair()
        for name in self.links:
            self.link(name, up=True)
            if name in self._deaf:
                self.carry(name, large=True)

    def _signal_link(self, name: str) -> None:
        code = "up" if self.links[name] else "down"
        self.signal(telemetry_pb2.SIGNAL_KIND_NIC_LINK, nic=name, code=code)

    # --- the core

    def feed(self, event: m.Event) -> None:
        """Take an event, and those that its actions cause."""
        if self.core is None:
            return
        if self._handling:
            self._events.append(event)
            return
        self._handling = True
        now, core, each = self._now(), self.core, event
        while True:
            for action in core.handle(each, now):
                if self.crash_in or self.crash_at or self.crash_ppm:
                    self.point("before action")
                self._perform(action)
            if not self._events:
                break
            each = self._events.popleft()
        self._handling = False
        if type(event) is not m.BeatAcked:  # Which moves nothing nearer.
            self.wake(max(min(core.due_ms(now), _LOOK_MS), 1))

    def _perform(self, action: m.Action) -> None:  # noqa: C901 - one case an action
        match action:
            case m.Renew(stamp=stamp):
                self._renewed = stamp
            case m.SendBeat() | m.SendReport() | m.SendAck() | m.SendAttach() | m.SendProbeFailed():
                if self._line is not None:
                    self._line.up.send(wire.request(self.name, action))
            case m.Persist(version=version, state=state):
                delay_ms = self.chance.randint(1, 8) + self.disk_ms
                self.later(delay_ms, self._persisted, version, state)
            case m.Fetch(digest=digest):
                self.later(10, self._fetched, digest)
            case m.Start(order=order):
                self.later(self.chance.randint(20, 400), self._start, order)
            case m.Terminate(run=run):
                self._terminate(run)
            case m.Kill(run=run):
                self.later(self.chance.randint(5, 100), self._kill, run)
            case m.Probe(run=run):
                self.later(50, self.feed, m.Probed(run))
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

    # --- disk and processes

    def _persisted(self, version: int, state: AgentState) -> None:
        if self.disk_full:
            self.feed(m.PersistFailed(version))
            return
        self._written.append(self._disk)
        self._disk = state
        self.point("after persist")
        self.feed(m.Persisted(version))

    def _fetched(self, digest: str) -> None:
        if self._line is None or self.cut_up or self.cut_down:
            self.later(500, self._fetched, digest)
            return
        self.feed(m.LaunchReady(digest))

    def _start(self, order: Order) -> None:
        self.point("before start")
        process = self.runs[order.run] = HostProcess(order)
        self._physics.started(
            self.name, order, lambda code, signal: self._exited(order.run, code, signal)
        )
        if order.fenced_after_ms:
            self._supervise(process, since_ms=self._clock.monotonic_ms())
        self.point("after start")
        if process.ending is None:
            self.feed(m.Started(order.run))

    def _supervise(self, process: HostProcess, since_ms: int) -> None:
        """Its supervisor kills a run once no renewal has come for too long, whether or not the agent lives."""
        if process.ending is not None:
            return
        renewed_ms = max(since_ms, self._renewed.mono_ms if self._renewed else 0)
        left_ms = renewed_ms + process.order.fenced_after_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            look = partial(self._supervise, process, renewed_ms)
            self.kernel.after(left_ms * US_PER_MS, look)
            return
        process.ending = Ending(Evidence.SELF_FENCED, signal=9)
        self._physics.ended(self.name, process.order)
        if self.up:
            self.later(5, self.feed, m.Ended(process.order.run, process.ending))

    def _exited(self, run: RunId, code: int, signal: int) -> None:
        """The program ended by itself; its supervisor knows how."""
        process = self.runs.get(run)
        if process is None or process.ending is not None:
            return
        process.ending = Ending(Evidence.EXIT_STATUS, exit_code=code, signal=signal)
        self._physics.ended(self.name, process.order)
        ending = process.ending
        self.later(5, self.feed, m.Ended(run, ending))

    def _terminate(self, run: RunId) -> None:
        process = self.runs.get(run)
        if process is None or process.ending is not None:
            return
        if not self._physics.programs[process.order.launch].ignores_sigterm:
            delay_ms = self.chance.randint(10, 2_000)
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
        self.later(self.chance.randint(*_CONNECT_MS), self._connect, number)

    def _connect(self, number: int) -> None:
        if number != self._connection or self._line is not None:
            return
        up = [each for each in self._gateways if each.up and not each.paused]
        if not up or self.cut_up or self.cut_down:
            self._connect_later()
            return
        gateway = self.chance.choice(up)
        assert gateway.core is not None, "up"
        self._line = _Line(self, gateway, gateway.core.agents.open(AGENT))
        self._heard_ms = self.kernel.now_ms
        self.feed(m.Connected())

    def _send(self, request: pb.AttachRequest) -> None:
        if self._line is not None:
            self._line.up.send(request)

    def hear(self, message: pb.AttachResponse) -> None:
        """A gateway said something."""
        self._heard_ms = self.kernel.now_ms
        event = wire.event(message)
        if event is not None:
            self.guarded(self.feed, event)

    def line_broke(self, line: _Line) -> None:
        """The connection is gone, and both ends know."""
        if self._line is line and self.up:
            self.later(1, lambda: self._disconnected() if self._line is line else None)

    def _disconnected(self) -> None:
        self._hang_up()
        self.feed(m.Disconnected())
        self._connect_later()

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    # --- facts of the machine

    def _inventory(self, boot: str) -> Inventory:
        cards = tuple(
            DeviceSpec(i, "H100", self.card(i), simulated=True) for i in range(len(self._cards))
        )
        nics = tuple(NicSpec(name, RATE_MBPS, kind="infiniband") for name in self.links)
        return Inventory(
            "10.0.0.1", self._cpu_milli, 1 << 20, cards, nics, boot_id=boot, agent_version="sim"
        )

    def _now(self) -> Now:
        now_ms = self.kernel.now_ms
        return Now(now_ms, now_ms, now_ms + self._clock.ahead_ms)
