"""Recovery: the state of a cell from its newest usable snapshot and the log behind it, else from the whole log.

A snapshot is a cache: one of another fold version, of another cell, or of a log that is not this one is passed over,
never repaired. It never appends and never leads.
"""

from __future__ import annotations

import gc
import hashlib

import msgspec

from services.runtime import codec
from services.runtime.ports import EventLog, LogRecord, SnapshotRecord, Snapshots
from services.runtime.reader import LogReader
from statemachines import snapshot as encoding
from statemachines.cluster import FOLD_VERSION, Cluster


class Recovered(msgspec.Struct, frozen=True):
    """The cluster at the end of the log, and where it came from. `snapshot_offset` -1: from the whole log."""

    cluster: Cluster
    snapshot_offset: int
    records: int
    # Of each newer snapshot that was passed over, why.
    passed_over: tuple[str, ...]


def recover(log: EventLog, snapshots: Snapshots, cell: str, *, track: bool = False) -> Recovered:
    """Fold to the end of the log. Raises PortError, codec.UnknownFactError."""
    passed_over = []
    gc.disable()  # Nothing below makes garbage in cycles, and scanning a growing state takes seconds.
    try:
        cluster, start = Cluster(cell, track=track), -1
        for record in snapshots.load():
            found = usable(record, log, cell, track=track)
            if isinstance(found, Cluster):
                cluster, start = found, record.offset
                break
            passed_over.append(f"snapshot at offset {record.offset}: {found}")
        records = LogReader(log, cluster).read_to_end()
        gc.freeze()
    finally:
        gc.enable()
    return Recovered(cluster, start, records, tuple(passed_over))


def take_snapshot(cluster: Cluster) -> SnapshotRecord:
    """What to save of a cluster now; its `offset` must be that of a record that was read from the log."""
    data = encoding.encode(cluster)
    return SnapshotRecord(
        cluster.offset,
        cluster.head,
        cluster.term,
        FOLD_VERSION,
        hashlib.sha256(data).digest(),
        data,
    )


def usable(
    record: SnapshotRecord, log: EventLog, cell: str, *, track: bool = False
) -> Cluster | str:
    """Its cluster, or why it is passed over. Its head must be the entry that lies at its offset in this log.

    A head stands for all that came before it. One that was saved when a void record had come last is passed over too.
    """
    if record.fold_version != FOLD_VERSION:
        return f"of fold version {record.fold_version}, this is {FOLD_VERSION}"
    try:
        cluster = encoding.decode(record.data, offset=record.offset, track=track)
    except encoding.DamagedSnapshotError as error:
        return str(error)
    if cluster.cell != cell or cluster.head != record.head:
        return f"of cell {cluster.cell}, or of another head than it says"
    stored = log.read(record.offset, limit=1, timeout_s=0)
    if not stored or stored[0].offset != record.offset:
        return "the log ends before it: it was taken from another log"
    if _digest(stored[0]) != record.head:
        return (
            "the log holds another entry there: it was taken from another log, or at a void record"
        )
    return cluster


def _digest(stored: LogRecord) -> bytes:
    """Of the entry; empty for what is none."""
    try:
        return codec.decode_entry(stored.offset, stored.value).digest
    except codec.CodecError:
        return b""
    except codec.UnknownFactError as newer:
        header = newer.entry
    assert header is not None, "decode_entry gives the header"
    return header.digest
