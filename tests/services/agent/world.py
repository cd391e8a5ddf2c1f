"""A node on virtual time around the agent's core: a disk that keeps what was synced, and processes as facts.

It carries out actions when it is told to, so a test can stop between any two of them; `crash` loses all that was not
on disk, and nothing of what runs.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec.structs import replace

from services.agent import messages as m
from services.agent.core import AgentCore
from services.agent.fencing import Now, Stamp
from services.agent.orders import Action, DesiredSet, Order, Position, set_digest
from services.agent.outbox import Report, RunFinished
from services.agent.table import AgentState, Ending
from statemachines.values import DeviceSpec, Evidence, Grant, Inventory, RunId

INVENTORY = Inventory("10.0.0.1", 8_000, 8_000, (DeviceSpec(0, "H100"),), boot_id="boot-1")
FENCE_MS = 60_000


def order(run: str, **fields: Any) -> Order:
    job, attempt, rank = run.rsplit(".", 2)
    made = Order(
        run=RunId(run),
        job=job,
        attempt=int(attempt),
        rank=int(rank),
        action=Action.RUN,
        launch="l",
        grace_ms=30_000,
        fence_after_ms=FENCE_MS,
    )
    made = replace(made, **fields)
    return replace(made, digest=hashlib.sha256(repr(made).encode()).digest())


def stop(run: str, **fields: Any) -> Order:
    return order(run, action=Action.STOP, **fields)


class Node:
    """The core, its disk, its clock and the processes it started."""

    def __init__(self) -> None:
        self.now = Now(1_000_000, 2_000_000, 1_700_000_000_000)
        self.disk: AgentState | None = None
        self.stamp: Stamp | None = None
        self.disk_full = False
        self.inventory = INVENTORY
        # Devices that no longer answer a probe.
        self.failing: tuple[tuple[int, str], ...] = ()
        self.alive: set[str] = set()
        self.ever: list[str] = []
        self.done: list[m.Action] = []
        self.core = self._boot()

    # --- what happens

    def feed(self, event: m.Event) -> list[m.Action]:
        """The core takes an event; its actions wait to be carried out."""
        actions = self.core.handle(event, self.now)
        self.done += actions
        return actions

    def say(self, event: m.Event) -> None:
        """As `feed`, and everything that follows happens at once."""
        todo = list(self.feed(event))
        while todo:
            todo += [action for answer in self.act(todo.pop(0)) for action in self.feed(answer)]

    def act(self, action: m.Action) -> list[m.Event]:
        """Carry out one action; what the core hears of it."""
        match action:
            case m.Persist(version=version, state=state):
                if self.disk_full:
                    return [m.PersistFailed(version)]
                self.disk = state
                return [m.Persisted(version)]
            case m.Renew(stamp=stamp):
                self.stamp = stamp
            case m.Fetch(digest=digest):
                return [m.LaunchReady(digest)]
            case m.Start(order=started):
                self.start(started.run)
                return [m.Started(started.run)]
            case m.Kill(run=run):
                if run in self.alive:
                    return [self.end(run, signal=9)]
                return [m.Reaped(run)]
            case m.Probe(run=run):
                return [m.Probed(run, self.failing)]
            case _:
                pass
        return []

    def start(self, run: str) -> None:
        assert run not in self.ever, f"{run} was started twice"
        self.ever.append(run)
        self.alive.add(run)

    def end(self, run: str, code: int = 0, signal: int = 0) -> m.Ended:
        """The run's processes are gone; what its supervisor kept."""
        self.alive.remove(run)
        return m.Ended(RunId(run), Ending(Evidence.EXIT_STATUS, code, signal))

    def attach(self) -> None:
        """A gateway takes the node, and acknowledges its first beat."""
        self.say(m.Connected())
        self.say(m.Welcomed("c", 2_000))
        self.ack_beat()

    def ack_beat(self) -> None:
        self.say(m.BeatAcked(self.beats()[-1].sequence))

    def wait(self, ms: int, *, ack: bool = False, suspended: bool = False) -> None:
        """Time passes as the core asks to be woken; `suspended`: only CLOCK_BOOTTIME sees it."""
        if suspended:
            self.now = replace(self.now, boot_ms=self.now.boot_ms + ms)
            self.say(m.Tick())
            return
        end = self.now.mono_ms + ms
        while self.now.mono_ms < end:
            step = max(min(self.core.due_ms(self.now), end - self.now.mono_ms), 1)
            self.now = Now(
                self.now.mono_ms + step, self.now.boot_ms + step, self.now.wall_ms + step
            )
            before = len(self.beats())
            self.say(m.Tick())
            if ack and len(self.beats()) > before:
                self.ack_beat()

    def freeze(self, ms: int) -> None:
        """The agent is stopped for that long: clocks go on, it hears and does nothing."""
        self.now = Now(self.now.mono_ms + ms, self.now.boot_ms + ms, self.now.wall_ms + ms)

    def desire(self, *orders: Order, term: int = 1, offset: int = 1) -> m.Desired:
        at = Position(term, offset)
        return m.Desired(DesiredSet(at, full=True, changed=orders, digest=set_digest(orders)))

    def crash(self, *, adopt: bool = True) -> None:
        """The agent dies and is started again; its runs go on."""
        self.core = self._boot()
        if adopt:
            for run in self.core.unadopted:
                self.say(m.Adopted(run, alive=run in self.alive))

    def _boot(self) -> AgentCore:
        state = self.disk or AgentState("n1", self.inventory.boot_id)
        core = AgentCore(state, inventory=self.inventory, now=self.now, renewed=self.stamp)
        self.core = core
        self.say(m.Tick())
        return core

    # --- what was done

    def sent(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.done if isinstance(action, kind)]

    def beats(self) -> list[m.SendBeat]:
        return self.sent(m.SendBeat)

    def reports(self) -> list[Report]:
        return [action.report for action in self.sent(m.SendReport)]

    def ends(self) -> dict[str, RunFinished]:
        return {r.kind.run: r.kind for r in self.reports() if isinstance(r.kind, RunFinished)}

    def evidence(self, run: str) -> Evidence:
        return self.ends()[run].evidence


def devices(count: int) -> tuple[Grant, ...]:
    return tuple(Grant(index, 1000) for index in range(count))
