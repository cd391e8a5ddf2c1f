"""The Leadership port of an embedded cell: a lock on a file that also counts the terms.

The kernel frees the lock when its holder dies, however it dies, so there is no lease to wait for. A term is durable
before anyone may use it, so no two campaigns ever win the same. It refuses nothing by itself: the chain does.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from services.runtime.ports import DamagedError, PortError

_TRY_EVERY_S: Final = 0.05


class FileLock:
    """Leadership by flock(2) on a local file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open(path)
        self._held = False
        self._over = False

    def campaign(self, timeout_s: float) -> int | None:
        """Wait for the lock; the term when won. A resigned or closed one never wins again."""
        deadline = time.monotonic() + timeout_s
        while not self._over:
            if self._held or self._lock():
                self._held = True
                return next_term(self._file, self._path)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(left_s, _TRY_EVERY_S))
        return None

    def holds(self) -> bool:
        """Whether the lock is ours; the kernel never takes it back."""
        return self._held and not self._over

    def resign(self) -> None:
        """Free the lock."""
        self.close()

    def close(self) -> None:
        """Free the lock and close the file."""
        if not self._over:
            self._over = True
            os.close(self._file)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise PortError(
                f"{self._path}: {error.strerror}. Use a local disk for the cell."
            ) from error
        return True


class AlwaysLeads:
    """A test switch: everyone who stands is elected, at once. Shows that the chain, not the election, is the fence."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open(path)
        self._over = False

    def campaign(self, timeout_s: float) -> int | None:  # noqa: ARG002 - the port's signature
        """The next term, whoever else has one. Two at one instant may even win the same."""
        return None if self._over else next_term(self._file, self._path)

    def holds(self) -> bool:
        """Always, until it resigns."""
        return not self._over

    def resign(self) -> None:
        """Stop holding."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        if not self._over:
            self._over = True
            os.close(self._file)


def next_term(file: int, path: Path) -> int:
    """Count one up, durably."""
    try:
        text = os.pread(file, 32, 0).strip()
        if text and not text.isdigit():
            raise DamagedError(
                f"{path} does not hold a term but {text!r}. Write the log's highest term there: "
                "`tidemill log tail` shows it."
            )
        term = int(text or b"0") + 1
        os.pwrite(file, b"%d\n" % term, 0)
        os.fsync(file)
    except OSError as error:
        raise PortError(
            f"{path}: {error.strerror}. Make space or repair the disk; then try again."
        ) from error
    return term


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PortError(
            f"{path}: {error.strerror}. Give a directory that this user may write."
        ) from error
