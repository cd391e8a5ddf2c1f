"""Reading the log into a cluster: what the gateway, health, audit and a recovering leader have in common.

Decodes and folds, one record after the other, and says of each whether it was accepted. It never appends, and never
goes on over an entry that extends the chain but holds what this version does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from services.runtime import codec
from services.runtime.ports import EventLog, LogRecord
from statemachines.cluster import Cluster
from statemachines.entry import Entry

# Entries of up to 900 KB each are decoded a call; most are a few KB.
RECORDS_PER_READ: Final = 64


class Folded(msgspec.Struct, frozen=True, gc=False):
    """One record of the log after it met the fold; `void` says why it changed nothing, empty when accepted.

    Of a record that cannot be decoded, `entry` holds nothing but the offset.
    """

    entry: Entry
    void: str = ""

    @property
    def accepted(self) -> bool:
        """Whether it extended the chain."""
        return not self.void


class LogReader:
    """Folds a log into a cluster, from where the cluster is. One thread at a time.

    `stop_before` ends the reading at the first entry for which it holds: for a replay to an offset or a time.
    """

    def __init__(
        self, log: EventLog, cluster: Cluster, *, stop_before: Callable[[Entry], bool] | None = None
    ) -> None:
        self.cluster = cluster
        self.stopped = False
        self._log = log
        self._stop_before = stop_before

    def read(self, *, timeout_s: float, limit: int = RECORDS_PER_READ) -> Sequence[Folded]:
        """Fold up to `limit` records; empty when the end was seen, or when it has stopped.

        Raises PortError, and codec.UnknownFactError when only a newer version can read on.
        """
        if self.stopped:
            return ()
        folded = []
        for record in self._log.read(self.cluster.offset + 1, limit=limit, timeout_s=timeout_s):
            entry, unreadable = decode(record, self.cluster)
            if self._stop_before is not None and self._stop_before(entry):
                self.stopped = True
                break
            void = unreadable or self.cluster.void_reason(entry)
            self.cluster.fold(entry)
            folded.append(Folded(entry, void))
        return folded

    def read_to_end(self) -> int:
        """Fold all there is now; answers how many records that was."""
        count = 0
        while folded := self.read(timeout_s=0):
            count += len(folded)
        return count


def decode(record: LogRecord, cluster: Cluster) -> tuple[Entry, str]:
    """The entry of a record, and why it cannot be read, empty when it can.

    Raises codec.UnknownFactError when a newer version wrote it and it is next in the chain of `cluster`.
    """
    try:
        return codec.decode_entry(record.offset, record.value), ""
    except codec.CodecError as error:
        return codec.unreadable(record.offset), f"cannot be decoded: {error}"
    except codec.UnknownFactError as error:
        header = error.entry
        assert header is not None, "decode_entry gives the header"
        if not cluster.void_reason(header):
            raise
        return header, ""
