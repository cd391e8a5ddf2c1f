"""Checkpoint reports that the gateway has not answered yet, on disk: one file each, named in order.

A file is written aside, synced and renamed, so it is there whole or not at all. What a dead process left is told by its
agent, before it tells that end; a process of the same attempt that starts again sends it first. This file must never
raise for a full or missing disk: the report then lives in memory only, and says so in the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tidemill.v1 import reports_pb2 as reports_pb

SUFFIX: Final = ".report"
_log = logging.getLogger("tidemill.training")


class Spool:
    """Keys grow by one. `directory` None keeps reports in memory alone."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._last = max([int(path.stem) for path in self._files()], default=0)

    def add(self, report: reports_pb.Report) -> int:
        """Store it; durable when this returns, unless the disk failed. Returns its key."""
        self._last += 1
        if self._directory is not None:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                write_durably(self._path(self._last), report.SerializeToString())
            except OSError as error:
                _log.warning("report kept in memory only: %s: %s", self._directory, error.strerror)
        return self._last

    def remove(self, key: int) -> None:
        """The gateway has it. If the file stays, it is sent again, which is harmless."""
        if self._directory is not None:
            try:
                self._path(key).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("sent report not removed: %s: %s", self._path(key), error.strerror)

    def left_over(self) -> Iterator[tuple[int, reports_pb.Report]]:
        """Reports found at the start, oldest first; unreadable ones are left where they are."""
        for path in self._files():
            try:
                yield int(path.stem), reports_pb.Report.FromString(path.read_bytes())
            except (OSError, DecodeError) as error:
                _log.warning("unreadable report left in %s: %s", path, error)

    def _path(self, key: int) -> Path:
        assert self._directory is not None
        return self._directory / f"{key:012d}{SUFFIX}"

    def _files(self) -> list[Path]:
        if self._directory is None or not self._directory.is_dir():
            return []
        return sorted(path for path in self._directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, whole or not at all, on storage when this returns. Raises OSError."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
