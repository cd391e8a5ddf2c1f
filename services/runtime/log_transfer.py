"""`tidemilld log export|import FILE`: a cell's log to one file and back, byte for byte, whatever keeps it.

    tidemilld log export cell.log [--cell NAME --directory DIR ...]
    tidemilld log import cell.log --log kafka --kafka HOST:PORT --leadership etcd --etcd HOST:PORT [--cell NAME ...]

The file holds every stored record in order, void ones too, and ends with their count and digest, so a torn one is
noticed. An import goes into an empty log, or goes on where it was interrupted; it takes the election, so that nobody
decides meanwhile. Both print what the log folds to, which must be the same. Blobs and other topics are not in the log.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from services.runtime.exits import ExitCode
from services.runtime.ports import DamagedError, EventLog, LogRecord, PortError
from services.runtime.reader import decode
from services.runtime.settings import CellSettings, load
from services.runtime.wiring import open_cell
from statemachines import snapshot
from statemachines.cluster import Cluster

_MAGIC: Final = b"TIDELOG1"
_LENGTH: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">Q")
_END: Final = 0xFFFFFFFF
_RECORD_BYTES_MAX: Final = 1 << 24
_READ_RECORDS: Final = 256
_ELECTION_S: Final = 10.0


class Summary(msgspec.Struct, frozen=True):
    """What a log holds and comes to."""

    records: int
    void: int
    term: int
    head: bytes
    state_digest: bytes

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.void} of them void, term {self.term}\n"
            f"head         {self.head.hex()}\nstate digest {self.state_digest.hex()}"
        )


def main(argv: Sequence[str]) -> int:
    """Export or import; answers the exit code. Raises SettingsError, PortError, OSError."""
    given, rest = _parser().parse_known_args(argv)
    settings = load(CellSettings, "log", rest)
    file = Path(given.file)
    with contextlib.ExitStack() as closing:
        cell = open_cell(settings, "log")
        closing.callback(cell.close)
        log = cell.event_log()
        closing.callback(log.close)
        if given.action == "export":
            summary = export_log(log, settings.cell, file)
        else:
            leadership = cell.leadership("import")
            closing.callback(leadership.close)
            if leadership.campaign(_ELECTION_S) is None:
                raise PortError("a scheduler of this cell leads. Stop all of them, then try again.")
            summary = import_log(log, settings.cell, file)
    print(f"{given.action}ed {file}: {summary}")
    return ExitCode.STOPPED


def export_log(log: EventLog, cell: str, file: Path) -> Summary:
    """Write the log up to its end; the file appears whole or not at all. Raises PortError, OSError."""
    folding = _Folding(cell)
    fresh = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with fresh.open("wb") as stream:
            _write(stream, folding.through(_records(log)))
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
    return folding.summary()


def import_log(log: EventLog, cell: str, file: Path) -> Summary:
    """Append what the log does not hold yet. The caller holds the election.

    Raises DamagedError for a torn file, PortError when the log holds something else or when the outcome of an append
    is unknown; then the same import goes on from there.
    """
    with file.open("rb") as stream:  # All of it is sound before any of it is stored.
        for _ in _read(stream):
            pass
    with file.open("rb") as stream:
        stored = _records(log)
        for number, value in enumerate(_read(stream)):
            there = next(stored, None)
            if there is None:
                log.append(value)
            elif there.value != value:
                raise PortError(
                    f"the log's record at offset {there.offset} is not record {number} of {file}: import into a cell "
                    "whose log is empty. Nothing was changed."
                )
        if (more := next(stored, None)) is not None:
            raise PortError(
                f"the log goes on after what {file} holds, at offset {more.offset}. Nothing was changed."
            )
    folding = _Folding(cell)
    for _ in folding.through(_records(log)):
        pass
    return folding.summary()


class _Folding:
    """Folds records as they pass."""

    def __init__(self, cell: str) -> None:
        self._cluster = Cluster(cell)
        self._records = 0

    def through(self, records: Iterator[LogRecord]) -> Iterator[bytes]:
        for record in records:
            entry, _ = decode(record, self._cluster)
            self._cluster.fold(entry)
            self._records += 1
            yield record.value

    def summary(self) -> Summary:
        cluster = self._cluster
        digest = snapshot.digest(cluster)
        return Summary(self._records, cluster.voided, cluster.term, cluster.head, digest)


def _records(log: EventLog) -> Iterator[LogRecord]:
    """Every record up to the end; asking again after that looks whether there is more by now."""
    offset = 0
    while found := log.read(offset, limit=_READ_RECORDS, timeout_s=0):
        yield from found
        offset = found[-1].offset + 1


def _write(stream: BinaryIO, values: Iterator[bytes]) -> None:
    digest, count = hashlib.sha256(), 0
    stream.write(_MAGIC)
    for value in values:
        framed = _LENGTH.pack(len(value)) + value
        digest.update(framed)
        stream.write(framed)
        count += 1
    stream.write(_LENGTH.pack(_END) + _COUNT.pack(count) + digest.digest())


def _read(stream: BinaryIO) -> Iterator[bytes]:
    """The records of an export; raises DamagedError when it is not one, or not whole."""
    name = stream.name
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise DamagedError(
            f"{name} is not an export of a log: give a file that `tidemilld log export` wrote."
        )
    digest, count = hashlib.sha256(), 0
    while (length := _length(_exactly(stream, _LENGTH.size))) != _END:
        value = _exactly(stream, length)
        digest.update(_LENGTH.pack(length) + value)
        count += 1
        yield value
    end = _exactly(stream, _COUNT.size + digest.digest_size)
    if end != _COUNT.pack(count) + digest.digest() or stream.read(1):
        raise _torn(name)


def _length(data: bytes) -> int:
    (length,) = _LENGTH.unpack(data)
    return int(length)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size) if size <= _RECORD_BYTES_MAX else b""
    if len(data) != size:
        raise _torn(stream.name)
    return data


def _torn(name: str) -> DamagedError:
    return DamagedError(
        f"{name} is torn or was changed. Copy or export it again. Nothing was changed."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemilld log",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=["export", "import"])
    parser.add_argument("file")
    return parser
