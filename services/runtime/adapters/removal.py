"""Removes a folder that a program may have filled with anything, nested deeper than the stack goes or a path can say."""

from __future__ import annotations

import contextlib
from itertools import count
from pathlib import Path


def remove(folder: Path) -> None:
    """As far as it can be. Never follows a link. Each folder found is moved up first, so no path gets long."""
    numbers = count()
    todo = [] if folder.is_symlink() else [folder]
    while todo:
        here = todo.pop()
        with contextlib.suppress(OSError):
            here.chmod(0o700)
            for path in list(here.iterdir()):
                with contextlib.suppress(OSError):
                    if path.is_dir() and not path.is_symlink():
                        todo.append(path.rename(folder / f".removed-{next(numbers)}"))
                    else:
                        path.unlink()
    for number in range(next(numbers)):
        with contextlib.suppress(OSError):
            (folder / f".removed-{number}").rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
