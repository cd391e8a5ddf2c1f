"""What the programs of a run left in its spool: reports that they could not send before they ended.

The run owns these files and may have put anything there: sizes and numbers are bounded, links are not followed, and
nothing is believed. It never removes a file; they go with the run's folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

FILES_MAX: Final = 4_096
BYTES_MAX: Final = 65_536
SUFFIX: Final = ".report"


def left_over(spool: Path) -> tuple[bytes, ...]:
    """The content of `rank-N/*.report`, by rank, then oldest first; what cannot be read is left out."""
    found: list[bytes] = []
    try:
        paths = sorted(spool.glob(f"rank-*/*{SUFFIX}"))[:FILES_MAX]
    except OSError:
        return ()
    for path in paths:
        data = None if path.parent.is_symlink() else _read(path)
        if data is not None:
            found.append(data)
    return tuple(found)


def _read(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = file.read(BYTES_MAX + 1)
    except OSError:
        return None
    return data if len(data) <= BYTES_MAX else None
