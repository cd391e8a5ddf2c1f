"""The driver: runs the core on the event loop, with a thread that follows the log and two that write.

Everything that touches the core happens on the loop. If the process dies between any two lines here: what was
answered is durable, what was written but not answered is answered from the log when it is asked again.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from google.protobuf.message import Message

from services.gateway.commit import GroupCommit, Measured, is_telemetry
from services.gateway.core import GatewayCore
from services.gateway.effects import Now, Outbox, Write
from services.gateway.follow import Follower, Read
from services.gateway.refusal import Refusal
from services.runtime import codec
from services.runtime.ports import Blobs, Clock, EventLog, PortError, Publisher

STOP_TIMEOUT_S: Final = 5.0


class Driver:
    """One core with its ports. `failed` is called once, on the loop, when the process must end.

    `telemetry` writes what may be lost: another client than `publisher`, so that neither waits for the other's brokers.
    """

    def __init__(
        self,
        core: GatewayCore,
        *,
        log: EventLog,
        publisher: Publisher,
        telemetry: Publisher,
        blobs: Blobs,
        clock: Clock,
        failed: Callable[[BaseException], None],
        troubled: Callable[[PortError], None],
        measured: Measured,
    ) -> None:
        self.core = core
        self.caught_up = asyncio.Event()
        # Set once the fold has gone on; another one then.
        self.folded = asyncio.Event()
        self._cut: Refusal | None = None
        self._clock = clock
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)
        self._awake: dict[Outbox, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._stopped = threading.Event()
        self._commit, self._telemetry = [
            GroupCommit(
                each,
                blobs,
                committed=self._committed,
                failed=self._thread_failed,
                measured=measured,
            )
            for each in (publisher, telemetry)
        ]
        self._follower = Follower(
            log,
            core.cluster.offset + 1,
            hand=self._hand,
            troubled=lambda error: self._soon(troubled, error),
            failed=self._thread_failed,
        )

    def start(self) -> None:
        """Begin to follow and to write."""
        self._commit.start()
        self._telemetry.start()
        self._follower.start()

    async def stop(self) -> None:
        """Write what waits, stop the threads, and close the log."""
        await asyncio.gather(
            asyncio.to_thread(self._commit.close, STOP_TIMEOUT_S),
            asyncio.to_thread(self._telemetry.close, STOP_TIMEOUT_S),
        )
        self._stopped.set()
        await asyncio.to_thread(self._follower.close, STOP_TIMEOUT_S)
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> Now:
        """The time of an input."""
        return Now(self._clock.wall_ms(), self._clock.monotonic_ms())

    def log_age_s(self) -> float:
        """Since the log was last read to its end; -1 before the first time."""
        age_ms = self.core.sessions.log_age_ms(self.now())
        return -1.0 if age_ms is None else age_ms / 1000

    # --- calls

    async def call(self, ask: Callable[[int, Now], None]) -> Message:
        """Put a call to the core and wait for its answer; raises Refusal."""
        call, answer = self.begin(ask)
        try:
            return await answer
        finally:
            self.forget(call)

    def begin(self, ask: Callable[[int, Now], None]) -> tuple[int, asyncio.Future[Message]]:
        """Put a call to the core; `forget` must follow. Raises Refusal when it is refused at once."""
        call = next(self._numbers)
        answer = self._calls[call] = self._loop.create_future()
        try:
            ask(call, self.now())
        except BaseException:
            del self._calls[call]
            raise
        finally:
            self.perform()
        return call, answer

    def forget(self, call: int) -> None:
        """Nobody waits for the call any more."""
        answer = self._calls.pop(call, None)
        if answer is not None:
            answer.cancel()
            self.core.requests.forget(call)

    def deadline_ms(self, left_s: float | None) -> int:
        """The caller's deadline on the core's clock; 0 for none."""
        return 0 if left_s is None else self._clock.monotonic_ms() + max(int(left_s * 1000), 1)

    async def drain(self, outbox: Outbox) -> AsyncGenerator[Message, None]:
        """What the stream has to send, as fast as it is taken; ends or raises Refusal as the outbox does."""
        awake = self._awake[outbox] = asyncio.Event()
        try:
            while True:
                awake.clear()
                message = outbox.pull(self.now())
                if message is not None:
                    yield message
                elif outbox.ended:
                    return
                else:
                    await awake.wait()
        finally:
            del self._awake[outbox]

    async def until_folded(self, folded: asyncio.Event) -> None:
        """Wait for the event, one that `folded` was; raises the Refusal that streams were cut with."""
        if self._cut is None:
            await folded.wait()
        if self._cut is not None:
            raise self._cut

    def cut_streams(self, refusal: Refusal) -> None:
        """End every stream that is drained here, and those that wait for the fold, now and later."""
        self._cut = refusal
        self.folded.set()
        for outbox in list(self._awake):
            outbox.cut(refusal)
        self.perform()

    # --- the core's inputs and effects

    def perform(self) -> None:
        """Do what the core asked for. Called after every input."""
        writes, answers, ready = self.core.effects.take()
        if writes:
            self._write(writes)
        for call, result in answers:
            answer = self._calls.pop(call, None)
            if answer is None or answer.done():
                continue
            if isinstance(result, Refusal):
                answer.set_exception(result)
            else:
                answer.set_result(result)
        for outbox in ready:
            awake = self._awake.get(outbox)
            if awake is not None:
                awake.set()
        self._set_timer()

    def _write(self, writes: Sequence[Write]) -> None:
        lossy = [write for write in writes if is_telemetry(write)]
        if lossy:
            self._telemetry.add(lossy)
        if len(lossy) < len(writes):
            self._commit.add([write for write in writes if not is_telemetry(write)])

    def _set_timer(self) -> None:
        due_ms = self.core.effects.due_ms()
        if due_ms is None or (self._timer is not None and self._timer_due_ms <= due_ms):
            return  # A timer that comes too early looks again.
        if self._timer is not None:
            self._timer.cancel()
        left_s = max(due_ms - self._clock.monotonic_ms(), 0) / 1000
        self._timer, self._timer_due_ms = self._loop.call_later(left_s, self._tick), due_ms

    def _tick(self) -> None:
        self._timer = None
        self.core.effects.tick(self.now())
        self.perform()

    def _take_committed(self, writes: Sequence[int], error: PortError | None) -> None:
        now = self.now()
        for write in writes:
            self.core.effects.written(write, error, now)
        self.perform()

    def _take_read(self, batch: Sequence[Read]) -> None:
        for read in batch:
            self._fold(read)
        if batch:
            self.folded.set()
            self.folded = asyncio.Event()
        else:
            self.core.log_read(self.now())
            self.caught_up.set()
        self.perform()

    def _fold(self, read: Read) -> None:
        if isinstance(read, codec.UnknownFactError):
            assert read.entry is not None, "decode_entry gives the header"
            if not self.core.cluster.void_reason(read.entry):
                raise read
            read = read.entry
        self.core.fold(read)

    # --- from the threads

    def _committed(self, writes: Sequence[int], error: PortError | None) -> None:
        self._soon(self._take_committed, writes, error)

    def _hand(self, batch: Sequence[Read]) -> None:
        """Give a batch to the loop and wait until it is folded, or until we stop."""
        taken = threading.Event()

        def take() -> None:
            try:
                self._take_read(batch)
            except BaseException as error:  # noqa: BLE001 - a fold that fails must end the process
                self._failed(error)
            else:
                taken.set()

        self._soon(take)
        while not taken.wait(0.1) and not self._stopped.is_set():
            pass

    def _thread_failed(self, error: BaseException) -> None:
        self._soon(self._failed, error)

    def _soon(self, then: Callable[..., object], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(then, *arguments)
