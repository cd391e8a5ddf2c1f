"""Group commit: one durable write carries all that was asked for while the one before it was being made.

Owns the thread that writes. Never answers anybody: it says which writes are durable, or what went wrong. That is one
outcome for all of a batch, so telemetry, which is stored on fewer brokers than what is decided on, has a commit of its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from services.gateway.effects import Write
from services.runtime import topics
from services.runtime.ports import Blobs, PortError, Publisher

# Records and bytes of one durable write; the rest goes with the next.
RECORDS_MAX: Final = 2_000
BYTES_MAX: Final = 8 << 20
_TELEMETRY: Final = frozenset(topic.suffix for topic in topics.TOPICS.values() if topic.lossy)

# Called in the writing thread: the writes, in order, with one outcome.
Committed: TypeAlias = Callable[[Sequence[int], PortError | None], None]
Failed: TypeAlias = Callable[[BaseException], None]


class Measured(Protocol):
    """Told of each write, in the writing thread."""

    def __call__(self, seconds: float, records: int, *, ok: bool) -> None: ...


def is_telemetry(write: Write) -> bool:
    """Whether all of it may be lost."""
    return all(record.topic in _TELEMETRY for record in write.records)


class GroupCommit:
    """`add` from any thread; outcomes come in the order of the writes."""

    def __init__(
        self,
        publisher: Publisher,
        blobs: Blobs,
        *,
        committed: Committed,
        failed: Failed,
        measured: Measured,
    ) -> None:
        self._publisher = publisher
        self._blobs = blobs
        self._committed = committed
        self._failed = failed
        self._measured = measured
        self._waiting: deque[Write] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="commit", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, writes: Sequence[Write]) -> None:
        """Write these after those before them."""
        with self._changed:
            self._waiting.extend(writes)
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Write what waits, then stop; a write that hangs is left behind after the timeout."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._committed([write.id for write in batch], self._store(batch))
        except BaseException as error:  # noqa: BLE001 - a bug here must end the process, not a thread
            self._failed(error)

    def _next_batch(self) -> list[Write]:
        """What waits, up to the bounds; empty when closing and nothing is left."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            batch: list[Write] = []
            records = size = 0
            while self._waiting and records < RECORDS_MAX and size < BYTES_MAX:
                write = self._waiting.popleft()
                batch.append(write)
                records += len(write.records)
                size += sum(len(record.value) for record in write.records)
                size += sum(len(blob) for blob in write.blobs)
            return batch

    def _store(self, batch: Sequence[Write]) -> PortError | None:
        """Blobs first: a record must never name one that is not there."""
        blobs = list(dict.fromkeys(blob for write in batch for blob in write.blobs))
        records = [record for write in batch for record in write.records]
        began = time.monotonic()
        outcome: PortError | None = None
        try:
            if blobs:
                self._blobs.put(blobs)
            self._publisher.publish(records)
        except PortError as error:
            outcome = error
        self._measured(time.monotonic() - began, len(records), ok=outcome is None)
        return outcome
