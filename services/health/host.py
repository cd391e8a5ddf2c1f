"""Hosts the judge on streams: records are brought to one active member of a group, the others stand by.

The whole cell is judged in one place, for only there is mass silence seen. What is remembered is rebuilt whenever the
partitions come to us: the log is folded, beats and progress are judged from that moment on, signals are read again.
So a record is taken at most once however often it is brought, and what the group remembers of positions is never used.
Nobody is judged while records are on their way to us, and a stream that stands still meanwhile ends the process. It
never names the framework that brings the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from services.health.judge import TOPICS, Judge, Ports, Watch
from services.health.messages import Verdict
from services.health.metrics import Observer
from services.health.proofs import Proofs
from services.health.rules import Rules
from services.health.table import Table
from services.runtime import topics
from services.runtime.patience import Patience
from services.runtime.ports import InputGapError, InputRecord, PortError
from services.runtime.streams import Place, Streams, StreamsEndedError

TURN_S: Final = 0.25
_SIGNALS_PER_READ: Final = 2_000
# It answers when something came; only what a broker keeps back takes as long.
_READ_S: Final = 10.0


class Host:
    """A StreamHandler around a judge. Its state belongs to the event loop, but for what a turn does in a thread."""

    def __init__(
        self,
        cell: str,
        ports: Ports,
        rules: Rules,
        table: Table,
        watch: Watch,
        *,
        stalled_ms: int,
        proofs: Proofs | None = None,
    ) -> None:
        """Fold the log. `stalled_ms`: how long a stream with records may stand still. Raises PortError, UnknownFactError."""
        self._inputs, self._clock, self._watch = ports.inputs, ports.clock, watch
        self._stalled_ms, self._own_gap_ms = stalled_ms, rules.own_gap_ms
        self.judge = Judge(cell, ports, rules, table, watch, proofs)
        self.active = False
        self._assigned: frozenset[Place] = frozenset()
        self._open = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Next record to take of each partition, and where each ended at the last look.
        self._positions: dict[Place, int] = {}
        self._ends: Mapping[Place, int] = {}
        self._still: dict[Place, tuple[int, int]] = {}
        self._looked_ms = 0
        self._said: list[Verdict] = []
        self.held_back = 0

    # --- StreamHandler

    def assigned(self, places: frozenset[Place]) -> None:
        """All or nothing: the next turn begins anew."""
        self._open.clear()
        self.active = False
        self._assigned = places
        self._positions, self._still = {}, {}

    async def take(self, record: InputRecord) -> None:
        """Observe it, unless it was before we began or was brought before; waits until we have begun."""
        await self._open.wait()
        place = (record.topic, record.partition)
        position = self._positions.get(place)
        if position is None or record.offset < position:
            return
        self._positions[place] = record.offset + 1
        try:
            self._said += self.judge.observe(record)
        except Exception as error:  # noqa: BLE001 - a bug of ours; the framework would only log it and go on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    # --- turns

    async def turn(self) -> None:
        """Look once: begin, or judge what was said and what was not. Raises PortError, StreamsEndedError, and bugs."""
        if self._failed.done():
            self._failed.result()
        if not self._open.is_set():
            await self._stand_by()
            return
        said, self._said = self._said, []
        before, places = self._ends, self._assigned
        self._ends = await asyncio.to_thread(self._look, places)
        if places is not self._assigned:
            return
        self._check_progress()
        all_read = all(self._positions[place] >= end for place, end in before.items())
        self.held_back += not all_read
        said += self.judge.tick(all_read=all_read)
        await asyncio.to_thread(self.judge.publish, said)

    @property
    def behind(self) -> int:
        """Records on their way to us at the last look."""
        ends = self._ends.items()
        return sum(max(end - self._positions.get(place, end), 0) for place, end in ends)

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """What a person wants to know of a member."""
        yield (
            "health_active",
            "1 where the cell is judged, 0 in a member that stands by",
            self.active,
        )
        yield "health_records_behind", "Records on their way to us", self.behind
        yield (
            "health_turns_held_back",
            "Looks at which too many were, so nobody was judged",
            self.held_back,
        )

    async def _stand_by(self) -> None:
        """Keep the fold near, and begin when all partitions are ours."""
        places = self._assigned
        if not places:
            await asyncio.to_thread(self.judge.stand_by)
            return
        ends = await asyncio.to_thread(self._begin, places)
        if ends is None or places is not self._assigned:
            return
        self._positions, self._ends, self._said = dict(ends), ends, []
        self._looked_ms = self._clock.monotonic_ms()
        self.active = True
        self._open.set()

    def _begin(self, places: frozenset[Place]) -> Mapping[Place, int] | None:
        """Rebuild what is remembered; where each partition ended. None while some partitions are not ours yet."""
        self.judge.read_log()
        if places != self._everything():
            return None
        ends = self._look(places)
        signals = {place: end for place, end in ends.items() if place[0] == topics.SIGNALS.suffix}
        self.judge.begin({partition: end for (_, partition), end in signals.items()})
        for place, end in signals.items():
            self._read_again(place, end)
        return ends

    def _read_again(self, place: Place, end: int) -> None:
        position = 0
        while position < end:
            try:
                records = self._inputs.read(
                    {place: position}, limit=_SIGNALS_PER_READ, timeout_s=_READ_S
                )
            except (
                InputGapError
            ) as gap:  # Retention passed it; nothing is missed that is still kept.
                position = gap.oldest
                continue
            for record in records:
                if record.offset < end:
                    self.judge.observe(record)
            position = records[-1].offset + 1 if records else end

    def _everything(self) -> frozenset[Place]:
        return frozenset(
            (topic.suffix, partition)
            for topic in TOPICS
            for partition in range(self._inputs.partitions(topic.suffix))
        )

    def _look(self, places: frozenset[Place]) -> Mapping[Place, int]:
        """Fold what the log has; where each partition ends by a client that is not the stream's."""
        self.judge.read_log()
        return {place: self._inputs.end(*place) for place in sorted(places)}

    def _check_progress(self) -> None:
        """The watchdog: a stream may stand still without an error, and only a new process brings it back."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms > self._own_gap_ms:
            self._still.clear()  # It was we who stood still.
        self._looked_ms = now_ms
        for place, end in self._ends.items():
            position = self._positions[place]
            at, since_ms = self._still.get(place, (-1, 0))
            if position >= end:
                self._still.pop(place, None)
            elif at != position:
                self._still[place] = (position, now_ms)
            elif now_ms - since_ms > self._stalled_ms:
                raise StreamsEndedError(
                    f"{place[0]}/{place[1]}: nothing was brought for {(now_ms - since_ms) // 1000} s though "
                    f"{end - position} records are there. The process ends, and its supervisor starts it again"
                )


async def serve(
    streams: Streams,
    make_host: Callable[[], Host],
    observer: Observer,
    patience: Patience,
    until: Callable[[], bool],
) -> None:
    """Turn after turn beside the streams until `until` holds; the end of the streams is ours. Raises as a turn does."""
    host = make_host()
    member = asyncio.create_task(streams.run([topic.suffix for topic in TOPICS], host))
    try:
        while not until():
            pause_s = TURN_S
            try:
                await host.turn()
            except PortError as error:
                pause_s = patience.failed(error)
            else:
                observer.turned()
                patience.well()
            await asyncio.wait([member], timeout=pause_s)
            if member.done():
                member.result()
    finally:
        member.cancel()
        await asyncio.gather(member, return_exceptions=True)
