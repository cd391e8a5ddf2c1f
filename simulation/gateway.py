"""The gateway as a simulated process: the real core, with a driver on virtual time.

One write after the other, the log read when it grows. A crash breaks its connections: whoever waits for an answer
learns that, and knows nothing of the outcome. `lag_ms` makes it read the log in small bites, so that it is behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import msgspec
from google.protobuf.message import Message

from services.gateway.auth import Caller
from services.gateway.core import GatewayCore
from services.gateway.effects import Now, Outbox, Write
from services.gateway.refusal import Refusal, Status
from services.runtime.ports import PortError
from simulation.kernel import US_PER_MS
from simulation.process import Process, SimClock
from simulation.storage import Broker, SimBlobs, SimEventLog, SimPublisher
from statemachines.cluster import Cluster

ADMIN: Final = Caller("user:admin", "token", frozenset({"admin"}))
AGENT: Final = Caller("service:agent", "node-token", frozenset({"node"}))
_RETRY_MS: Final = 100
_PAUSED_MS: Final = 50
_WRITE_MS: Final = 2
_BITE: Final = 2
_BROKEN: Final = Refusal(Status.UNAVAILABLE, "connection_lost", "the connection broke; ask again")

Answered = Callable[[Message | Refusal], None]


class Drain(msgspec.Struct, frozen=True):
    """Who takes what a stream has to send."""

    send: Callable[[Any], None]
    broke: Callable[[], None]


class GatewayProcess(Process):
    """The real core with a driver on virtual time."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        clock: SimClock,
        *,
        cell: str,
        cell_key: bytes,
        crash_ppm: int,
    ) -> None:
        super().__init__(broker.kernel, name, crash_ppm=crash_ppm)
        self.core: GatewayCore | None = None
        self.lag_ms = 0
        self._broker, self._clock, self._cell, self._key = broker, clock, cell, cell_key
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._calls: dict[int, Answered] = {}
        self._drains: dict[Outbox, Drain] = {}
        self._waiting: list[Write] = []
        self._writing = False
        # When the core is ticked, the next time last.
        self._ticks: list[int] = []
        broker.on_record(("log",), self._woken)

    # --- life

    def begin(self) -> None:
        """Fold the log from its start."""
        self.core = GatewayCore(
            Cluster(self._cell, track=True),
            name=self.name,
            cell_key=self._key,
            new_id=lambda: f"{self.name}-{next(self._ids)}",
        )
        self._log = SimEventLog(self._broker, self.point)
        self._publisher = SimPublisher(self._broker, self.point)
        self._blobs = SimBlobs(self._broker, self.point)
        self._calls, self._drains, self._waiting, self._writing = {}, {}, [], False
        self._ticks = []

    def turn(self) -> None:
        """Follow the log; what lags reads a bite, and has not seen the end."""
        core = self.core
        assert core is not None, "begun"
        limit = _BITE if self.lag_ms else 256
        try:
            while records := self._log.read(core.cluster.offset + 1, limit=limit, timeout_s=0):
                for record in records:
                    core.fold(self._broker.entry(record.offset, record.value))
                if self.lag_ms:
                    self.perform()
                    self.wake(self.lag_ms)
                    return
            core.log_read(self.now())
            self.wake(1_000)
        except PortError:
            self.wake(_RETRY_MS)
        self.perform()

    def ended(self) -> None:
        """Connections break: calls have no known outcome, streams are gone."""
        self.core = None
        calls, drains = self._calls, self._drains
        self._calls, self._drains = {}, {}
        for answered in calls.values():
            answered(_BROKEN)
        for drain in drains.values():
            drain.broke()

    def now(self) -> Now:
        """The time of an input."""
        now_ms = self.kernel.now_ms
        return Now(now_ms + self._clock.ahead_ms, now_ms)

    # --- calls and streams

    def call(self, ask: Callable[[GatewayCore, int, Now], None], answered: Answered) -> None:
        """A unary call arrives; `answered` is called once, be it because the process ended first."""
        core = self.core
        assert core is not None, "only called while up"
        number = next(self._numbers)
        self._calls[number] = answered

        def asked() -> None:
            try:
                ask(core, number, self.now())
            except Refusal as refusal:
                self._calls.pop(number)(refusal)
            self.perform()

        self.guarded(asked)

    def drain(self, outbox: Outbox, drain: Drain) -> None:
        """Give what the stream has to send to `drain.send`; say `broke` when it was cut or broke."""
        self._drains[outbox] = drain

    def undrain(self, outbox: Outbox) -> None:
        """Nobody listens to it any more."""
        self._drains.pop(outbox, None)

    def perform(self) -> None:
        """Do what the core asked for. Called after every input."""
        core = self.core
        if core is None:
            return
        effects = core.effects
        if effects.writes or effects.answers or effects.ready:
            self._act(*effects.take())
        due_ms, ticks = effects.due_ms(), self._ticks
        if due_ms is not None and (not ticks or due_ms < ticks[-1]):
            ticks.append(due_ms)
            self._tick_at(due_ms * US_PER_MS)

    def _act(
        self,
        writes: list[Write],
        answers: list[tuple[int, Message | Refusal]],
        ready: Collection[Outbox],
    ) -> None:
        if writes:
            self._waiting += writes
            if not self._writing:
                self._writing = True
                self.later(_WRITE_MS, self._commit)
        for number, result in answers:
            answered = self._calls.pop(number, None)
            if answered is not None:
                answered(result)
        if ready:
            now = self.now()
            for outbox in ready:
                self._pull(outbox, now)

    def _pull(self, outbox: Outbox, now: Now) -> None:
        drain = self._drains.get(outbox)
        if drain is None:
            return
        try:
            while (message := outbox.pull(now)) is not None:
                drain.send(message)
        except Refusal:
            self._drains.pop(outbox, None)
            drain.broke()

    # --- writes

    def _commit(self) -> None:
        batch, self._waiting = self._waiting, []
        outcome: PortError | None = None
        try:
            blobs = [blob for write in batch for blob in write.blobs]
            if blobs:
                self._blobs.put(blobs)
            self._publisher.publish([record for write in batch for record in write.records])
        except PortError as error:
            outcome = error
        self.later(_WRITE_MS, self._committed, batch, outcome)

    def _committed(self, batch: list[Write], outcome: PortError | None) -> None:
        assert self.core is not None, "of this life"
        self._writing = False
        now = self.now()
        for write in batch:
            self.core.effects.written(write.id, outcome, now)
        self.perform()

    # --- time

    def _tick_at(self, at_us: int) -> None:
        self.kernel.post(max(at_us, self.kernel.now_us), partial(self._ticked, self._life))

    def _ticked(self, life: int) -> None:
        if life != self._life or not self.up:
            return
        if self.paused:
            self._tick_at(self.kernel.now_us + _PAUSED_MS * US_PER_MS)
            return
        self._ticks.pop()
        self.guarded(self._tick_core)

    def _tick_core(self) -> None:
        assert self.core is not None, "up"
        self.core.effects.tick(self.now())
        self.perform()

    def _woken(self) -> None:
        if self.up:
            self.wake(max(1, self.lag_ms))
