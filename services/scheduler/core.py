"""The leader as a pure machine: inputs and a time in, entries out. No clock, no I/O, no randomness.

`step` decides inputs in the order given, then what is due, then the plan, and seals it all into entries that take
effect on the working cluster at once. `confirm` checks them off as they are read back from the log; one that does not
come back as the next accepted entry ends this leader. Nothing is ever undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from planning.decisions import Decision, Place
from planning.planner import Planner
from services.runtime import codec, topics
from services.runtime.ports import INPUT_BYTES_MAX, InputRecord, LogRecord
from services.scheduler import nodes, reports, requests, trainers, verdicts
from services.scheduler.arrays import Arrays
from services.scheduler.draft import Draft, Sealed, UnfitError, fits
from services.scheduler.duetimes import DueTimes
from services.scheduler.exits import DeposedError
from statemachines.cluster import Cluster, Touched
from statemachines.entry import Entry
from statemachines.facts import Fact, GangPlaced, JobHeld, JobWaiting
from statemachines.job import Job
from statemachines.values import Reason

# Bounds on what one step may do of its own accord, so that a step stays short; the rest follows in the next.
DUE_PER_STEP: Final = 2_000
DECISIONS_PER_STEP: Final = 2_000
# Below this many members a placement fits an entry whatever the names in it.
_LARGE_GANG: Final = 500
_TOO_LARGE: Final = Reason(
    "too_large",
    "its placement does not fit one entry of the log, because the names of nodes are so long: cancel it and submit "
    "fewer, larger members",
)


class Step(msgspec.Struct, frozen=True, gc=False):
    """What one step decided: entries to append in order, and the inputs that changed nothing, counted by why."""

    sealed: tuple[Sealed, ...]
    weather: Mapping[str, int]


class LeaderCore:
    """The leader of one term. `cluster` tracks touches and has folded our TermOpened as its head."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._term = cluster.term
        self._confirmed = cluster.head
        self._in_flight: deque[Sealed] = deque()
        self._planner = Planner(cluster)
        self._due = DueTimes(cluster)
        self._arrays = Arrays(cluster)
        self._plan_anyway = True  # The first plan looks at everything.
        self._deciders: Mapping[str, Callable[[Draft, bytes], None]] = {
            topics.REQUESTS.suffix: self._decide_request,
            topics.REPORTS.suffix: reports.decide,
            topics.VERDICTS.suffix: verdicts.decide,
        }
        cluster.take_touched()  # The indices were built from the whole state.

    @property
    def in_flight(self) -> int:
        """Entries that have been sealed and not been read back."""
        return len(self._in_flight)

    # --- deciding

    def step(
        self, inputs: Sequence[InputRecord], now_ms: int, *, enforce: bool = True
    ) -> Step | None:
        """Decide the inputs, what is due and the plan; None when nothing changed and no input was given.

        Not to `enforce`: nobody is held to a deadline yet, since inputs that were in time are still to be decided.
        The entries are in flight from here on: append each, in order. `now_ms` before the log's time counts as that.
        """
        cluster = self._cluster
        draft = Draft(cluster, term=self._term, now_ms=max(now_ms, cluster.at_ms))
        for record in inputs:
            self._decide(draft, record)
        if enforce:
            self._due.enforce(draft, limit=DUE_PER_STEP)
        touched = cluster.take_touched()
        for node in touched.nodes:
            nodes.drained(draft, node)
        self._refresh(touched)
        self._refresh(cluster.take_touched())
        self._plan(draft, changed=bool(touched.jobs or touched.nodes or touched.queues))
        sealed = draft.close()
        if not sealed:
            return None
        self._in_flight.extend(sealed)
        return Step(tuple(sealed), draft.weather)

    def overdue(self, now_ms: int) -> bool:
        """Whether a step that enforces would hold someone to a deadline."""
        at = self._due.next_ms()
        return at is not None and at <= now_ms

    def next_due_ms(self, now_ms: int) -> int | None:
        """When a step without inputs can change something; None: never."""
        if self._plan_anyway:
            return now_ms
        times = (self._due.next_ms(), self._planner.next_due_ms(now_ms))
        known = [at for at in times if at is not None]
        return min(known) if known else None

    def _decide(self, draft: Draft, record: InputRecord) -> None:
        if not draft.begin(record):
            return
        try:
            if len(record.value) > INPUT_BYTES_MAX:
                raise UnfitError(f"{len(record.value)} bytes are more than {INPUT_BYTES_MAX}")
            self._deciders[record.topic](draft, record.value)
        except UnfitError as why:
            draft.park(str(why))
        draft.finish()

    def _decide_request(self, draft: Draft, stored: bytes) -> None:
        requests.decide(draft, self._arrays, stored)

    def _refresh(self, touched: Touched) -> None:
        self._planner.refresh(touched)
        self._due.refresh(touched)
        self._arrays.refresh(touched)

    def _plan(self, draft: Draft, *, changed: bool) -> None:
        due = self._planner.next_due_ms(draft.now_ms)
        if not (changed or self._plan_anyway or (due is not None and due <= draft.now_ms)):
            return
        self._plan_anyway = False
        for decision in self._planner.plan(draft.now_ms, limit=DECISIONS_PER_STEP):
            self._take(draft, decision)
        self._refresh(self._cluster.take_touched())

    def _take(self, draft: Draft, decision: Decision) -> None:
        job = self._cluster.jobs[decision.job]
        if isinstance(decision, Place):
            self._place(draft, job, decision)
        elif job.reason is None or job.reason.code != decision.reason.code:
            draft.record(JobWaiting(job.id, decision.reason))

    def _place(self, draft: Draft, job: Job, decision: Place) -> None:
        placed = GangPlaced(
            job.id, job.attempt + 1, decision.placements, decision.resume, decision.master_port, decision.why
        )  # fmt: skip
        facts: list[Fact] = [*trainers.condemned(draft.cluster, job, decision.resume), placed]
        if len(placed.placements) > _LARGE_GANG and not fits(facts):
            draft.record(JobHeld(job.id, _TOO_LARGE))
            return
        with draft.whole():
            for fact in facts:
                draft.record(fact)

    # --- reading back

    def confirm(self, record: LogRecord) -> Entry | None:
        """Take note of the log's next record; answers our entry when this is it, None when the record is void.

        Raises DeposedError when the chain went on without us, codec.UnknownFactError when a newer version did so.
        """
        if self._in_flight and record.value == self._in_flight[0].value:
            ours = self._in_flight.popleft().entry
            entry = msgspec.structs.replace(ours, offset=record.offset)
            self._confirmed = entry.digest
            self._cluster.settle(entry)
            return entry
        other = self._other(record)
        if self._extends(other):
            raise DeposedError(
                f"the entry at {record.offset} (term {other.term}) was accepted and is not ours (term {self._term})"
            )
        if any(other.digest == sealed.entry.digest for sealed in self._in_flight):
            raise DeposedError(
                f"our entry at {record.offset} is void: the one before it is not in the log"
            )
        self._cluster.skip(record.offset)
        return None

    def _other(self, record: LogRecord) -> Entry:
        try:
            return codec.decode_entry(record.offset, record.value)
        except codec.CodecError:
            return codec.unreadable(record.offset)
        except codec.UnknownFactError as error:
            if error.entry is None or self._extends(error.entry):
                raise
            return error.entry

    def _extends(self, entry: Entry) -> bool:
        return (
            entry.prev == self._confirmed
            and entry.term >= self._term
            and entry.cell == self._cluster.cell
        )
