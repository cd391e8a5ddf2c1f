"""The Blobs port on a compacted topic: key = digest, value = the bytes, no value = forgotten.

Kafka finds nothing by key, so this keeps, for each digest, where its bytes lie: an index that is read once and then
follows the topic's end. Bytes are fetched from their offset, and the last ones seen are kept, up to a bound. Deleted
bytes leave the brokers' disks when the topic is next compacted.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from services.runtime import topics
from services.runtime.adapters.kafka_client import KafkaSettings
from services.runtime.adapters.kafka_reader import KafkaReader, offset_of
from services.runtime.adapters.kafka_writer import KafkaWriter, Keyed
from services.runtime.ports import DamagedError

_KEPT_BYTES: Final = 16 << 20
# Content never changes under its digest, so only a deletion by another process can be missed, for this long.
_FRESH_S: Final = 1.0


class KafkaBlobs:
    """Blobs of a cell. Thread-safe; the first look reads the topic once."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._place = (topics.BLOBS.name(settings.cell), 0)
        self._writer = KafkaWriter(settings)
        self._index_reader = KafkaReader(settings, committed_only=False)
        self._reader = KafkaReader(settings, committed_only=False)
        self._using = threading.Lock()
        self._next = 0
        self._fresh_until = 0.0
        self._fresh: dict[bytes, float] = {}  # Stored by us, until when that is believed.
        self._offsets: dict[bytes, int] = {}
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0

    def put(self, blobs: Sequence[bytes]) -> Sequence[str]:
        digests = [hashlib.sha256(blob).digest() for blob in blobs]
        missing = {d: blob for d, blob in zip(digests, blobs, strict=True) if not self._is_fresh(d)}
        with self._using:
            if any(digest in self._offsets for digest in missing):
                self._follow()  # It may have been deleted since it was seen.
            new = {d: blob for d, blob in missing.items() if d not in self._offsets}
        self._writer.send([Keyed(*self._place, _key(digest), blob) for digest, blob in new.items()])
        self._note_fresh(new)
        return [digest.hex() for digest in digests]

    def get(self, digest: str) -> bytes | None:
        wanted = bytes.fromhex(digest)
        with self._using:
            if wanted not in self._offsets or time.monotonic() > self._fresh_until:
                self._follow()
            data = self._look_up(wanted)
            if data is None and wanted in self._offsets:
                self._follow()  # Compaction took it: it was stored again further on, or deleted.
                data = self._look_up(wanted)
            return data

    def delete(self, digest: str) -> None:
        wanted = bytes.fromhex(digest)
        self._writer.send([Keyed(*self._place, _key(wanted), None)])
        with self._using:
            self._fresh.pop(wanted, None)
            self._follow()

    def close(self) -> None:
        self._index_reader.close()
        self._reader.close()
        self._writer.close()

    def _is_fresh(self, digest: bytes) -> bool:
        """Whether we stored it a moment ago: a stream of jobs that run the same waits for no broker each time."""
        with self._using:
            return time.monotonic() < self._fresh.get(digest, 0.0)

    def _note_fresh(self, digests: Iterable[bytes]) -> None:
        now = time.monotonic()
        with self._using:
            kept = {digest: until for digest, until in self._fresh.items() if until > now}
            self._fresh = kept | dict.fromkeys(digests, now + _FRESH_S)

    def _follow(self) -> None:
        """Bring the index to the end of the topic."""
        oldest, end = self._index_reader.bounds(self._place)
        if end < self._next:  # The topic was made anew.
            self._offsets.clear()
            self._next = 0
        for message in self._index_reader.read_range(self._place, max(oldest, self._next), end):
            digest = _digest(message.key() or b"")
            self._drop(digest)
            data = message.value()
            if data is None:
                self._offsets.pop(digest, None)
            else:
                self._offsets[digest] = offset_of(message)
                self._keep(digest, data)
        self._next = end
        self._fresh_until = time.monotonic() + _FRESH_S

    def _look_up(self, digest: bytes) -> bytes | None:
        offset = self._offsets.get(digest)
        if offset is None:
            return None
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        for message in self._reader.read_range(self._place, offset, offset + 1):
            self._keep(digest, message.value() or b"")
            if digest not in self._kept:
                raise DamagedError(
                    f"{self._place[0]}: blob {digest.hex()} is damaged. Submit what it belongs to again."
                )
            return self._kept[digest]
        return None

    def _keep(self, digest: bytes, data: bytes) -> None:
        """Hold on to it for a while, if it is what its digest says."""
        if hashlib.sha256(data).digest() != digest:
            return
        self._kept[digest] = data
        self._kept_bytes += len(data)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)

    def _drop(self, digest: bytes) -> None:
        self._kept_bytes -= len(self._kept.pop(digest, b""))


def _key(digest: bytes) -> bytes:
    """Hex, so that ordinary tools show it."""
    return digest.hex().encode()


def _digest(key: bytes) -> bytes:
    """Any key that is not a digest of ours is one that nobody asks for."""
    try:
        return bytes.fromhex(key.decode("ascii"))
    except ValueError:
        return key
