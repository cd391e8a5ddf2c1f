"""Recovery: the state of a cell from its newest usable snapshot and the log behind it, else from the whole log.

A snapshot is a cache: one of another fold version, of another cell, or of a log that is not this one is passed over,
never repaired. It never appends and never leads.
"""

from __future__ import annotations

import gc
import hashlib

import msgspec

from services.runtime.ports import EventLog, SnapshotRecord, Snapshots
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
            found = _usable(record, log, cell, track=track)
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


def _usable(record: SnapshotRecord, log: EventLog, cell: str, *, track: bool) -> Cluster | str:
    """Its cluster, or why it is passed over."""
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
    return cluster
