"""The agent's rules: desired sets and the run table in, starts, stops and reports out.

It owns what may be started, stopped and said, and when. It never touches a process, a file, a socket or a clock:
events and clock values are handed in, actions are given back in the order in which they must happen.

What holds, whatever is lost, repeated or cut short:
- a desired set older than the stored one changes nothing;
- nothing is started before the set that orders it and its table entry are on disk, nor twice, nor from a set that
  this connection has not confirmed, nor while cut off for longer than the run allows;
- an end is reported until acknowledged, and only once nothing of the run lives;
- cut off for longer than a run allows, the run is killed on this node's own clocks.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from services.agent import messages as m
from services.agent.fencing import Lease, Now, Stamp
from services.agent.orders import Action as Asked
from services.agent.orders import DesiredSet, Order, follow
from services.agent.outbox import SKIPPED_AT_RESTART, Outbox, RunBegan, RunFinished, Saved
from services.agent.table import LIVE, AgentState, Ending, Entry, Phase
from statemachines.values import Evidence, Inventory, RunId

SIGKILL: Final = 9
NEVER: Final = 1 << 62


class AgentSettings(msgspec.Struct, frozen=True):
    """Waits of one node, in milliseconds."""

    beat_every_ms: int = 2_000
    # A kill that has not yet emptied the run is asked for again this often.
    kill_again_ms: int = 2_000
    # A device that does not answer a probe for this long has failed it.
    probe_ms: int = 30_000
    persist_again_ms: int = 1_000


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
        self.incarnation = state.incarnation
        self.at = state.at
        self.orders: dict[RunId, Order] = {order.run: order for order in state.orders}
        self.table: dict[RunId, Entry] = {entry.run: entry for entry in state.entries}
        restored = bool(state.orders or state.entries or state.sequence)
        sequence = state.sequence + SKIPPED_AT_RESTART if restored else 0
        self.outbox = Outbox(state.reports, sequence=sequence)
        self.lease = Lease(renewed or Stamp(0, 0, 0))
        self.attached = False
        self.storage_ok = True
        self._connected = False
        self._attach_sent = False
        # A desired set was taken on this connection, so nothing newer is waiting unseen.
        self._confirmed = False
        self._refused: m.Refused | None = None
        self._quitting = False
        self._beat_every_ms = self.settings.beat_every_ms
        self._beat_due_ms = NEVER
        self._version = 1
        self._writing = 0
        self._stored = 0
        self._writing_at = self._stored_at = state.at
        self._persist_due_ms = 0
        self._incarnation_version = 1
        self._ack: tuple[int, m.SendAck] | None = None
        # What the table does not keep: versions to wait for, kills and probes under way, launches at hand.
        self._needs: dict[RunId, int] = {}
        self._due: dict[RunId, int] = {}
        self._asked: dict[RunId, tuple[int, int, bool]] = {}
        self._unadopted = {run for run, entry in self.table.items() if entry.phase in LIVE}
        self._unadopted |= {
            run for run, entry in self.table.items() if entry.phase is Phase.PENDING
        }
        self._launches: dict[str, str | None] = {}
        self._actions: list[m.Action] = []
        if state.boot_id != inventory.boot_id:
            self._reboot(now)

    # --- the way in

    def handle(self, event: m.Event, now: Now) -> list[m.Action]:
        """Take one event. The answer's order is the order to act in."""
        self._actions = []
        self._take(event, now)
        for entry in list(self.table.values()):
            self._advance(entry, now)
        self._keep(now)
        return self._actions

    def due_ms(self, now: Now) -> int:
        """Milliseconds until a Tick is needed; NEVER when only an event can change anything."""
        due = min(self._beat_due_ms, *self._due.values(), NEVER) - now.mono_ms
        cut_off = self.lease.cut_off_ms(now)
        for entry in self.table.values():
            if entry.phase in {Phase.RUNNING, Phase.STOPPING} and entry.order.fenced_after_ms:
                due = min(due, entry.order.fenced_after_ms - cut_off)
        if self._version > self._stored and not self._writing:
            due = min(due, self._persist_due_ms - now.mono_ms)
        return max(due, 0) if due < NEVER // 2 else NEVER

    @property
    def unadopted(self) -> tuple[RunId, ...]:
        """Restored runs of which nothing was said yet; until all are adopted or ended, the node does not attach."""
        return tuple(sorted(self._unadopted))

    @property
    def live_runs(self) -> tuple[RunId, ...]:
        """Runs of which something may live here."""
        return tuple(sorted(run for run, entry in self.table.items() if entry.phase in LIVE))

    # --- events

    def _take(self, event: m.Event, now: Now) -> None:
        match event:
            case m.Connected() | m.Disconnected() | m.Welcomed() | m.Refused():
                self._take_stream(event, now)
            case m.Desired(desired=desired):
                self._follow(desired)
            case m.BeatAcked() | m.ReportAcked():
                self._acknowledged(event)
            case m.Persisted() | m.PersistFailed():
                self._written(event, now)
            case m.LaunchReady(digest=digest):
                self._launches[digest] = None
            case m.LaunchMissing(digest=digest, message=message):
                self._launches[digest] = message
            case m.Observed(saved=saved):
                self._report(saved, now)
            case m.Quit():
                self._quitting = True
            case m.Tick():
                self._beat(now)
            case _:
                self._take_run(event, now)

    def _acknowledged(self, event: m.BeatAcked | m.ReportAcked) -> None:
        if isinstance(event, m.BeatAcked):
            if stamp := self.lease.acknowledge(event.sequence):
                self._do(m.Renew(stamp))
        elif self.outbox.acknowledge(event.sequence):
            self._change()

    def _written(self, event: m.Persisted | m.PersistFailed, now: Now) -> None:
        self._writing = 0
        self.storage_ok = isinstance(event, m.Persisted)
        if self.storage_ok:
            self._stored, self._stored_at = event.version, self._writing_at
        else:
            self._persist_due_ms = now.mono_ms + self.settings.persist_again_ms

    def _take_stream(
        self, event: m.Connected | m.Disconnected | m.Welcomed | m.Refused, now: Now
    ) -> None:
        match event:
            case m.Connected():
                self._connected, self._attach_sent = True, False
            case m.Disconnected():
                self._connected = self.attached = self._confirmed = False
                self._beat_due_ms = NEVER
            case m.Welcomed():
                self.attached = True
                self._beat_every_ms = event.beat_every_ms or self.settings.beat_every_ms
                self._beat_due_ms = now.mono_ms
                for report in self.outbox.waiting():
                    self._do(m.SendReport(report))
                self._beat(now)
            case m.Refused():
                self.attached = self._confirmed = False
                self._beat_due_ms = NEVER
                if event.next_incarnation > self.incarnation:
                    self._refused = event
                    self.orders = {}
                    self._change()

    def _take_run(
        self, event: m.Adopted | m.Started | m.Ended | m.Reaped | m.Probed, now: Now
    ) -> None:
        """What the executor says of a run; about a run that is not in the table it changes nothing."""
        entry = self.table.get(event.run)
        if entry is None or entry.phase is Phase.ENDED:
            return
        match event:
            case m.Adopted(alive=alive):
                self._adopt(entry, now, alive=alive)
            case m.Started():
                self._begin(entry, now)
            case m.Ended(ending=ending):
                self._unadopted.discard(entry.run)
                self._end(entry, ending, now)
            case m.Reaped():
                self._end(entry, _reaped(entry), now)
            case m.Probed(failures=failures):
                self._probed(entry, failures, now)

    def _follow(self, desired: DesiredSet) -> None:
        """Take a desired set, unless it is older than the one that is stored."""
        if desired.at < self.at or self._refused is not None:
            return
        orders = follow(self.orders, desired)
        if orders is None:
            self._do(m.SendAck(desired.at, b""))  # Not its digest: the gateway sends the whole set.
            return
        if desired.at != self.at or orders != self.orders:
            self.at, self.orders = desired.at, orders
            self._change()
        self._confirmed = True
        self._ack = (self._version, m.SendAck(desired.at, desired.digest))
        for run, order in orders.items():
            self._order(run, order)

    def _order(self, run: RunId, order: Order) -> None:
        entry = self.table.get(run)
        if entry is not None:
            if entry.order != order:
                self._put(replace(entry, order=order))
        elif order.action is Asked.STOP or order.started:
            # It ran here as far as the cell knows, and we know nothing of it: look for it, kill it, say so.
            self._put(Entry(order, Phase.STRANGE))
        else:
            self._put(Entry(order, Phase.PENDING))
            self._needs[run] = self._version

    # --- runs

    def _advance(self, entry: Entry, now: Now) -> None:
        """Bring one run nearer to what is ordered. Called after every event, for every run."""
        if entry.run in self._unadopted:
            return
        match entry.phase:
            case Phase.PENDING:
                self._start(entry, now)
            case Phase.RUNNING | Phase.STOPPING:
                self._supervise(entry, now)
            case Phase.KILLING | Phase.STRANGE:
                self._kill_again(entry, now)
            case Phase.PROBING:
                if now.mono_ms >= self._due.get(entry.run, 0):
                    held = [grant.index for grant in entry.order.devices]
                    silent = tuple((index, "no answer to a probe in time") for index in held)
                    self._probed(entry, silent, now)
            case Phase.ENDED:
                if self._confirmed and entry.run not in self.orders:
                    self._drop(entry)
            case Phase.STARTING:
                pass  # The executor answers with Started or Ended.

    def _start(self, entry: Entry, now: Now) -> None:
        order = entry.order
        if not self._wanted(entry):
            self._end(
                entry, Ending(Evidence.NEVER_STARTED, message="stopped before it started"), now
            )
            return
        if order.launch not in self._launches:
            self._launches[order.launch] = ""
            self._do(m.Fetch(order.launch))
        missing = self._launches[order.launch]
        if missing:
            del self._launches[order.launch]
            self._end(entry, Ending(Evidence.NEVER_STARTED, message=missing), now)
        elif missing is None and self._may_start(entry, now):
            self._put(replace(entry, phase=Phase.STARTING))
            self._asked[entry.run] = order.ask
            self._do(m.Start(order))

    def _may_start(self, entry: Entry, now: Now) -> bool:
        """Ordered by this connection, on disk, and not while the cell may already count us as cut off."""
        limit = entry.order.fenced_after_ms
        return (
            self.attached
            and not self._quitting
            and self._confirmed
            and self._stored >= self._needs.get(entry.run, 1)
            and (limit == 0 or self.lease.cut_off_ms(now) < limit)
        )

    def _supervise(self, entry: Entry, now: Now) -> None:
        limit = entry.order.fenced_after_ms
        if limit and self.lease.cut_off_ms(now) >= limit:
            self._kill(replace(entry, fenced=True), now)
        elif self._refused is not None or self._quitting:
            self._kill(entry, now)
        elif entry.phase is Phase.STOPPING:
            if now.mono_ms >= self._due.setdefault(entry.run, now.mono_ms + entry.order.grace_ms):
                self._kill(entry, now)
        elif not self._wanted(entry):
            self._put(replace(entry, phase=Phase.STOPPING))
            self._due[entry.run] = now.mono_ms + entry.order.grace_ms
            self._do(m.Terminate(entry.run))
        elif self._asked.get(entry.run) != entry.order.ask:
            self._asked[entry.run] = entry.order.ask
            self._do(m.Ask(entry.run, *entry.order.ask))

    def _wanted(self, entry: Entry) -> bool:
        """Whether the newest set has it running. Without a new set, a lost connection changes nothing."""
        order = self.orders.get(entry.run)
        return order is not None and order.action is Asked.RUN

    def _kill(self, entry: Entry, now: Now) -> None:
        self._put(replace(entry, phase=Phase.KILLING))
        self._due[entry.run] = now.mono_ms + self.settings.kill_again_ms
        self._do(m.Kill(entry.run))

    def _kill_again(self, entry: Entry, now: Now) -> None:
        if now.mono_ms >= self._due.get(entry.run, 0):
            self._due[entry.run] = now.mono_ms + self.settings.kill_again_ms
            self._do(m.Kill(entry.run))

    def _adopt(self, entry: Entry, now: Now, *, alive: bool) -> None:
        self._unadopted.discard(entry.run)
        if alive and entry.phase in {Phase.PENDING, Phase.STARTING}:
            self._begin(entry, now)
        elif not alive and entry.phase is Phase.STARTING:
            self._put(replace(entry, phase=Phase.PENDING))
        elif not alive and entry.phase is not Phase.PENDING:
            self._kill(
                entry, now
            )  # What ran here is gone with its supervisor: make sure, then say so.

    def _begin(self, entry: Entry, now: Now) -> None:
        if entry.phase in {Phase.PENDING, Phase.STARTING}:
            self._put(replace(entry, phase=Phase.RUNNING))
            self._report(RunBegan(entry.run), now)

    def _end(self, entry: Entry, ending: Ending, now: Now) -> None:
        """Nothing of it lives. After a hard kill of several devices they are looked at before the cell is told."""
        if entry.phase is Phase.STARTING and ending.evidence is not Evidence.NEVER_STARTED:
            self._report(RunBegan(entry.run), now)  # It was over before its start was told.
        if entry.fenced and ending.signal == SIGKILL:
            ending = replace(ending, evidence=Evidence.SELF_FENCED)
        elif _was_killed(entry, ending):
            ending = replace(ending, evidence=Evidence.KILLED_AND_REAPED)
        self._due.pop(entry.run, None)
        if (
            ending.signal == SIGKILL
            and len(entry.order.devices) > 1
            and entry.phase is not Phase.PROBING
        ):
            self._put(replace(entry, phase=Phase.PROBING, ending=ending))
            self._due[entry.run] = now.mono_ms + self.settings.probe_ms
            self._do(m.Probe(entry.run, tuple(grant.index for grant in entry.order.devices)))
            return
        self._finish(entry, ending, now)

    def _probed(self, entry: Entry, failures: tuple[tuple[int, str], ...], now: Now) -> None:
        if entry.phase is not Phase.PROBING or entry.ending is None:
            return
        self._due.pop(entry.run, None)
        if self.attached:
            for device, message in failures:
                self._do(m.SendProbeFailed(self.incarnation, now.wall_ms, device, message))
        self._finish(entry, entry.ending, now)

    def _finish(self, entry: Entry, ending: Ending, now: Now) -> None:
        sequence = self._report(
            RunFinished(
                entry.run,
                ending.evidence,
                exit_code=ending.exit_code,
                signal=ending.signal,
                message=ending.message,
            ),
            now,
        )
        self._put(replace(entry, phase=Phase.ENDED, ending=None, end_report=sequence))

    def _drop(self, entry: Entry) -> None:
        """Once its end is acknowledged: no set of this connection names it, so the log can never again ask for it."""
        if self.outbox.waits(entry.end_report):
            return
        del self.table[entry.run]
        for about in (self._needs, self._due, self._asked):
            about.pop(entry.run, None)
        launches = {order.launch for order in self.orders.values()}
        if entry.order.launch not in launches:
            self._launches.pop(entry.order.launch, None)
        self._change()
        self._do(m.Forget(entry.run))

    def _reboot(self, now: Now) -> None:
        """Another boot: nothing of the table can live."""
        for entry in list(self.table.values()):
            if entry.phase is not Phase.ENDED:
                started = entry.phase is not Phase.PENDING
                evidence = Evidence.NODE_REBOOTED if started else Evidence.NEVER_STARTED
                ending = Ending(evidence, message="the node was rebooted")
                self._finish(entry, entry.ending or ending, now)
        self._unadopted.clear()

    # --- the stream and the disk

    def _keep(self, now: Now) -> None:
        """What follows from the whole: a new incarnation, a write, an attach, an acknowledgement."""
        if self._refused is not None and not self.live_runs:
            self.incarnation, self._refused = self._refused.next_incarnation, None
            self._change()
            self._incarnation_version = self._version
            self._do(m.Reconnect(f"attaching as incarnation {self.incarnation}"))
        if (
            self._version > self._stored
            and not self._writing
            and now.mono_ms >= self._persist_due_ms
        ):
            self._writing, self._writing_at = self._version, self.at
            self._do(m.Persist(self._version, self._state()))
        if self._connected and not self._attach_sent and self._may_attach():
            self._attach_sent = True
            self._do(
                m.SendAttach(self.incarnation, self.inventory, self.live_runs, self._stored_at)
            )
        if self._ack is not None and self._stored >= self._ack[0]:
            if self.attached:
                self._do(self._ack[1])
            self._ack = None

    def _may_attach(self) -> bool:
        """What lives here is known, and so durably is the incarnation that we attach as."""
        known = not self._unadopted and self._refused is None
        return known and self._stored >= self._incarnation_version

    def _state(self) -> AgentState:
        return AgentState(
            node=self.node,
            boot_id=self.inventory.boot_id,
            incarnation=self.incarnation,
            at=self.at,
            sequence=self.outbox.sequence,
            orders=tuple(self.orders.values()),
            entries=tuple(self.table.values()),
            reports=self.outbox.waiting(),
        )

    def _beat(self, now: Now) -> None:
        if not self.attached or now.mono_ms < self._beat_due_ms:
            return
        stall_ms = now.mono_ms - self._beat_due_ms
        self._beat_due_ms = now.mono_ms + self._beat_every_ms
        sequence = self.lease.send(now)
        live = len(self.live_runs)
        self._do(m.SendBeat(self.incarnation, sequence, now.wall_ms, live, stall_ms))

    def _report(self, kind: Saved | RunBegan | RunFinished, now: Now) -> int:
        report = self.outbox.add(kind, incarnation=self.incarnation, at_ms=now.wall_ms)
        self._change()
        if self.attached:
            self._do(m.SendReport(report))
        return report.sequence

    def _put(self, entry: Entry) -> None:
        self.table[entry.run] = entry
        self._change()

    def _change(self) -> None:
        """Something that must survive a restart changed; one write covers all until it starts."""
        if self._version in {self._stored, self._writing}:
            self._version += 1

    def _do(self, action: m.Action) -> None:
        self._actions.append(action)


def _was_killed(entry: Entry, ending: Ending) -> bool:
    by_us = entry.phase in {Phase.KILLING, Phase.STRANGE} and ending.signal == SIGKILL
    return by_us and ending.evidence is Evidence.EXIT_STATUS


def _reaped(entry: Entry) -> Ending:
    what = "unknown to this agent" if entry.phase is Phase.STRANGE else "gone with its supervisor"
    return Ending(
        Evidence.KILLED_AND_REAPED, signal=SIGKILL, message=f"{what}; nothing of it lives"
    )
