"""The agent's rules: what the cell says and what the host says in, what to do and what to say out.

It owns the connection's standing, the incarnation, which desired set counts, what must be on disk first, and beats; the
rules of single runs are in runs.py. It never touches a process, a file, a socket or a clock: events and clock values
are handed in, actions are given back in the order in which they must happen.

What holds, whatever is lost, repeated or cut short:
- a desired set older than the stored one changes nothing;
- nothing is started before the set that orders it and its table entry are on disk, nor twice, nor from a set that
  this connection has not confirmed, nor while cut off for longer than the run allows;
- an end is reported until acknowledged, and only once nothing of the run lives;
- cut off for longer than a run allows, the run is killed on this node's own clocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.agent import messages as m
from services.agent.failures import Failure, Failures
from services.agent.fencing import Lease, Now, Stamp
from services.agent.journal import Journal
from services.agent.orders import DesiredSet, Order, follow
from services.agent.outbox import SKIPPED_AT_RESTART, Kind, Outbox
from services.agent.runs import NEVER, AgentSettings, Runs, Standing
from services.agent.table import AgentState, Entry
from statemachines.values import Inventory, RunId


class AgentCore:
    """One node. `handle` takes one event and answers what to do; `due_ms` says when to send a Tick."""

    def __init__(
        self,
        state: AgentState,
        *,
        inventory: Inventory,
        now: Now,
        renewed: Stamp | None = None,
        settings: AgentSettings | None = None,
    ) -> None:
        """Go on from `state`, new or restored. `renewed` is what the newest Renew of this boot wrote, if any."""
        self.node = state.node
        self.settings = settings or AgentSettings()
        self.inventory = inventory
        self.at = state.at
        self.orders: dict[RunId, Order] = {order.run: order for order in state.orders}
        self.lease = Lease(renewed or Stamp(0, 0, 0))
        self.storage_ok = True
        restored = bool(state.orders or state.entries or state.sequence)
        sequence = state.sequence + SKIPPED_AT_RESTART if restored else 0
        self.outbox = Outbox(state.reports, sequence=sequence)
        same_boot = state.boot_id == inventory.boot_id
        self._failures = Failures(state.failures if same_boot else ())
        self._standing = Standing(state.incarnation)
        self._connected = False
        self._attach_sent = False
        self._refused: m.Refused | None = None
        self._quitting = False
        self._beat_every_ms = self.settings.beat_every_ms
        self._beat_due_ms = NEVER
        self._journal = Journal(again_ms=self.settings.persist_again_ms)
        self._writing_at = self._stored_at = state.at
        self._incarnation_version = 1
        self._ack: tuple[int, m.SendAck] | None = None
        self._actions: list[m.Action] = []
        self._runs = Runs(
            state.entries,
            settings=self.settings,
            standing=self._standing,
            lease=self.lease,
            journal=self._journal,
            outbox=self.outbox,
            actions=self._actions,
            claim=self._claim,
            fail=self._fail,
        )
        self._runs.follow(self.orders)
        if not same_boot:
            self._runs.reboot(now)

    # --- the way in

    def handle(self, event: m.Event, now: Now) -> list[m.Action]:
        """Take one event. The answer's order is the order to act in."""
        if type(event) is m.BeatAcked and not self._runs.pending and not self._failures:
            # By far the most; what else may come of it: a start that waited for it, a failed device that was heard of.
            stamp = self.lease.acknowledge(event.sequence)
            return [m.Renew(stamp)] if stamp else []
        self._take(event, now)
        self._runs.sweep(now)
        self._follow_up(now)
        actions = self._actions.copy()
        self._actions.clear()
        return actions

    def due_ms(self, now: Now) -> int:
        """Milliseconds until a Tick is needed; NEVER when only an event can change anything."""
        due = min(self._beat_due_ms - now.mono_ms, self._runs.wait_ms(now))
        write_ms = self._journal.wait_ms(now.mono_ms)
        if write_ms is not None:
            due = min(due, write_ms)
        return max(due, 0) if due < NEVER // 2 else NEVER

    @property
    def incarnation(self) -> int:
        """Which incarnation of the node this is."""
        return self._standing.incarnation

    @property
    def attached(self) -> bool:
        """Whether a gateway has welcomed this node on the open stream."""
        return self._standing.attached

    @property
    def table(self) -> Mapping[RunId, Entry]:
        """The run table."""
        return self._runs.table

    @property
    def unadopted(self) -> tuple[RunId, ...]:
        """Restored runs of which nothing was said yet; until all are adopted or ended, the node does not attach."""
        return tuple(sorted(self._runs.unadopted))

    @property
    def live_runs(self) -> tuple[RunId, ...]:
        """Runs of which something may live here."""
        return self._runs.live

    # --- events

    def _take(self, event: m.Event, now: Now) -> None:
        match event:
            case m.Tick():
                self._beat(now)
            case m.BeatAcked(sequence=sequence):
                self._acknowledged(sequence)
            case m.ReportAcked(sequence=sequence):
                if self.outbox.acknowledge(sequence):
                    self._journal.change()
                    self._runs.stir()
            case m.Persisted() | m.PersistFailed():
                self._written(event, now)
            case m.LaunchReady(digest=digest):
                self._runs.launch(digest, None)
            case m.LaunchMissing(digest=digest, message=message):
                self._runs.launch(digest, message)
            case m.Observed(saved=saved):
                self._claim(saved, now)
            case m.Strays(runs=runs):
                self._runs.strays.update(runs)
            case m.Adopted() | m.Started() | m.Ended() | m.Reaped() | m.Probed():
                self._runs.take(event, now)
            case _:
                self._take_cell(event, now)
                self._runs.stir()

    def _acknowledged(self, beat: int) -> None:
        if stamp := self.lease.acknowledge(beat):
            self._actions.append(m.Renew(stamp))
        if self._failures.heard(beat):
            self._journal.change()

    def _take_cell(self, event: m.CellEvent | m.Quit, now: Now) -> None:
        match event:
            case m.Connected():
                self._connected, self._attach_sent = True, False
            case m.Disconnected():
                self._connected = False
                self._detach()
            case m.Welcomed():
                self._welcome(event, now)
            case m.Refused():
                self._detach()
                if event.next_incarnation > self.incarnation:
                    self._refused, self._standing.ending = event, True
                    self._replace_orders({})
            case m.Desired(desired=desired):
                self._follow(desired)
            case m.Quit():
                self._quitting = self._standing.ending = True

    def _welcome(self, event: m.Welcomed, now: Now) -> None:
        self._standing.attached = True
        self._beat_every_ms = event.beat_every_ms or self.settings.beat_every_ms
        self._beat_due_ms = now.mono_ms
        # Before the ends that free these devices.
        self._actions += map(self._signal, self._failures.tell(self.lease.sequence))
        self._actions += [m.SendReport(report) for report in self.outbox.waiting()]
        self._beat(now)

    def _detach(self) -> None:
        self._standing.attached = self._standing.confirmed = False
        self._beat_due_ms = NEVER

    def _follow(self, desired: DesiredSet) -> None:
        """Take a desired set, unless it is older than the one that is stored."""
        if desired.at < self.at or self._refused is not None:
            return
        orders = follow(self.orders, desired)
        if orders is None:
            # Not its digest: the gateway sends the whole set.
            self._actions.append(m.SendAck(desired.at, b""))
            return
        if desired.at != self.at or orders != self.orders:
            self.at = desired.at
            self._replace_orders(orders)
        self._standing.confirmed = True
        self._ack = (self._journal.version, m.SendAck(desired.at, desired.digest))

    def _replace_orders(self, orders: dict[RunId, Order]) -> None:
        self.orders = orders
        self._journal.change()
        self._runs.follow(orders)

    def _written(self, event: m.Persisted | m.PersistFailed, now: Now) -> None:
        self.storage_ok = isinstance(event, m.Persisted)
        if self.storage_ok:
            self._journal.written(event.version)
            self._stored_at = self._writing_at
            self._runs.stir()
        else:
            self._journal.failed(now.mono_ms)

    # --- what follows from the whole

    def _follow_up(self, now: Now) -> None:
        """A new incarnation, a write, an attach, an acknowledgement: each once all that it needs is there."""
        if self._refused is not None and not self._runs.live:
            self._incarnate(self._refused.next_incarnation)
        journal = self._journal
        if journal.version != journal.stored and journal.wait_ms(now.mono_ms) == 0:
            self._writing_at = self.at
            self._actions.append(m.Persist(journal.begin(), self._state()))
        if self._connected and not self._attach_sent and self._may_attach():
            self._attach_sent = True
            attach = m.SendAttach(
                self.incarnation, self.inventory, self._runs.live, self._stored_at
            )
            self._actions.append(attach)
        if self._ack is not None and journal.holds(self._ack[0]):
            if self._standing.attached:
                self._actions.append(self._ack[1])
            self._ack = None

    def _incarnate(self, incarnation: int) -> None:
        """Nothing of the old one lives: come back as another."""
        self._standing.incarnation, self._refused = incarnation, None
        self._standing.ending = self._quitting
        self._incarnation_version = self._journal.change()
        self._actions.append(m.Reconnect(f"attaching as incarnation {incarnation}"))

    def _may_attach(self) -> bool:
        """What lives here is known, and so durably is the incarnation that we attach as."""
        known = not self._runs.unadopted and self._refused is None
        return known and self._journal.holds(self._incarnation_version)

    def _state(self) -> AgentState:
        return AgentState(
            node=self.node,
            boot_id=self.inventory.boot_id,
            incarnation=self.incarnation,
            at=self.at,
            sequence=self.outbox.sequence,
            orders=tuple(self.orders.values()),
            entries=tuple(self._runs.table.values()),
            reports=self.outbox.waiting(),
            failures=self._failures.waiting(),
        )

    def _beat(self, now: Now) -> None:
        if not self._standing.attached or now.mono_ms < self._beat_due_ms:
            return
        stall_ms = now.mono_ms - self._beat_due_ms
        self._beat_due_ms = now.mono_ms + self._beat_every_ms
        sequence = self.lease.send(now)
        live = len(self._runs.live)
        incarnation = self._standing.incarnation
        self._actions.append(m.SendBeat(incarnation, sequence, now.wall_ms, live, stall_ms))

    def _claim(self, kind: Kind, now: Now) -> int:
        report = self.outbox.add(kind, incarnation=self.incarnation, at_ms=now.wall_ms)
        self._journal.change()
        if self._standing.attached:
            self._actions.append(m.SendReport(report))
        return report.sequence

    def _fail(self, device: int, message: str, now: Now) -> None:
        failure = Failure(device, message, now.wall_ms)
        attached = self._standing.attached
        self._failures.add(failure, told_after=self.lease.sequence if attached else None)
        self._journal.change()
        if attached:
            self._actions.append(self._signal(failure))

    def _signal(self, failure: Failure) -> m.SendProbeFailed:
        return m.SendProbeFailed(self.incarnation, failure.at_ms, failure.device, failure.message)
