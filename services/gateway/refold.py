"""Reading the log again, in a worker thread: walks of the chain, folds to an earlier moment, and verification.

Never touches the live cluster: it is given copies and heads to compare with. Each call opens a log of its own.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from services.gateway.history import About, line
from services.gateway.trail import BEGINNING, Mark
from services.runtime import codec
from services.runtime.ports import EventLog, LogRecord, PortError, Snapshots
from services.runtime.reader import RECORDS_PER_READ, Folded, LogReader, decode
from services.runtime.recovery import usable
from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.entry import GENESIS, Entry
from statemachines.facts import TermOpened
from tidemill.v1 import job_service_pb2, log_service_pb2

# Lines of history in one answer; of more, the first and the newest are shown.
LINES_MAX: Final = 2_000


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """One record of a walk; `void` says why it changed nothing, empty when accepted."""

    record: LogRecord
    entry: Entry
    void: str


class Walk:
    """Follows the chain from a mark without folding facts: what is accepted depends on heads and terms alone."""

    def __init__(self, log: EventLog, cell: str, mark: Mark = BEGINNING) -> None:
        self._log = log
        self._chain = Cluster(cell)
        self._chain.head, self._chain.term, self._chain.offset = mark.head, mark.term, mark.offset

    @property
    def next_offset(self) -> int:
        """Of the record that is read next."""
        return self._chain.offset + 1

    def read(self) -> Sequence[Step]:
        """The next records; empty at the end of the log."""
        records = self._log.read(self.next_offset, limit=RECORDS_PER_READ, timeout_s=0)
        return [self._step(record) for record in records]

    def steps(self, stop: threading.Event, *, up_to: int | None = None) -> Iterator[Step]:
        """To the end of the log, or to an offset; raises Cancelled."""
        while (up_to is None or self.next_offset <= up_to) and (steps := self.read()):
            if stop.is_set():
                raise Cancelled
            for step in steps:
                if up_to is not None and step.record.offset > up_to:
                    return
                yield step

    def _step(self, record: LogRecord) -> Step:
        entry, unreadable = decode(record, self._chain)
        void = unreadable or self._chain.void_reason(entry)
        if not void:
            self._chain.seal(entry)
        self._chain.offset = record.offset
        return Step(record, entry, void)


def picked(log: EventLog, offsets: Sequence[int], stop: threading.Event) -> Iterator[Step]:
    """The records at these offsets, which the live fold has accepted: the first and the newest that are shown.

    Raises Cancelled.
    """
    for offset in (*offsets[:1], *offsets[1:][-(LINES_MAX - 1) :]):
        if stop.is_set():
            raise Cancelled
        for record in log.read(offset, limit=1, timeout_s=0):
            yield Step(record, codec.decode_entry(record.offset, record.value), "")


def entry_response(step: Step) -> log_service_pb2.ReadEntriesResponse:
    """A record as LogService shows it."""
    entry = step.entry
    response = log_service_pb2.ReadEntriesResponse(
        offset=entry.offset,
        accepted=not step.void,
        void_reason=step.void,
        digest=entry.digest,
        lines=[line(entry, recorded) for recorded in entry.facts],
    )
    if entry.digest:  # Otherwise the bytes are not an entry.
        response.entry.ParseFromString(step.record.value)
    return response


def newest(
    walk_from: Callable[[int], tuple[Walk, bool]],
    end: int,
    count: int,
    wanted: Callable[[log_service_pb2.ReadEntriesResponse], bool],
) -> Sequence[log_service_pb2.ReadEntriesResponse]:
    """The last `count` records up to `end` that are wanted, looking back as far as it takes.

    `walk_from` answers a walk that begins at or before an offset, and whether it begins at the first record.
    """
    span = 2 * count
    while True:
        walk, from_the_first = walk_from(max(end - span, 0))
        found: deque[log_service_pb2.ReadEntriesResponse] = deque(maxlen=count)
        while walk.next_offset <= end and (steps := walk.read()):
            responses = [entry_response(step) for step in steps if step.record.offset <= end]
            found.extend([response for response in responses if wanted(response)])
        if len(found) == count or from_the_first:
            return found
        span *= 8


def history(
    steps: Iterator[Step], name: str, *, from_ms: int = 0, to_ms: int = 0
) -> list[job_service_pb2.HistoryLine]:
    """Lines about a job, array, node or queue, in order; bounded by time."""
    about = About(name)
    first: list[job_service_pb2.HistoryLine] = []
    rest: deque[job_service_pb2.HistoryLine] = deque(maxlen=LINES_MAX - 1)
    for step in steps:
        entry = step.entry
        if step.void:
            continue
        if to_ms and entry.at_ms > to_ms:
            break
        for recorded in entry.facts:
            if about(recorded.fact) and entry.at_ms >= from_ms:
                (rest if first else first).append(line(entry, recorded))
    return [*first, *rest]


# --- folds to an earlier moment


class Moment(msgspec.Struct, frozen=True):
    """Up to and including an offset, or a time; neither: the end."""

    at_ms: int = 0
    at_offset: int = 0

    @property
    def given(self) -> bool:
        """Whether it is not simply the end."""
        return bool(self.at_ms or self.at_offset)

    def is_before(self, entry: Entry) -> bool:
        """Whether the entry comes after this moment."""
        if self.at_offset:
            return entry.offset > self.at_offset
        return bool(self.at_ms) and entry.at_ms > self.at_ms


class Refolded(msgspec.Struct, frozen=True):
    """The cell at an earlier moment, and how many records and facts were folded to get there."""

    cluster: Cluster
    entries: int
    facts: int


def refold(
    log: EventLog, cell: str, moment: Moment, stop: threading.Event, *, snapshots: Snapshots | None
) -> Refolded:
    """Fold to a moment, from the newest snapshot before it if there are snapshots. Raises PortError, Cancelled."""
    cluster = _nearest(snapshots, log, cell, moment) if snapshots is not None else Cluster(cell)
    begun = cluster.facts

    def passed(entry: Entry) -> bool:
        if stop.is_set():
            raise Cancelled
        return moment.is_before(entry)

    reader = LogReader(log, cluster, stop_before=passed)
    entries = reader.read_to_end()
    return Refolded(cluster, entries, cluster.facts - begun)


def _nearest(snapshots: Snapshots, log: EventLog, cell: str, moment: Moment) -> Cluster:
    """Of the newest usable snapshot that was taken before the moment."""
    for record in snapshots.load():
        if moment.at_offset and record.offset > moment.at_offset:
            continue
        found = usable(record, log, cell)
        if isinstance(found, Cluster) and not (moment.at_ms and found.at_ms > moment.at_ms):
            return found
    return Cluster(cell)


def still(cluster: Cluster) -> Cluster:
    """A copy that stays as it is while the live one goes on: entities are frozen, so only the tables are copied."""
    twin = copy.copy(cluster)
    for name, value in vars(twin).items():
        if isinstance(value, dict):
            setattr(twin, name, dict(value))
    return twin


def replay(
    log: EventLog, live: Cluster, moment: Moment, stop: threading.Event
) -> log_service_pb2.ReplayLogResponse:
    """Fold from the first record to a moment; `live` is a still copy to compare with where the offsets are equal."""
    if not moment.given:
        moment = Moment(at_offset=live.offset)
    done = refold(log, live.cell, moment, stop, snapshots=None)
    cluster = done.cluster
    return log_service_pb2.ReplayLogResponse(
        offset=cluster.offset,
        at_ms=cluster.at_ms,
        term=cluster.term,
        head=cluster.head,
        state_digest=snapshot.digest(cluster),
        live_digest=snapshot.digest(live) if cluster.offset == live.offset else b"",
        entries=done.entries,
        facts=done.facts,
        jobs_by_state=Counter(job.state.value for job in cluster.jobs.values()),
        nodes_by_state=Counter(node.state.value for node in cluster.nodes.values()),
    )


# --- verification


def verify(
    log: EventLog, cell: str, heads: Mapping[int, bytes], stop: threading.Event
) -> Iterator[log_service_pb2.VerifyLogResponse]:
    """Recompute the chain and fold everything from the first record; an answer a batch, the last one `done`.

    `heads` are what a live fold and the snapshots hold to be the head at some offsets: a record that was changed
    afterwards makes all behind it void, which only those who saw it before can tell from a dead leader's entries.
    """
    cluster = Cluster(cell)
    reader = LogReader(log, cluster)
    chain = _Chain()
    entries = accepted = 0
    problem = ""
    while not problem:
        if stop.is_set():
            raise Cancelled
        try:
            batch = reader.read(timeout_s=0)
        except (PortError, codec.UnknownFactError, AssertionError) as error:
            problem = f"at or behind offset {cluster.offset} the log cannot be folded: {error}"
            break
        if not batch:
            problem = chain.problem(heads)
            break
        for folded in batch:
            entries += 1
            accepted += folded.accepted
            problem = problem or chain.take(folded, heads)
        yield _progress(cluster, entries, accepted)
    final = _progress(cluster, entries, accepted)
    final.done, final.ok, final.problem = True, not problem, problem
    if not problem:
        final.state_digest = snapshot.digest(cluster)
    yield final


def _progress(cluster: Cluster, entries: int, accepted: int) -> log_service_pb2.VerifyLogResponse:
    return log_service_pb2.VerifyLogResponse(
        entries=entries,
        accepted=accepted,
        voided=entries - accepted,
        facts=cluster.facts,
        offset=cluster.offset,
        head=cluster.head,
    )


class _Chain:
    """The heads a walk comes by, and whether the log ends in a chain that hangs on nothing.

    That is: void entries behind the last accepted one, a new term's among them, that name a head which no record has.
    Leaders name heads that they have read, so a record that was there is not what it was, or is missing.
    """

    def __init__(self) -> None:
        self.read_to = -1
        self._accepted = -1
        self._head = GENESIS
        self._digests: set[bytes] = {GENESIS}
        self._opened = False
        self._unknown = -1

    def take(self, folded: Folded, heads: Mapping[int, bytes]) -> str:
        """The next record; what is wrong with the head at its offset, if that is known to have been another."""
        entry = folded.entry
        self.read_to = entry.offset
        if folded.accepted:
            self._accepted, self._opened, self._unknown = entry.offset, False, -1
            self._digests, self._head = {entry.digest}, entry.digest
        elif entry.digest:
            if entry.prev not in self._digests and self._unknown < 0:
                self._unknown = entry.offset
            self._digests.add(entry.digest)
            opens = any(isinstance(recorded.fact, TermOpened) for recorded in entry.facts)
            self._opened = self._opened or opens
        expected = heads.get(entry.offset, self._head)
        if expected == self._head:
            return ""
        return (
            f"the head at offset {entry.offset} is {self._head.hex()[:16]}, and this cell has acted on "
            f"{expected.hex()[:16]}: a record at or before it is not what was written; the last that was accepted "
            f"is at {self._accepted}. Restore the log from a replica or a backup"
        )

    def problem(self, heads: Mapping[int, bytes]) -> str:
        """What is wrong at the end of the log, if anything is."""
        if (known := max(heads, default=-1)) > self.read_to:
            return (
                f"the log ends at offset {self.read_to}, and this cell has acted on the record at {known}: its end is "
                "missing. Restore the log from a replica or a backup"
            )
        if self._unknown < 0 or not self._opened:
            return ""
        return (
            f"after offset {self._accepted} nothing is accepted, though a leader began a term there: the record at "
            f"{self._unknown} names a head that no record has, so the one at {self._accepted} is not what was "
            "written, or one behind it is missing. Restore the log from a replica or a backup"
        )
