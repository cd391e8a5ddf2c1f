"""The Snapshots port on a compacted topic: pieces first, then a manifest that makes them a snapshot.

Three slots are written in turn, so the two newest stay whole while a third is written over the oldest. The manifest is
sent only after every piece is durable and says where they begin, so a reader goes from the end of the topic straight to
them. A snapshot is a cache: whatever does not fit together is left out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Final

import msgspec
from confluent_kafka import Message

from services.runtime import topics
from services.runtime.adapters.kafka_client import KafkaSettings
from services.runtime.adapters.kafka_reader import KafkaReader, offset_of
from services.runtime.adapters.kafka_writer import KafkaWriter, Keyed
from services.runtime.ports import SnapshotRecord

_SLOTS: Final = 3
_PIECE_BYTES: Final = 768 << 10
_PIECES_A_SEND: Final = 16
_ID_BYTES: Final = 16
_MANIFEST: Final = "manifest"
_LOOK_BACK_FIRST: Final = 4
_LOOK_BACK_GROWTH: Final = 16


class _Manifest(msgspec.Struct, frozen=True):
    """What makes the pieces between `first` and the manifest's own offset a snapshot."""

    save: bytes
    slot: int
    first: int
    pieces: int
    previous: int
    offset: int
    head: bytes
    term: int
    fold_version: int
    digest: bytes


class KafkaSnapshots:
    """Snapshots of a cell. One process saves at a time as a rule; two at once at worst spoil each other's."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._place = (topics.SNAPSHOTS.name(settings.cell), 0)
        self._writer = KafkaWriter(settings)
        self._reader = KafkaReader(settings, committed_only=False)

    def save(self, snapshot: SnapshotRecord) -> None:
        newest = self._newest()
        slot = 0 if newest is None else (newest[1].slot + 1) % _SLOTS
        save = secrets.token_bytes(_ID_BYTES)
        first, pieces = self._save_pieces(save, slot, snapshot.data)
        manifest = _Manifest(
            save, slot, first, pieces, -1 if newest is None else newest[0],
            snapshot.offset, snapshot.head, snapshot.term, snapshot.fold_version, snapshot.digest,
        )  # fmt: skip
        self._writer.send([self._record(slot, _MANIFEST, msgspec.msgpack.encode(manifest))])

    def load(self) -> Iterator[SnapshotRecord]:
        """Newest first. An older one of the same log offset was saved again and is left out."""
        found = self._newest()
        seen: set[int] = set()
        while found is not None:
            at, manifest = found
            data = self._data(at, manifest)
            if manifest.offset not in seen and hashlib.sha256(data).digest() == manifest.digest:
                yield SnapshotRecord(
                    manifest.offset, manifest.head, manifest.term, manifest.fold_version, manifest.digest, data
                )  # fmt: skip
            seen.add(manifest.offset)
            found = self._manifest_at(manifest.previous)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _record(self, slot: int, part: str, value: bytes) -> Keyed:
        return Keyed(*self._place, f"{slot}/{part}".encode(), value)

    def _save_pieces(self, save: bytes, slot: int, data: bytes) -> tuple[int, int]:
        """Where the first lies, and how many there are: at least one."""
        starts = range(0, max(1, len(data)), _PIECE_BYTES)
        first = -1
        for begin in range(0, len(starts), _PIECES_A_SEND):
            numbers = range(begin, min(len(starts), begin + _PIECES_A_SEND))
            records = [
                self._record(slot, f"{n:06}", save + data[starts[n] : starts[n] + _PIECE_BYTES])
                for n in numbers
            ]
            offsets = self._writer.send(records)
            first = offsets[0] if first < 0 else first
        return first, len(starts)

    def _newest(self) -> tuple[int, _Manifest] | None:
        """The last manifest of the topic and its offset, looking back from the end in growing steps."""
        oldest, end = self._reader.bounds(self._place)
        upper, step = end, _LOOK_BACK_FIRST
        while upper > oldest:
            lower = max(oldest, upper - step)
            found = None
            for message in self._reader.read_range(self._place, lower, upper):
                manifest = _manifest(message)
                if manifest is not None:
                    found = (offset_of(message), manifest)
            if found is not None:
                return found
            upper, step = lower, step * _LOOK_BACK_GROWTH
        return None

    def _manifest_at(self, offset: int) -> tuple[int, _Manifest] | None:
        oldest, end = self._reader.bounds(self._place)
        if not oldest <= offset < end:
            return None
        for message in self._reader.read_range(self._place, offset, offset + 1):
            manifest = _manifest(message)
            return None if manifest is None else (offset, manifest)
        return None  # Compacted away.

    def _data(self, at: int, manifest: _Manifest) -> bytes:
        """The pieces of this very save; what is missing shows in the digest."""
        oldest, _ = self._reader.bounds(self._place)
        pieces: list[bytes] = []
        for message in self._reader.read_range(self._place, max(oldest, manifest.first), at):
            value = message.value() or b""
            if value.startswith(manifest.save):
                pieces.append(value[_ID_BYTES:])
        return b"".join(pieces)


def _manifest(message: Message) -> _Manifest | None:
    key = message.key() or b""
    if not key.endswith(_MANIFEST.encode()):
        return None
    try:
        return msgspec.msgpack.decode(message.value() or b"", type=_Manifest)
    except msgspec.MsgspecError:
        return None  # A foreign or later writer's: not one of ours.
