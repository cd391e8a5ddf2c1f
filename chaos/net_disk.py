"""A small disk of a host: a tmpfs of this run, that can be filled to the last byte and emptied again."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path
from typing import Final

from chaos.net import NetworkError

_FILLER: Final = "filler"
_CHUNK: Final = 1 << 16


class Disk:
    """Mounted from its making to `remove`."""

    def __init__(self, path: Path, *, name: str, mib: int) -> None:
        """`name` is what it is mounted as. Raises NetworkError."""
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        _mount("mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", name, str(path))

    def fill(self) -> None:
        """Nothing more can be written."""
        with (self._path / _FILLER).open("ab", buffering=0) as filler:
            for size in (_CHUNK, 1):
                with contextlib.suppress(_FullError):
                    while True:
                        _write(filler.fileno(), size)

    def empty(self) -> None:
        """As it was."""
        (self._path / _FILLER).unlink(missing_ok=True)

    def remove(self) -> None:
        """Taken away, also while somebody still looks at it."""
        _mount("umount", "--lazy", str(self._path))


class _FullError(Exception):
    """There is no space left: what was wanted."""


def _write(handle: int, size: int) -> None:
    try:
        os.write(handle, bytes(size))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _FullError from error


def _mount(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
