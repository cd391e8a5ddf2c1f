"""Follows the log: reads and decodes in a thread of its own, and hands batches to the loop, which folds them.

At most one batch is on its way, so a slow loop slows the reading and nothing piles up. Never folds: the cluster has
one owner, the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from services.runtime import codec
from services.runtime.ports import EventLog, LogRecord, PortError
from services.runtime.reader import RECORDS_PER_READ
from statemachines.entry import Entry

WAIT_S: Final = 1.0
RETRY_S: Final = 0.5

# An entry, or why it can be folded by a newer version only.
Read: TypeAlias = Entry | codec.UnknownFactError
# Called in the reading thread: what was read, and whether the end was seen. Returns once it may read on.
Hand: TypeAlias = Callable[[Sequence[Read]], None]


class Follower:
    """Reads from `offset` on until closed. An empty batch says that the end of the log was seen."""

    def __init__(
        self,
        log: EventLog,
        offset: int,
        *,
        hand: Hand,
        troubled: Callable[[PortError], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._offset = offset
        self._hand = hand
        self._troubled = troubled
        self._failed = failed
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Stop; the log is closed."""
        self._closing.set()
        self._log.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        wait_s = 0.0
        try:
            while not self._closing.is_set():
                wait_s = self._step(wait_s)
        except BaseException as error:  # noqa: BLE001 - a bug here must end the process, not a thread
            if not self._closing.is_set():
                self._failed(error)

    def _step(self, wait_s: float) -> float:
        """One read. After records the next one does not wait, so that the end is seen however busy the log is."""
        try:
            records = self._log.read(self._offset, limit=RECORDS_PER_READ, timeout_s=wait_s)
        except PortError as error:
            if not self._closing.is_set():
                self._troubled(error)
                self._closing.wait(RETRY_S)
            return wait_s
        if records:
            self._offset = records[-1].offset + 1
        if not self._closing.is_set():
            self._hand([_decode(record) for record in records])
        return 0.0 if records else WAIT_S


def _decode(record: LogRecord) -> Read:
    try:
        return codec.decode_entry(record.offset, record.value)
    except codec.CodecError:
        return codec.unreadable(record.offset)
    except codec.UnknownFactError as error:
        return error
