"""The rules of runs: what an order and an event do to an entry of the table, and what must be done about it.

It owns the table, and how a run is started, stopped, killed, probed and forgotten. It never touches a process, and
knows of the cell only how this node stands with it. Each `sweep` brings every run nearer to what is ordered; it costs
time with the number of runs, so it happens only when something changed or a time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from services.agent import messages as m
from services.agent.fencing import Lease, Now
from services.agent.journal import Journal
from services.agent.orders import Action as Asked
from services.agent.orders import Order
from services.agent.outbox import Outbox, RunBegan, RunFinished
from services.agent.table import LIVE, Ending, Entry, Phase
from statemachines.values import Evidence, RunId

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


class Standing:
    """How this node stands with its cell."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.attached = False
        # A desired set was taken on this connection, so nothing newer is waiting unseen.
        self.confirmed = False
        # Refused, or asked to end: every run must die.
        self.ending = False


class Runs:
    """All runs of one node. `actions` is where to put what must be done.

    `claim` reports and answers the sequence; `fail` tells of a device that must not be granted again.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        *,
        settings: AgentSettings,
        standing: Standing,
        lease: Lease,
        journal: Journal,
        outbox: Outbox,
        actions: list[m.Action],
        claim: Callable[[RunBegan | RunFinished, Now], int],
        fail: Callable[[int, str, Now], None],
    ) -> None:
        self.table: dict[RunId, Entry] = {entry.run: entry for entry in entries}
        # Of a restored table: entries of which nothing was said yet.
        self.unadopted = {
            run for run, entry in self.table.items() if entry.phase in LIVE | {Phase.PENDING}
        }
        # What lives here and no table knows, until a set says what to do about it.
        self.strays: set[RunId] = set()
        self._orders: Mapping[RunId, Order] = {}
        self._settings = settings
        self._standing = standing
        self._lease = lease
        self._journal = journal
        self._outbox = outbox
        self._actions = actions
        self._claim = claim
        self._fail = fail
        # What the table does not keep: versions to wait for, times to act at, asks written, launches at hand.
        self._needs: dict[RunId, int] = {}
        self._due: dict[RunId, int] = {}
        self._asked: dict[RunId, tuple[int, int, bool]] = {}
        # By digest: None when it is here, else why not, or nothing while it is being fetched.
        self._launches: dict[str, str | None] = {}
        self._stirred = True
        self._next_ms = NEVER
        self._fence_ms = NEVER
        # Some run waits to be started.
        self.pending = False

    @property
    def live(self) -> tuple[RunId, ...]:
        """Runs of which something may live here."""
        if not self.table:
            return ()
        return tuple(sorted([run for run, entry in self.table.items() if entry.phase in LIVE]))

    def wait_ms(self, now: Now) -> int:
        """Until a sweep is due by itself."""
        wait_ms = self._next_ms - now.mono_ms
        if self._fence_ms < NEVER:
            return min(wait_ms, self._fence_ms - self._lease.cut_off_ms(now))
        return wait_ms

    def stir(self) -> None:
        """Something outside the table changed that any run may depend on."""
        self._stirred = True

    # --- orders and events

    def follow(self, orders: Mapping[RunId, Order]) -> None:
        """The set that counts from now on."""
        self._orders = orders
        self._stirred = True
        for run, order in orders.items():
            entry = self.table.get(run)
            if entry is None:
                self._admit(order)
            elif entry.order != order:
                self._put(replace(entry, order=order))
        for run in sorted(self.strays - orders.keys()):
            self._put(
                Entry(Order(run=run, job="", attempt=0, rank=0, action=Asked.STOP), Phase.STRANGE)
            )
        self.strays.clear()

    def _admit(self, order: Order) -> None:
        if order.action is Asked.STOP or order.started:
            # It ran here as far as the cell knows, and we know nothing of it: look for it, kill it, say so.
            self._put(Entry(order, Phase.STRANGE))
        else:
            self._put(Entry(order, Phase.PENDING))
            self._needs[order.run] = self._journal.version

    def launch(self, digest: str, missing: str | None) -> None:
        """What runs execute is here, or is gone for good and why."""
        self._launches[digest] = missing
        self._stirred = True

    def take(self, event: m.RunEvent, now: Now) -> None:
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
                self.unadopted.discard(entry.run)
                self._end(entry, ending, now)
            case m.Reaped():
                self._end(entry, _reaped(entry), now)
            case m.Probed(failures=failures):
                self._probed(entry, failures, now)

    def reboot(self, now: Now) -> None:
        """Another boot of the host: nothing of the table can live."""
        for entry in list(self.table.values()):
            if entry.phase is not Phase.ENDED:
                started = entry.phase is not Phase.PENDING
                evidence = Evidence.NODE_REBOOTED if started else Evidence.NEVER_STARTED
                ending = Ending(evidence, message="the node was rebooted")
                self._finish(entry, entry.ending or ending, now)
        self.unadopted.clear()

    # --- nearer to what is ordered

    def sweep(self, now: Now) -> None:
        """Look at every run, if anything changed since the last look or a time has come."""
        if not (self._stirred or self.pending or self.wait_ms(now) <= 0):
            return
        self._stirred = False
        for entry in list(self.table.values()):
            if entry.run not in self.unadopted:
                self._advance(entry, now)
        self._next_ms = min(self._due.values(), default=NEVER)
        fenced = [
            entry.order.fenced_after_ms
            for entry in self.table.values()
            if entry.phase in {Phase.RUNNING, Phase.STOPPING} and entry.order.fenced_after_ms
        ]
        self._fence_ms = min(fenced, default=NEVER)
        self.pending = any(entry.phase is Phase.PENDING for entry in self.table.values())

    def _advance(self, entry: Entry, now: Now) -> None:
        match entry.phase:
            case Phase.PENDING:
                self._start(entry, now)
            case Phase.RUNNING | Phase.STOPPING:
                self._supervise(entry, now)
            case Phase.KILLING | Phase.STRANGE:
                if now.mono_ms >= self._due.get(entry.run, 0):
                    self._kill(entry, now)
            case Phase.PROBING:
                self._await_probe(entry, now)
            case Phase.ENDED:
                if self._standing.confirmed and entry.run not in self._orders:
                    self._drop(entry)
            case Phase.STARTING:
                pass  # The executor answers with Started or Ended.

    def _start(self, entry: Entry, now: Now) -> None:
        order = entry.order
        if not self._wanted(entry):
            never = Ending(Evidence.NEVER_STARTED, message="stopped before it started")
            self._end(entry, never, now)
            return
        if order.launch not in self._launches:
            self._launches[order.launch] = ""
            self._actions.append(m.Fetch(order.launch))
        missing = self._launches[order.launch]
        if missing:
            del self._launches[order.launch]
            self._end(entry, Ending(Evidence.NEVER_STARTED, message=missing), now)
        elif missing is None and self._may_start(entry, now):
            self._put(replace(entry, phase=Phase.STARTING))
            self._asked[entry.run] = order.ask
            self._actions.append(m.Start(order))

    def _may_start(self, entry: Entry, now: Now) -> bool:
        """Ordered by this connection, on disk, and not while the cell may already count us as cut off."""
        limit = entry.order.fenced_after_ms
        return (
            self._standing.attached
            and self._standing.confirmed
            and not self._standing.ending
            and self._journal.holds(self._needs.get(entry.run, 1))
            and (limit == 0 or self._lease.cut_off_ms(now) < limit)
        )

    def _supervise(self, entry: Entry, now: Now) -> None:
        limit = entry.order.fenced_after_ms
        if limit and self._lease.cut_off_ms(now) >= limit:
            self._kill(replace(entry, fenced=True), now)
        elif self._standing.ending:
            self._kill(entry, now)
        elif entry.phase is Phase.STOPPING:
            if now.mono_ms >= self._due.setdefault(entry.run, now.mono_ms + entry.order.grace_ms):
                self._kill(entry, now)
        elif not self._wanted(entry):
            self._put(replace(entry, phase=Phase.STOPPING))
            self._due[entry.run] = now.mono_ms + entry.order.grace_ms
            self._actions.append(m.Terminate(entry.run))
        elif self._asked.get(entry.run) != entry.order.ask:
            self._asked[entry.run] = entry.order.ask
            self._actions.append(m.Ask(entry.run, *entry.order.ask))

    def _wanted(self, entry: Entry) -> bool:
        """Whether the newest set has it running. Without a new set, a lost connection changes nothing."""
        order = self._orders.get(entry.run)
        return order is not None and order.action is Asked.RUN

    def _kill(self, entry: Entry, now: Now) -> None:
        if entry.phase is not Phase.STRANGE:
            self._put(replace(entry, phase=Phase.KILLING))
        self._due[entry.run] = now.mono_ms + self._settings.kill_again_ms
        self._actions.append(m.Kill(entry.run))

    # --- beginnings and ends

    def _adopt(self, entry: Entry, now: Now, *, alive: bool) -> None:
        self.unadopted.discard(entry.run)
        self._stirred = True
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
            self._claim(RunBegan(entry.run), now)

    def _end(self, entry: Entry, ending: Ending, now: Now) -> None:
        """Nothing of it lives. After a hard kill of several devices they are looked at before the cell is told."""
        if entry.phase is Phase.STARTING and ending.evidence is not Evidence.NEVER_STARTED:
            self._claim(RunBegan(entry.run), now)  # It was over before its start was told.
        ending = _as_known(entry, ending)
        self._due.pop(entry.run, None)
        several = len(entry.order.devices) > 1
        if ending.signal == SIGKILL and several and entry.phase is not Phase.PROBING:
            self._put(replace(entry, phase=Phase.PROBING, ending=ending))
            return
        self._finish(entry, ending, now)

    def _await_probe(self, entry: Entry, now: Now) -> None:
        """Ask once, again after a restart; a device that is silent for too long has failed."""
        held = tuple(grant.index for grant in entry.order.devices)
        due_ms = self._due.get(entry.run)
        if due_ms is None:
            self._due[entry.run] = now.mono_ms + self._settings.probe_ms
            self._actions.append(m.Probe(entry.run, held))
        elif now.mono_ms >= due_ms:
            silent = tuple((index, "no answer to a probe in time") for index in held)
            self._probed(entry, silent, now)

    def _probed(self, entry: Entry, failures: tuple[tuple[int, str], ...], now: Now) -> None:
        if entry.phase is not Phase.PROBING or entry.ending is None:
            return
        self._due.pop(entry.run, None)
        for device, message in failures:
            self._fail(device, message, now)
        self._finish(entry, entry.ending, now)

    def _finish(self, entry: Entry, ending: Ending, now: Now) -> None:
        end = RunFinished(
            entry.run,
            ending.evidence,
            exit_code=ending.exit_code,
            signal=ending.signal,
            message=ending.message,
        )
        sequence = self._claim(end, now)
        self._put(replace(entry, phase=Phase.ENDED, ending=None, end_report=sequence))

    def _drop(self, entry: Entry) -> None:
        """Once its end is acknowledged: no set of this connection names it, so the log can never again ask for it."""
        if self._outbox.waits(entry.end_report):
            return
        del self.table[entry.run]
        for about in (self._needs, self._due, self._asked):
            about.pop(entry.run, None)
        if entry.order.launch not in {order.launch for order in self._orders.values()}:
            self._launches.pop(entry.order.launch, None)
        self._journal.change()
        self._actions.append(m.Forget(entry.run))

    def _put(self, entry: Entry) -> None:
        self.table[entry.run] = entry
        self._stirred = True
        self._journal.change()


def _as_known(entry: Entry, ending: Ending) -> Ending:
    """What our own kill makes of an exit status; an exit of the run's own is told as it was."""
    if ending.signal != SIGKILL or ending.evidence is not Evidence.EXIT_STATUS:
        return ending
    if entry.fenced:
        return replace(ending, evidence=Evidence.SELF_FENCED)
    if entry.phase in {Phase.KILLING, Phase.STRANGE}:
        return replace(ending, evidence=Evidence.KILLED_AND_REAPED)
    return ending


def _reaped(entry: Entry) -> Ending:
    what = "unknown to this agent" if entry.phase is Phase.STRANGE else "gone with its supervisor"
    evidence = Evidence.SELF_FENCED if entry.fenced else Evidence.KILLED_AND_REAPED
    return Ending(evidence, signal=SIGKILL, message=f"{what}; nothing of it lives")
