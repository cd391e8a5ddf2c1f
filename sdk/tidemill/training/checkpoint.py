"""A checkpoint directory: written so that a kill at any instant leaves a whole one or none, proved whole before use.

Every rank writes into a staging directory, syncs its files and leaves a shard manifest there. Rank 0 waits for all of
them, writes manifest.json last and renames the directory to its name. Files are the channel: no collective is needed.
This file must never open what the user wrote except to hash it, and never touch another attempt's prefix.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tidemill.training.environment import Identity
from tidemill.training.spool import sync_directory, write_durably

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SHARED: Final = "shared"
PARTIAL: Final = ".partial-"
_log = logging.getLogger("tidemill.training")


class CheckpointError(Exception):
    """A checkpoint could not be written, or is not what its manifest says. The message names the file.

    `late`: a file is missing or too short, which a shared file system may still make good.
    """

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a committed checkpoint consists of; `digest` is the SHA-256 of manifest.json."""

    path: Path
    step: int
    world_size: int
    data_state: bool
    files: tuple[Mapping[str, Any], ...]
    digest: str
    # Who saved it; outside a cell nobody, as attempt 0.
    job: str = ""
    attempt: int = 0

    @property
    def bytes(self) -> int:
        """Size of all files it names."""
        return sum(int(file["bytes"]) for file in self.files)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint, to load from."""

    step: int
    path: Path
    manifest: Manifest

    def rank_directory(self, rank: int) -> Path:
        """What that rank wrote through Session.save()."""
        return self.path / rank_name(rank)

    @property
    def shared_directory(self) -> Path:
        """What all ranks wrote through Session.save(shared=True)."""
        return self.path / SHARED


def step_directory(root: Path, step: int) -> Path:
    """Where a committed checkpoint of `step` lies below an attempt's prefix."""
    return root / f"step-{step:012d}"


def rank_name(rank: int) -> str:
    return f"rank-{rank:05d}"


