"""The three phases of a scheduler, each a small object whose `turn` answers the next: Standby, Opening, Leading.

Standby folds the log and stands for election, so that it can lead at once. Opening has won a term and is not yet in
the log. Leading decides. The chain alone says who leads; the election only who tries. Everything that must outlive
this process is in the log: dying between any two lines loses nothing, and each `turn` says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from services.runtime import topics
from services.runtime.ports import (
    Clock,
    EventLog,
    InputRecord,
    Inputs,
    Leadership,
    PortError,
    SnapshotRecord,
    Snapshots,
)
from services.runtime.reader import Folded, LogReader
from services.runtime.recovery import take_snapshot
from services.scheduler.backlog import Backlog
from services.scheduler.core import LeaderCore, Step
from services.scheduler.draft import Sealed
from services.scheduler.exits import DeposedError, LeadershipLostError, TermBehindError
from services.scheduler.opening import opening, opens
from statemachines.cluster import Cluster
from statemachines.entry import Entry, Recorded
from statemachines.policy import DEFAULT_POLICY, Policy

# While an entry of ours is unconfirmed, nothing else is waited for longer than this.
_CONFIRM_WITHIN_S: Final = 0.05
_PARTITIONS_EVERY_MS: Final = 10_000
# A snapshot waits for a quiet moment until it is this many times due.
_OVERDUE: Final = 2


def _nothing(_cluster: Cluster) -> tuple[Recorded, ...]:
    return ()


def _at_once(work: Callable[[], None]) -> None:
    work()


class Ports(msgspec.Struct, frozen=True):
    """What a scheduler asks of the outside."""

    log: EventLog
    inputs: Inputs
    snapshots: Snapshots
    leadership: Leadership
    clock: Clock


class Rules(msgspec.Struct, frozen=True):
    """How a scheduler leads. `said` gives facts that an operator vouches for, recorded as its term opens."""

    leader: str
    nonce: str
    policy: Policy = DEFAULT_POLICY
    inputs_per_step: int = 2_000
    in_flight_max: int = 4
    snapshot_entries: int = 100_000
    snapshot_bytes: int = 64 << 20
    # Runs the saving of a snapshot; a service gives a thread, so that storage does not hold up decisions.
    background: Callable[[Callable[[], None]], object] = _at_once
    said: Callable[[Cluster], tuple[Recorded, ...]] = _nothing


class Watch(Protocol):
    """Who looks on: logs and metrics. Nothing here decides anything."""

    def read(self, folded: Folded) -> None:
        """A record of the log was folded by one that does not lead."""

    def leads(self, entry: Entry) -> None:
        """Our term's first entry was accepted."""

    def begins(self) -> None:
        """A step begins."""

    def decided(self, step: Step, inputs: int) -> None:
        """A step was decided; its entries are about to be appended."""

    def confirmed(self, entry: Entry | None) -> None:
        """Our entry was read back and accepted; None: a void record lay there."""

    def weather(self, what: str, error: PortError) -> None:
        """Something failed that will be tried again."""


class Phase(Protocol):
    """What a scheduler does now."""

    @property
    def cluster(self) -> Cluster:
        """The state as far as it is known."""

    def turn(self, timeout_s: float) -> Phase:
        """Do one short piece of work, waiting at most that long; the phase that follows."""

    def hand_over(self) -> None:
        """Stop, leaving everything to the next leader."""


class Standby:
    """Folds the log and stands for election."""

    def __init__(
        self, ports: Ports, rules: Rules, watch: Watch, cluster: Cluster, snapshot_offset: int
    ) -> None:
        self.cluster = cluster
        self._ports, self._rules, self._watch = ports, rules, watch
        self._snapshot_offset = snapshot_offset
        self._reader = LogReader(ports.log, cluster)

    def turn(self, timeout_s: float) -> Phase:
        """Read to the end, then stand for up to `timeout_s`.

        Dying after a win and before the opening leaves a term that no entry names: the next is higher.
        """
        while folded := self._reader.read(timeout_s=0):
            _tell(folded, self._watch)
            self.cluster.take_touched()  # Nobody asks before we lead, and then everything is looked at.
        seen = self.cluster.term
        term = self._ports.leadership.campaign(timeout_s)
        if term is None:
            return self
        if term <= seen:
            raise TermBehindError(term=term, log_term=seen)
        return Opening(
            self._ports, self._rules, self._watch, self._reader, term, self._snapshot_offset
        )

    def hand_over(self) -> None:
        """Nothing is ours yet."""
        self._ports.leadership.close()


