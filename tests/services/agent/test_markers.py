"""Commit marks of frameworks: each fake writer replays its framework's true order, and may die after any step of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.agent.markers import Watch, describe, digest

# A writer yields after each step on disk; its last step is the commit.
Writer = Callable[[Path, int], Iterator[None]]


def shards(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    yield
    for rank in range(2):
        (folder / f"__{rank}_0.distcp").write_bytes(bytes([rank]) * 1000)
        yield


def plain(root: Path, step: int) -> Iterator[None]:
    folder = root / f"step-{step}"
    yield from shards(folder)
    (folder / "COMMITTED").touch()
    yield


def dcp(root: Path, step: int) -> Iterator[None]:
    folder = root / f"step-{step}"
    yield from shards(folder)
    (folder / ".metadata.tmp").write_bytes(b"\x80\x04pickle")
    yield
    (folder / ".metadata.tmp").rename(folder / ".metadata")
    yield


def megatron(root: Path, step: int) -> Iterator[None]:
    yield from shards(root / f"iter_{step:07d}")
    pointer = root / "latest_checkpointed_iteration.txt"
    pointer.write_text("")  # Opened for writing: the old number is gone, the new one not yet there.
    yield
    pointer.write_text(str(step))
    yield


def deepspeed(root: Path, step: int) -> Iterator[None]:
    yield from shards(root / f"global_step{step}")
    (root / "latest").write_text("")
    yield
    (root / "latest").write_text(f"global_step{step}")
    yield


def orbax_renamed(root: Path, step: int) -> Iterator[None]:
    temporary = root / f"{step}.orbax-checkpoint-tmp-1234"
    yield from shards(temporary)
    (temporary / "_CHECKPOINT_METADATA").write_text("{}")
    yield
    temporary.rename(root / str(step))
    yield


def orbax_marked(root: Path, step: int) -> Iterator[None]:
    yield from shards(root / str(step))
    (root / str(step) / "commit_success.txt").write_text("ok")
    yield


WRITERS: list[tuple[str, Writer]] = [
    ("directory", plain),
    ("dcp", dcp),
    ("megatron", megatron),
    ("deepspeed", deepspeed),
    ("orbax", orbax_renamed),
    ("orbax", orbax_marked),
]
BY_WRITER = pytest.mark.parametrize(
    ("preset", "write"), WRITERS, ids=[write.__name__ for _, write in WRITERS]
)


def looked_twice(watch: Watch) -> list[int]:
    return [found.step for found in (*watch.look(), *watch.look())]


def count_steps(write: Writer, elsewhere: Path) -> int:
    return sum(1 for _ in write(elsewhere, 1))


@BY_WRITER
def test_a_save_is_seen_once_after_its_commit_and_never_before(
    tmp_path: Path, preset: str, write: Writer
) -> None:
    steps_on_disk = count_steps(write, tmp_path / "rehearsal")
    root = tmp_path / "root"
    watch = Watch(preset, root)
    for step in (100, 200):
        writing = write(root, step)
        for _ in range(steps_on_disk - 1):
            next(writing)
            assert looked_twice(watch) == []
        next(writing)
        assert looked_twice(watch) == [step]
        assert looked_twice(watch) == []


@BY_WRITER
def test_a_crash_anywhere_before_the_commit_leaves_nothing_to_report(
    tmp_path: Path, preset: str, write: Writer
) -> None:
    for done in range(count_steps(write, tmp_path / "rehearsal")):
        root = tmp_path / f"after-{done}"
        root.mkdir()
        for _ in write(root, 7):
            pass
        watch = Watch(preset, root)
        for _, _ in zip(range(done), write(root, 8), strict=False):
            pass
        assert [found.step for found in watch.look(last=True)] == []


@BY_WRITER
def test_what_was_there_before_the_run_is_not_its_own(
    tmp_path: Path, preset: str, write: Writer
) -> None:
    for _ in write(tmp_path, 100):
        pass
    assert looked_twice(Watch(preset, tmp_path)) == []
    assert looked_twice(Watch(preset, tmp_path, ignore_present=False)) == [100]


@BY_WRITER
def test_the_last_look_needs_no_second(tmp_path: Path, preset: str, write: Writer) -> None:
    watch = Watch(preset, tmp_path)
    for _ in write(tmp_path, 100):
        pass
    [found] = watch.look(last=True)
    assert found.step == 100
    assert found.bytes >= 2000
    assert found.manifest == digest(describe(found.folder))


def test_a_step_that_is_saved_again_is_seen_again(tmp_path: Path) -> None:
    watch = Watch("dcp", tmp_path)
    for _ in dcp(tmp_path, 100):
        pass
    assert looked_twice(watch) == [100]
    (tmp_path / "step-100" / ".metadata").unlink()
    assert looked_twice(watch) == []
    (tmp_path / "step-100" / ".metadata.tmp").write_bytes(b"again")
    (tmp_path / "step-100" / ".metadata.tmp").rename(tmp_path / "step-100" / ".metadata")
    assert looked_twice(watch) == [100]


def test_a_marker_of_the_users_own_choice(tmp_path: Path) -> None:
    watch = Watch("directory", tmp_path, marker="DONE")
    for _ in plain(tmp_path, 100):
        pass
    assert watch.look() == []
    (tmp_path / "step-100" / "DONE").touch()
    assert [found.step for found in watch.look()] == [100]


@pytest.mark.parametrize("text", ["release", "", "../../etc", "12x", "9" * 5000])
def test_a_pointer_that_names_no_step_folder_is_no_commit(tmp_path: Path, text: str) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text)
    (tmp_path / "latest").write_text(text)
    for preset in ("megatron", "deepspeed"):
        assert Watch(preset, tmp_path, ignore_present=False).look(last=True) == []


def test_links_and_pipes_are_never_followed_or_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    root = tmp_path / "root"
    folder = root / "step-1"
    folder.mkdir(parents=True)
    (folder / "shard").write_bytes(b"x")
    (folder / "link").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    (root / "step-2").symlink_to(folder)
    (folder / "COMMITTED").touch()
    [found] = Watch("directory", root, ignore_present=False).look()
    assert [name for name, _, _ in describe(found.folder)] == ["COMMITTED", "shard"]


def test_the_manifest_changes_with_any_byte_and_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    digests = {digest(describe(folder))}
    (folder / "a").write_bytes(b"2")
    digests.add(digest(describe(folder)))
    (folder / "a").rename(folder / "b")
    digests.add(digest(describe(folder)))
    assert len(digests) == 3


def test_an_unknown_preset_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory, dcp, megatron, deepspeed, orbax"):
        Watch("keras", tmp_path)
