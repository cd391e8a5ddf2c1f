"""Commit marks of frameworks: each fake writer replays its framework's true order, and may die after any step of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.agent.markers import Found, Watch, describe, digest
from services.agent.watching import Watching
from statemachines.values import Reach
from tests.services.agent.world import order

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


@pytest.mark.parametrize("text", ["release", "", "../../etc", "12x", "9" * 5000, "٣"])
def test_a_pointer_that_names_no_step_folder_is_no_commit(tmp_path: Path, text: str) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text)
    (tmp_path / "latest").write_text(text)
    for preset in ("megatron", "deepspeed"):
        assert Watch(preset, tmp_path, ignore_present=False).look(last=True) == []


@pytest.mark.parametrize("preset", ["directory", "dcp", "megatron", "deepspeed", "orbax"])
def test_a_number_that_no_step_can_have_is_no_step_nor_are_its_last_digits(
    tmp_path: Path, preset: str
) -> None:
    folder = tmp_path / f"iter_{'9' * 20}"
    folder.mkdir()
    for name in ("COMMITTED", ".metadata", "commit_success.txt"):
        (folder / name).touch()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("9" * 20)
    (tmp_path / "latest").write_text(folder.name)
    assert Watch(preset, tmp_path, ignore_present=False).look(last=True) == []


def test_a_name_of_bytes_that_are_no_text_is_part_of_the_manifest(tmp_path: Path) -> None:
    manifests = set()
    for name in (b"\xff", b"\xfe", b"\\xff", b"ff"):
        folder = tmp_path / f"root-{name.hex()}" / "step-1"
        folder.mkdir(parents=True)
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(b"weights")
        (folder / "COMMITTED").touch()
        [found] = Watch("directory", folder.parent, ignore_present=False).look()
        manifests.add(found.manifest)
    assert len(manifests) == 4


def test_folders_nested_deeper_than_the_stack_are_looked_through(tmp_path: Path) -> None:
    folder = str(tmp_path / "step-1")
    nested = [folder + "/d" * depth for depth in range(1_200)]
    try:
        for path in nested:
            os.mkdir(path)  # noqa: PTH102 - a Path of so many parts is slow
        (tmp_path / "step-1" / "COMMITTED").touch()
        [found] = Watch("directory", tmp_path, ignore_present=False).look()
    finally:  # What clears temporary folders cannot.
        (tmp_path / "step-1" / "COMMITTED").unlink(missing_ok=True)
        for path in reversed(nested):
            os.rmdir(path)  # noqa: PTH106
    assert found.step == 1


def test_what_cannot_be_described_is_no_checkpoint_and_is_said_once(tmp_path: Path) -> None:
    for name in ("step-1", "step-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "COMMITTED").touch()
    with contextlib.ExitStack() as held:  # So deep that no path reaches it.
        fd = os.open(tmp_path / "step-1", os.O_DIRECTORY)
        for _ in range(20):
            held.callback(os.close, fd)
            os.mkdir("d" * 250, dir_fd=fd)
            fd = os.open("d" * 250, os.O_DIRECTORY, dir_fd=fd)
        held.callback(os.close, fd)
    watch = Watch("directory", tmp_path, ignore_present=False)
    with capture_logs() as said:
        assert looked_twice(watch) == [2]
    assert [line["event"] for line in said] == ["checkpoint_unusable"]
    assert "step-1" in said[0]["folder"]


def test_what_no_report_can_hold_is_not_told(tmp_path: Path) -> None:
    class Odd(Watch):
        def look(self, *, last: bool = False) -> list[Found]:
            folders = [(1, "good", 5), (2, "bytes", 1 << 63), (3, "li\nes", 5), (4, "\udcff", 5)]
            return [Found(step, Path("/c") / name, size, "") for step, name, size in folders]

    told = Watching(order("job.1.0"), Odd("directory", tmp_path), Reach.CELL).look(last=False)
    assert [saved.step for saved in told] == [1]


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