class Staging:
    """One rank's part in one save. `tries` counts the saves of this step by this process: all ranks count alike.

    A process that was started again within its attempt comes by steps that were saved before. Then `passed` is the
    newest checkpoint that is there: what the rank writes is dropped, for the cell has that one or a later one.
    """

    def __init__(self, identity: Identity, step: int, *, tries: int, shared: bool = False) -> None:
        self._me, self.step = identity, step
        self.passed = _passed(identity, step) if identity.managed and tries == 1 else None
        self.target = step_directory(identity.checkpoint_dir, step)
        # Shards of an earlier try or an earlier process must never be taken for this one's.
        staged = f"{self.target.name}{PARTIAL}{identity.restart}-{tries}"
        if self.passed is not None:
            # What is dropped is each rank's own: no rank takes a directory from under another.
            staged, shared = f"{staged}-{rank_name(identity.rank)}", False
        self.directory = self.target.with_name(staged)
        self._shared = shared
        self._mine = self.directory / (SHARED if shared else rank_name(identity.rank))

    def begin(self) -> Path:
        """An empty directory for this rank's files, or with `shared` one for the files of all. Raises OSError."""
        if self.passed is None and self.target.exists():
            raise CheckpointError(f"{self.target} is committed already; save each step once")
        self._shard_manifest(self._me.rank).unlink(missing_ok=True)
        if not self._shared:
            shutil.rmtree(self._mine, ignore_errors=True)
        self._mine.mkdir(parents=True, exist_ok=True)
        return self._mine

    def drop(self) -> None:
        """Remove what this rank wrote at a step that is passed."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def finish(self) -> None:
        """This rank's files are written: sync them, and say so in its shard manifest. Raises OSError."""
        files = [] if self._shared else list(_describe(self._mine, self._me.rank))
        for directory in (self._mine, self.directory):
            sync_directory(directory)
        shard = {"rank": self._me.rank, "world_size": self._me.world_size, "files": files}
        write_durably(self._shard_manifest(self._me.rank), _encode(shard))

    def commit(
        self,
        *,
        data_state: bool,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Manifest:
        """Rank 0: wait for every shard, write the manifest, give the directory its name.

        Raises CheckpointError naming the ranks that were not there within `timeout_s`, or OSError.
        """
        files = self._await_shards(timeout_s, clock, sleep)
        if self._shared:
            files += _describe(self._mine, self._me.rank)
        body = {
            "format": FORMAT,
            "job": self._me.job,
            "attempt": self._me.attempt,
            "step": self.step,
            "world_size": self._me.world_size,
            "data_state": data_state,
            "files": sorted(files, key=lambda file: str(file["file"])),
        }
        write_durably(self.directory / MANIFEST, _encode(body))
        self.directory.rename(self.target)
        sync_directory(self.target.parent)
        return read_manifest(self.target)

    def _await_shards(
        self, timeout_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> list[dict[str, Any]]:
        """A shard manifest appears by a rename, so one that can be read is whole."""
        ends = clock() + timeout_s
        missing = list(range(self._me.world_size))
        files: list[dict[str, Any]] = []
        while True:
            present = [rank for rank in missing if self._shard_manifest(rank).exists()]
            for rank in present:
                files += json.loads(self._shard_manifest(rank).read_bytes())["files"]
            missing = [rank for rank in missing if rank not in set(present)]
            if not missing:
                return files
            if clock() >= ends:
                named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                raise CheckpointError(
                    f"step {self.step}: no shard of rank {named} within {timeout_s:g} s in {self.directory}"
                )
            sleep(0.02)

    def _shard_manifest(self, rank: int) -> Path:
        return self.directory / f"{rank_name(rank)}.json"


def verify(
    path: str | Path,
    *,
    manifest: str = "",
    ranks: Sequence[int] | None = None,
    wait_s: float = 0.0,
) -> Manifest:
    """The manifest of a checkpoint whose every file has the size and SHA-256 that it names.

    `manifest` is the digest that manifest.json must have. With `ranks`, only files of those ranks are hashed; sizes
    are checked for all. Shared file systems show new files late: `wait_s` bounds how long to try again.
    Raises CheckpointError that names the first file at fault.
    """
    ends = time.monotonic() + wait_s
    while True:
        try:
            return _verify_once(Path(path), manifest, ranks)
        except CheckpointError as error:
            if not error.late or time.monotonic() >= ends:
                raise
        time.sleep(0.2)


def read_manifest(path: Path, *, digest: str = "") -> Manifest:
    """The manifest without a look at the files. Raises CheckpointError."""
    try:
        data = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST}: {error.strerror}", late=True) from error
    found = hashlib.sha256(data).hexdigest()
    if digest and digest != found:
        raise CheckpointError(f"{path / MANIFEST}: its SHA-256 is {found}, not {digest}")
    try:
        body = json.loads(data)
        if body["format"] != FORMAT:
            raise CheckpointError(
                f"{path / MANIFEST}: format {body['format']}, this version reads {FORMAT}"
            )
        files = tuple(_checked(file) for file in body["files"])
        return Manifest(
            path, int(body["step"]), int(body["world_size"]), bool(body["data_state"]), files, found,
            str(body["job"]), int(body["attempt"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / MANIFEST}: not a manifest: {error!r}") from error


def newest(root: Path) -> Manifest | None:
    """The newest committed checkpoint that verifies. For plain directories only: inside a cell, the cell says which."""
    for path in _committed(root):
        try:
            return verify(path)
        except CheckpointError:
            continue
    return None


def sweep(root: Path, *, below: int) -> None:
    """Remove what unfinished saves of steps below `below` left under our own prefix, as far as it can be done."""
    try:
        paths = sorted(root.glob(f"step-*{PARTIAL}*"))
    except OSError as error:
        _log.warning("what unfinished saves left in %s stays: %s", root, error.strerror)
        return
    for path in paths:
        step = path.name.removeprefix("step-").split(PARTIAL)[0]
        if step.isdecimal() and int(step) < below:
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> bool:
    """Remove a checkpoint so that a kill in between leaves nothing that verifies: the manifest goes first."""
    if not path.is_dir():
        return False
    (path / MANIFEST).unlink(missing_ok=True)
    sync_directory(path)
    shutil.rmtree(path)
    return True


def _committed(root: Path) -> Iterator[Path]:
    """Directories that are named as committed checkpoints are, newest first."""
    for path in sorted(root.glob("step-*"), reverse=True):
        if PARTIAL not in path.name:
            yield path


def _passed(identity: Identity, step: int) -> Manifest | None:
    """The newest checkpoint of this attempt of `step` or above. A look at names alone while training goes forward."""
    try:
        paths = list(_committed(identity.checkpoint_dir))
    except OSError:
        return None  # What is wrong with the directory is told when it is written to.
    for path in paths:
        if path.name < step_directory(path.parent, step).name:
            break
        try:
            found = read_manifest(path)
        except CheckpointError:
            continue
        if (found.job, found.attempt) == (identity.job, identity.attempt):
            return found
    return None


def _verify_once(path: Path, digest: str, ranks: Sequence[int] | None) -> Manifest:
    manifest = read_manifest(path, digest=digest)
    for file in manifest.files:
        _check_size(path / file["file"], file)
    for file in manifest.files:
        if ranks is None or file["rank"] in ranks:
            found = _sha256(path / file["file"])
            if found != file["sha256"]:
                raise CheckpointError(
                    f"{path / file['file']}: its SHA-256 is {found}, not {file['sha256']}"
                )
    return manifest


def _check_size(path: Path, file: Mapping[str, Any]) -> None:
    try:
        status = path.lstat()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}", late=True) from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: not a regular file")
    if status.st_size != file["bytes"]:
        late = status.st_size < file["bytes"]
        raise CheckpointError(f"{path}: {status.st_size} bytes, not {file['bytes']}", late=late)


def _checked(file: Mapping[str, Any]) -> Mapping[str, Any]:
    """A manifest names files below its own directory, nothing else."""
    name = PurePosixPath(str(file["file"]))
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise ValueError(f"file {file['file']!r} lies outside the checkpoint")
    return {
        "file": str(name),
        "bytes": int(file["bytes"]),
        "sha256": str(file["sha256"]),
        "rank": int(file["rank"]),
    }


def _describe(directory: Path, rank: int) -> Iterator[dict[str, Any]]:
    """Sync and hash every file below, and every directory. Raises CheckpointError for a symbolic link."""
    for folder, names, files in os.walk(directory):
        names.sort()
        links = [name for name in names if Path(folder, name).is_symlink()]
        for name in [*links, *sorted(files)]:
            path = Path(folder, name)
            if not stat.S_ISREG(path.lstat().st_mode):
                raise CheckpointError(
                    f"{path}: a checkpoint holds regular files and directories only"
                )
            yield {
                "file": path.relative_to(directory.parent).as_posix(),
                "bytes": path.stat().st_size,
                "sha256": _sha256(path, sync=True),
                "rank": rank,
            }
        sync_directory(Path(folder))


def _sha256(path: Path, *, sync: bool = False) -> str:
    try:
        with path.open("rb") as file:
            if sync:
                os.fsync(file.fileno())
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
