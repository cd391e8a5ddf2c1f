"""Finds checkpoints of programs that do not use the SDK, by the mark that their framework writes last.

A folder is taken for a checkpoint only when its framework's own commit point has passed; it is synced and described
before anyone is told. Nothing here opens what it finds but to hash it: many checkpoints are pickles. Links are never
followed, and the watcher never writes, moves or deletes anything.

| preset    | committed when                                                                       |
|-----------|--------------------------------------------------------------------------------------|
| directory | FOLDER/MARKER exists (COMMITTED by default)                                          |
| dcp       | FOLDER/.metadata exists; it is renamed from .metadata.tmp                            |
| megatron  | latest_checkpointed_iteration.txt names it; written in place, so read twice alike    |
| deepspeed | latest names it; written in place, so read twice alike                               |
| orbax     | FOLDER/commit_success.txt, or FOLDER was renamed from FOLDER.orbax-checkpoint-tmp-*  |
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

# What is hashed; of larger files, and past the total, the manifest has the size alone.
HASHED_FILE_BYTES_MAX: Final = 64 << 20
HASHED_BYTES_MAX: Final = 1 << 30
FILES_MAX: Final = 100_000
POINTER_BYTES_MAX: Final = 4096
DEFAULT_MARKER: Final = "COMMITTED"
READ_BYTES: Final = 1 << 20
# What a program wrote may be anything; nothing of it ends the watch.
UNREADABLE: Final = (OSError, ValueError, RecursionError)
# A longer number is no step of anything, nor are its last digits.
_NUMBER: Final = re.compile(r"(?<![0-9])[0-9]{1,18}(?![0-9])")
_ORBAX_TEMPORARY: Final = ".orbax-checkpoint-tmp"
_ORBAX_SUCCESS: Final = "commit_success.txt"
_ORBAX_METADATA: Final = "_CHECKPOINT_METADATA"

log = structlog.get_logger()


class Mark(msgspec.Struct, frozen=True):
    """A commit point that was seen. `identity` changes when the mark is written again."""

    step: int
    folder: Path
    identity: tuple[int, ...]
    # Written in place: what was read once may be half of it.
    in_place: bool = False


class Found(msgspec.Struct, frozen=True):
    """A committed checkpoint. `manifest` is the digest of what `describe` answers for its folder."""

    step: int
    folder: Path
    bytes: int
    manifest: str


class Watch:
    """One program's checkpoints. What is there when the watch begins was not saved by this run."""

    def __init__(
        self, preset: str, root: Path, *, marker: str = "", ignore_present: bool = True
    ) -> None:
        """Raises ValueError for a preset that does not exist."""
        if preset not in _PRESETS:
            raise ValueError(f"no marker preset {preset!r}; there are {', '.join(_PRESETS)}")
        self._look = _PRESETS[preset]
        self._root = root
        self._marker = marker or DEFAULT_MARKER
        self._pending: dict[Mark, None] = {}
        self._told: set[Mark] = set(self._marks()) if ignore_present else set()
        # Said to be unusable, so that it is said once.
        self._unusable: set[Mark] = set()

    def look(self, *, last: bool = False) -> list[Found]:
        """Checkpoints committed since the last look, by step. `last`: the program has ended, nothing is being written."""
        seen = self._marks()
        new = [mark for mark in seen if mark not in self._told]
        ready = [mark for mark in new if last or not mark.in_place or mark in self._pending]
        self._pending = dict.fromkeys(new)
        self._told &= set(seen)
        self._unusable &= set(seen)
        found = []
        for mark in sorted(ready, key=lambda mark: mark.step):
            described = self._describe(mark)
            if described is not None:
                self._told.add(mark)
                found.append(described)
        return found

    def _describe(self, mark: Mark) -> Found | None:
        """None when the checkpoint changed or went away while it was looked at."""
        try:
            files = describe(mark.folder)
        except UNREADABLE as error:
            if mark not in self._unusable:
                self._unusable.add(mark)
                log.warning("checkpoint_unusable", folder=repr(str(mark.folder)), error=str(error))
            return None
        if mark not in self._marks() or not files:
            return None
        return Found(mark.step, mark.folder, sum(size for _, size, _ in files), digest(files))

    def _marks(self) -> list[Mark]:
        try:
            return list(self._look(self._root, self._marker))
        except UNREADABLE:  # The program has not made it yet.
            return []


# --- what a checkpoint consists of


