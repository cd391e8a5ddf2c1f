"""Checkpoint directories: whole or not there, and proved whole before use."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.training import checkpoint
from tidemill.training.checkpoint import CheckpointError, Staging, step_directory, verify
from tidemill.training.environment import Identity


def member(root: Path, rank: int = 0, world_size: int = 1) -> Identity:
    return Identity(job="job", attempt=2, rank=rank, world_size=world_size, checkpoint_dir=root)


def write(root: Path, step: int, world_size: int = 1) -> checkpoint.Manifest:
    stagings = [
        Staging(member(root, rank, world_size), step, tries=1) for rank in range(world_size)
    ]
    for rank, staging in enumerate(stagings):
        folder = staging.begin()
        (folder / "deep").mkdir()
        (folder / "weights").write_bytes(b"w" * (100 + rank))
        (folder / "deep" / "optimizer").write_bytes(b"o" * 10)
        staging.finish()
    return stagings[0].commit(data_state=True, timeout_s=0)


def test_a_committed_checkpoint_names_every_file_of_every_rank(tmp_path: Path) -> None:
    manifest = write(tmp_path, 5, world_size=2)
    assert manifest == verify(tmp_path / "step-000000000005", manifest=manifest.digest)
    assert [(file["file"], file["bytes"], file["rank"]) for file in manifest.files] == [
        ("rank-00000/deep/optimizer", 10, 0),
        ("rank-00000/weights", 100, 0),
        ("rank-00001/deep/optimizer", 10, 1),
        ("rank-00001/weights", 101, 1),
    ]
    assert (manifest.step, manifest.world_size, manifest.data_state, manifest.bytes) == (
        5,
        2,
        True,
        221,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000000005"]


def test_the_digest_is_that_of_the_manifests_bytes(tmp_path: Path) -> None:
    import hashlib

    manifest = write(tmp_path, 1)
    assert (
        hashlib.sha256((manifest.path / "manifest.json").read_bytes()).hexdigest()
        == manifest.digest
    )


def test_rank_0_waits_for_every_shard_and_names_those_that_are_missing(tmp_path: Path) -> None:
    staging = Staging(member(tmp_path, 0, 3), 1, tries=1)
    (staging.begin() / "w").write_bytes(b"x")
    staging.finish()
    now = iter(range(100))
    with pytest.raises(CheckpointError, match=r"no shard of rank 1, 2 within 5 s"):
        staging.commit(
            data_state=False, timeout_s=5, clock=lambda: float(next(now)), sleep=lambda _: None
        )
    assert not step_directory(tmp_path, 1).exists()


def test_a_shard_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    first, second = (Staging(member(tmp_path, rank, 2), 1, tries=1) for rank in (0, 1))
    (first.begin() / "w").write_bytes(b"x")
    first.finish()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        if not waited:
            (second.begin() / "w").write_bytes(b"y")
            second.finish()
        waited.append(seconds)

    manifest = first.commit(data_state=False, timeout_s=60, sleep=sleep)
    assert (len(waited), len(manifest.files)) == (1, 2)


def test_shards_of_an_earlier_try_are_never_mixed_in(tmp_path: Path) -> None:
    stale = Staging(member(tmp_path, 1, 2), 1, tries=1)
    (stale.begin() / "w").write_bytes(b"stale")
    stale.finish()
    again = Staging(member(tmp_path, 0, 2), 1, tries=2)
    (again.begin() / "w").write_bytes(b"new")
    again.finish()
    with pytest.raises(CheckpointError, match="no shard of rank 1"):
        again.commit(data_state=False, timeout_s=0)


def test_shards_of_a_process_before_a_restart_are_never_mixed_in(tmp_path: Path) -> None:
    stale = Staging(member(tmp_path, 1, 2), 1, tries=1)
    (stale.begin() / "w").write_bytes(b"stale")
    stale.finish()
    restarted = replace(member(tmp_path, 0, 2), restart=1)
    again = Staging(restarted, 1, tries=1)
    (again.begin() / "w").write_bytes(b"new")
    again.finish()
    with pytest.raises(CheckpointError, match="no shard of rank 1"):
        again.commit(data_state=False, timeout_s=0)


def test_a_committed_step_is_never_written_again(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with pytest.raises(CheckpointError, match="committed already"):
        Staging(member(tmp_path), 5, tries=2).begin()


def test_in_a_shared_directory_rank_0_lists_what_all_wrote(tmp_path: Path) -> None:
    stagings = [Staging(member(tmp_path, rank, 2), 1, tries=1, shared=True) for rank in (0, 1)]
    for rank, staging in enumerate(stagings):
        (staging.begin() / f"part-{rank}").write_bytes(b"p")
        staging.finish()
    manifest = stagings[0].commit(data_state=False, timeout_s=0)
    assert [file["file"] for file in manifest.files] == ["shared/part-0", "shared/part-1"]


@pytest.mark.parametrize("kind", ["link", "folder link", "fifo"])
def test_only_files_and_directories_belong_into_a_checkpoint(tmp_path: Path, kind: str) -> None:
    staging = Staging(member(tmp_path / "root"), 1, tries=1)
    folder = staging.begin()
    if kind == "fifo":
        os.mkfifo(folder / "odd")
    else:
        (folder / "odd").symlink_to(tmp_path if kind == "folder link" else __file__)
    with pytest.raises(CheckpointError, match="regular files and directories only"):
        staging.finish()


@pytest.mark.parametrize(
    ("damage", "message", "late"),
    [
        (lambda path: (path / "rank-00000/weights").unlink(), "No such file", True),
        (
            lambda path: (path / "rank-00000/weights").write_bytes(b"w" * 99),
            "99 bytes, not 100",
            True,
        ),
        (
            lambda path: (path / "rank-00000/weights").write_bytes(b"w" * 101),
            "101 bytes, not 100",
            False,
        ),
        (
            lambda path: (path / "rank-00000/weights").write_bytes(b"x" * 100),
            "its SHA-256 is",
            False,
        ),
        (lambda path: (path / "manifest.json").unlink(), "No such file", True),
        (lambda path: (path / "manifest.json").write_text("{}"), "not a manifest", False),
        (lambda path: (path / "manifest.json").write_text("torn"), "not a manifest", False),
        (
            lambda path: (path / "manifest.json").write_text('{"format": 9}'),
            "format 9, this version reads 1",
            False,
        ),
        (lambda path: _replace_by_link(path / "rank-00000/weights"), "not a regular file", False),
    ],
    ids=[
        "file gone",
        "file short",
        "file long",
        "file changed",
        "manifest gone",
        "manifest empty",
        "manifest torn",
        "manifest of the future",
        "link",
    ],
)
def test_damage_is_found(tmp_path: Path, damage: object, message: str, late: bool) -> None:
    manifest = write(tmp_path, 1)
    damage(manifest.path)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message) as caught:
        verify(manifest.path)
    assert caught.value.late is late


def _replace_by_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def test_another_manifest_than_the_decided_one_is_refused(tmp_path: Path) -> None:
    manifest = write(tmp_path, 1)
    body = json.loads((manifest.path / "manifest.json").read_bytes())
    (manifest.path / "manifest.json").write_text(json.dumps(body))
    verify(manifest.path)
    with pytest.raises(CheckpointError, match=f"not {manifest.digest}"):
        verify(manifest.path, manifest=manifest.digest)


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/file", "a/../../b", ""])
def test_a_manifest_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    manifest = write(tmp_path, 1)
    body = json.loads((manifest.path / "manifest.json").read_bytes())
    body["files"][0]["file"] = name
    (manifest.path / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(CheckpointError, match="lies outside"):
        verify(manifest.path)


def test_each_rank_hashes_its_own_files_and_all_check_the_sizes(tmp_path: Path) -> None:
    manifest = write(tmp_path, 1, world_size=2)
    (manifest.path / "rank-00001/weights").write_bytes(b"x" * 101)
    verify(manifest.path, ranks=[0])
    with pytest.raises(CheckpointError, match="SHA-256"):
        verify(manifest.path, ranks=[1])
    (manifest.path / "rank-00001/weights").write_bytes(b"")
    with pytest.raises(CheckpointError, match="0 bytes"):
        verify(manifest.path, ranks=[0])


def test_a_file_that_a_shared_file_system_shows_late_is_waited_for(tmp_path: Path) -> None:
    manifest = write(tmp_path, 1)
    hidden = tmp_path / "hidden"
    (manifest.path / "rank-00000/weights").rename(hidden)
    timer = threading.Timer(0.3, lambda: hidden.rename(manifest.path / "rank-00000/weights"))
    timer.start()
    assert verify(manifest.path, wait_s=30.0) == manifest
    timer.join()


def test_of_a_plain_directory_the_newest_that_verifies_is_taken(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    write(tmp_path, 9)
    write(tmp_path, 10)
    third = write(tmp_path, 11)
    (third.path / "rank-00000/weights").write_bytes(b"torn")
    (tmp_path / "step-000000000012.partial-0-1").mkdir()
    (tmp_path / "step-000000000013").mkdir()
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 10


def test_what_unfinished_saves_left_is_swept_below_a_step_only(tmp_path: Path) -> None:
    write(tmp_path, 5)
    for step in (3, 5, 7):
        Staging(member(tmp_path), step, tries=2).directory.mkdir()
    checkpoint.sweep(tmp_path, below=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000000005",
        "step-000000000005.partial-0-2",
        "step-000000000007.partial-0-2",
    ]


def test_a_sweep_that_cannot_look_says_so_and_never_undoes_a_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.sweep(tmp_path / ("n" * 300), below=5)
    [record] = caplog.records
    assert "File name too long" in record.getMessage()


def test_removing_takes_the_manifest_first(tmp_path: Path) -> None:
    manifest = write(tmp_path, 5)
    assert checkpoint.remove(manifest.path) is True
    assert checkpoint.remove(manifest.path) is False
    assert list(tmp_path.iterdir()) == []