class Opening:
    """Has won a term, and tries to open it on the log's head until its opening is accepted or another's is."""

    def __init__(
        self,
        ports: Ports,
        rules: Rules,
        watch: Watch,
        reader: LogReader,
        term: int,
        snapshot_offset: int,
    ) -> None:
        self.cluster = reader.cluster
        self._ports, self._rules, self._watch, self._reader = ports, rules, watch, reader
        self._snapshot_offset = snapshot_offset
        self._term = term
        self._appended_at = b""

    def turn(self, timeout_s: float) -> Phase:
        """Read to the end; append the opening when the head is one it has not been tried on; read on.

        Dying before the append: as in Standby. After it: if it is accepted, a term of no decisions; the next leader
        opens its own on top. An append of unknown outcome is settled by reading: our nonce tells which opening is ours.
        """
        if not self._ports.leadership.holds():
            raise LeadershipLostError(f"the election took term {self._term} back before it began")
        opened = _find(_read_to_end(self._reader, self._watch), self._term, self._rules.nonce)
        if opened is None and self.cluster.term >= self._term:
            raise DeposedError(
                f"term {self.cluster.term} of {self.cluster.leader} began before ours, {self._term}"
            )
        if opened is None and self._appended_at != self.cluster.head:
            self._append()
        if opened is None:
            folded = self._reader.read(timeout_s=timeout_s)
            _tell(folded, self._watch)
            opened = _find(folded, self._term, self._rules.nonce)
        if opened is None:
            # Not seen within the wait: tried again, and void if it comes twice.
            self._appended_at = b""
            return self
        if self.cluster.head != opened.digest:
            raise DeposedError(f"an entry of {self.cluster.leader} followed the opening of ours")
        self._watch.leads(opened)
        return Leading(self._ports, self._rules, self._watch, self.cluster, self._snapshot_offset)

    def hand_over(self) -> None:
        """Give the term back unused."""
        self._ports.leadership.resign()

    def _append(self) -> None:
        sealed = opening(
            self.cluster,
            term=self._term,
            leader=self._rules.leader,
            nonce=self._rules.nonce,
            policy=self._rules.policy,
            now_ms=self._ports.clock.wall_ms(),
            said=self._rules.said(self.cluster),
        )
        self._appended_at = self.cluster.head
        self._ports.log.append(sealed.value)


