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
    """Mounted from `mount` to `remove`, as `name`. Whoever sees to its removal does so first: a mount may be interrupted."""

    def __init__(self, path: Path, *, name: str, mib: int) -> None:
        self._path, self._name, self._mib = path, name, mib

    def mount(self) -> None:
        """An empty one. Raises NetworkError."""
        self._path.mkdir(parents=True, exist_ok=True)
        size = f"size={self._mib}m,mode=700"
        _mount("mount", "-t", "tmpfs", "-o", size, self._name, str(self._path))

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
        """Taken away, also while somebody still looks at it. Raises NetworkError."""
        if self._path.is_mount():
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