def describe(folder: Path) -> tuple[tuple[str, int, str], ...]:
    """(file, bytes, SHA-256 or nothing) of every regular file, by name; all of them synced. Raises OSError."""
    files = []
    budget = HASHED_BYTES_MAX
    for path in _files(folder):
        with _opened(path) as fd:
            size = os.fstat(fd).st_size
            os.fsync(fd)
            hashed = size <= min(HASHED_FILE_BYTES_MAX, budget)
            budget -= size if hashed else 0
            sha256 = _sha256(fd, size) if hashed else ""
            files.append((str(path.relative_to(folder)), size, sha256))
    for directory in {folder, *(path.parent for path in _files(folder)), folder.parent}:
        _sync(directory)
    return tuple(files)


def digest(files: tuple[tuple[str, int, str], ...]) -> str:
    """Names a description: SHA-256 of its JSON, lower-case hex."""
    listed = [_named(name) | {"bytes": size, "sha256": sha256} for name, size, sha256 in files]
    return hashlib.sha256(msgspec.json.encode(listed)).hexdigest()


def _named(name: str) -> dict[str, str | int]:
    """A name may be of bytes that are no text, which JSON cannot hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return {"file_bytes": os.fsencode(name).hex()}
    return {"file": name}


def _files(folder: Path) -> list[Path]:
    """Not by os.walk, which ends on what is nested deeper than Python's stack."""
    found: list[Path] = []
    folders = [str(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    found.append(Path(entry.path))
                if len(found) + len(folders) > FILES_MAX:
                    raise OSError(f"{folder} holds more than {FILES_MAX} files and folders")
    return sorted(found)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is no regular file")
        yield fd
    finally:
        os.close(fd)


def _sha256(fd: int, size: int) -> str:
    """Of so many bytes and no more: a file that still grows would never end."""
    whole = hashlib.sha256()
    while size > 0 and (piece := os.read(fd, min(READ_BYTES, size))):
        whole.update(piece)
        size -= len(piece)
    return whole.hexdigest()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- where each framework puts its mark

_Look = Callable[[Path, str], Iterator[Mark]]


def _directory(root: Path, marker: str) -> Iterator[Mark]:
    for step, folder in _step_folders(root):
        identity = _identity(folder / marker)
        if identity:
            yield Mark(step, folder, identity)


def _dcp(root: Path, _marker: str) -> Iterator[Mark]:
    return _directory(root, ".metadata")


def _megatron(root: Path, _marker: str) -> Iterator[Mark]:
    pointer = root / "latest_checkpointed_iteration.txt"
    text = _pointer(pointer)
    if _NUMBER.fullmatch(text):
        yield from _pointed(pointer, int(text), root / f"iter_{int(text):07d}")


def _deepspeed(root: Path, _marker: str) -> Iterator[Mark]:
    pointer = root / "latest"
    tag = _pointer(pointer)
    step = _step(tag)
    if step is not None and "/" not in tag:
        yield from _pointed(pointer, step, root / tag)


def _orbax(root: Path, _marker: str) -> Iterator[Mark]:
    folders = [each for each in _step_folders(root) if _ORBAX_TEMPORARY not in each[1].name]
    marked = {folder: _identity(folder / _ORBAX_SUCCESS) for _, folder in folders}
    by_file = any(marked.values())
    for step, folder in folders:
        if marked[folder]:
            yield Mark(step, folder, marked[folder])
        elif not by_file and (identity := _identity(folder / _ORBAX_METADATA)):
            # Renamed whole; looked at twice all the same, for stores that cannot rename.
            yield Mark(step, folder, (*_identity(folder, directory=True), *identity), in_place=True)


_PRESETS: Final[Mapping[str, _Look]] = {
    "directory": _directory,
    "dcp": _dcp,
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "orbax": _orbax,
}


def _pointed(pointer: Path, step: int, folder: Path) -> Iterator[Mark]:
    if _identity(folder, directory=True):
        yield Mark(step, folder, _identity(pointer), in_place=True)


def _step_folders(root: Path) -> Iterator[tuple[int, Path]]:
    """Folders whose names end in a number, or hold one: step-100, checkpoint_100, 100."""
    for folder in sorted(root.iterdir()):
        step = _step(folder.name)
        if step is not None and _identity(folder, directory=True):
            yield step, folder


def _step(name: str) -> int | None:
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def _pointer(path: Path) -> str:
    """A small text file's content; empty when there is none, or it is not one."""
    with contextlib.suppress(OSError, UnicodeDecodeError), _opened(path) as fd:
        return os.read(fd, POINTER_BYTES_MAX).decode().strip()
    return ""


def _identity(path: Path, *, directory: bool = False) -> tuple[int, ...]:
    """Changes whenever the file is written or replaced; empty when it is not there, or is a link."""
    try:
        status = path.lstat()
    except OSError:
        return ()
    wanted = stat.S_ISDIR if directory else stat.S_ISREG
    return (status.st_ino, status.st_mtime_ns) if wanted(status.st_mode) else ()