class Leading:
    """Decides: inputs in, entries out, each checked off as it is read back."""

    def __init__(
        self, ports: Ports, rules: Rules, watch: Watch, cluster: Cluster, snapshot_offset: int
    ) -> None:
        self.cluster = cluster
        self._ports, self._rules, self._watch = ports, rules, watch
        # The wall clock is read once a term, and never believed when it is behind the log.
        began_ms = max(ports.clock.wall_ms(), cluster.at_ms)
        self._ahead_ms = began_ms - ports.clock.monotonic_ms()
        self._core = LeaderCore(cluster)
        self._backlog = Backlog(ports.inputs, lambda error: watch.weather("input_end", error))
        self._unsent: deque[Sealed] = deque()
        self._partitions: list[tuple[str, int]] = []
        self._counted_at_ms = -_PARTITIONS_EVERY_MS
        self._snapshot_offset = snapshot_offset
        self._bytes_since = 0  # Of what this leader has seen.
        self._saving = False
        self._bug: Exception | None = None  # Met by the thread that saves.
        self._quiet = True

    def now_ms(self) -> int:
        """The time that entries carry: steps of the wall clock during a term do not reach it."""
        return self._ahead_ms + self._ports.clock.monotonic_ms()

    def turn(self, timeout_s: float) -> Phase:
        """Read back, send what is unsent, then decide once over what has come in.

        Dying before an append: the step never was; its inputs are decided by the next leader, from the positions in
        the log. After it: the entry stands, and the next leader goes on behind it. Between two entries of one step:
        the first stands with the positions it names. Nothing acts on an entry before it is in the log.
        """
        if self._bug is not None:
            raise self._bug
        if not self._ports.leadership.holds():
            raise LeadershipLostError("the lease or lock is gone: another may lead by now")
        self._read_back(0)
        wants_snapshot = self._wants_snapshot()
        if self._unsent:
            self._send()
        elif self._core.in_flight >= (1 if wants_snapshot else self._rules.in_flight_max):
            self._read_back(timeout_s)
        elif wants_snapshot:
            self._snapshot()
        else:
            self._decide(timeout_s)
        return self

    def hand_over(self) -> None:
        """Send what is decided, read it back, leave a snapshot, and let another lead at once.

        Dying inside costs the next leader a longer tail to fold, or the lease's time to wait; never a decision.
        """
        if self._ports.leadership.holds():
            self._read_back(0)
            self._send()
            self._read_back(1.0)
            if self._core.in_flight == 0:
                self._snapshot()
        self._ports.leadership.resign()

    # --- the log

    def _send(self) -> None:
        """Append in order; on PortError the rest stays, to be sent again unless reading shows it in the log."""
        while self._unsent:
            self._ports.log.append(self._unsent[0].value)
            self._unsent.popleft()

    def _read_back(self, timeout_s: float) -> None:
        """Check off what is in the log by now, waiting only while an entry of ours is awaited."""
        while True:
            wait_s = timeout_s if self._core.in_flight > len(self._unsent) else 0
            records = self._ports.log.read(self.cluster.offset + 1, limit=64, timeout_s=wait_s)
            for record in records:
                entry = self._core.confirm(record)
                self._watch.confirmed(entry)
                if entry and self._unsent and self._unsent[0].entry.digest == entry.digest:
                    self._unsent.popleft()  # Its append failed, and yet it is there.
                self._bytes_since += len(record.value)
            if not records:
                return
            timeout_s = 0

    # --- inputs

    def _decide(self, timeout_s: float) -> None:
        inputs = self._take(timeout_s)
        self._quiet = not inputs
        self._watch.begins()
        now_ms = self.now_ms()
        step = self._core.step(inputs, now_ms, enforce=self._may_enforce(now_ms))
        if step is None:
            return
        self._watch.decided(step, len(inputs))
        self._unsent.extend(step.sealed)
        self._send()

    def _may_enforce(self, now_ms: int) -> bool:
        """Deadlines wait for what came in before them; asked of the inputs only when one has passed."""
        return not self._core.overdue(now_ms) or self._backlog.decided(self._positions(), now_ms)

    def due_in_ms(self) -> int | None:
        """When a turn without inputs has something to do; None: only when something comes in."""
        now_ms = self.now_ms()
        due_ms = self._core.next_due_ms(now_ms)
        if due_ms is None:
            return None
        return max(0, due_ms - now_ms, self._backlog.again_in_ms(now_ms))

    def _take(self, timeout_s: float) -> Sequence[InputRecord]:
        """What has come in; waits no longer than until something is due, and little while an entry is unconfirmed."""
        due_in_ms = self.due_in_ms()
        if due_in_ms is not None:
            timeout_s = min(timeout_s, due_in_ms / 1000)
        if self._core.in_flight:
            timeout_s = min(timeout_s, _CONFIRM_WITHIN_S)
        return self._ports.inputs.read(
            self._positions(), limit=self._rules.inputs_per_step, timeout_s=timeout_s
        )

    def _positions(self) -> Mapping[tuple[str, int], int]:
        now_ms = self._ports.clock.monotonic_ms()
        if now_ms - self._counted_at_ms >= _PARTITIONS_EVERY_MS:
            self._counted_at_ms = now_ms
            self._partitions = [
                (topic.suffix, partition)
                for topic in topics.LEADER_INPUTS
                for partition in range(self._ports.inputs.partitions(topic.suffix))
            ]
        positions = self.cluster.positions
        return {key: positions.get(key, 0) for key in self._partitions}

    # --- snapshots

    def _wants_snapshot(self) -> bool:
        """Due, and nothing is going on; or long overdue. Taken only of a state that is in the log as a whole."""
        due = max(
            (self.cluster.offset - self._snapshot_offset) / self._rules.snapshot_entries,
            self._bytes_since / self._rules.snapshot_bytes,
        )
        return not self._saving and (due >= _OVERDUE or (due >= 1 and self._quiet))

    def _snapshot(self) -> None:
        record = take_snapshot(self.cluster)
        self._snapshot_offset, self._bytes_since = record.offset, 0
        self._saving = True
        self._rules.background(lambda: self._save(record))

    def _save(self, record: SnapshotRecord) -> None:
        """A cache: when it cannot be saved, the next one will do. A bug is raised by the next turn."""
        try:
            self._ports.snapshots.save(record)
        except PortError as error:
            self._watch.weather("save_snapshot", error)
        except Exception as bug:  # noqa: BLE001 - on its thread nobody would hear of it
            self._bug = bug
        finally:
            self._saving = False


def _read_to_end(reader: LogReader, watch: Watch) -> list[Folded]:
    found: list[Folded] = []
    while folded := reader.read(timeout_s=0):
        _tell(folded, watch)
        found += folded
    return found


def _tell(folded: Sequence[Folded], watch: Watch) -> None:
    for each in folded:
        watch.read(each)


def _find(folded: Sequence[Folded], term: int, nonce: str) -> Entry | None:
    """Our opening, if it is among what was accepted."""
    for each in folded:
        if each.accepted and opens(each.entry, term=term, nonce=nonce):
            return each.entry
    return None
