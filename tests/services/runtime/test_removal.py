"""Removing folders that a hostile program filled."""

from __future__ import annotations

import os
from pathlib import Path

from services.runtime.adapters.removal import remove


def nest(folder: Path, depth: int) -> None:
    """Deeper than any path can say, so by descriptors; a file at the bottom."""
    fd = os.open(folder, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=fd)
        below = os.open("deep", os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_folders_nested_deeper_than_stack_and_path_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    nest(folder, 1_200)
    (folder / ".removed-0").write_text("the program's own")
    (folder / "closed").mkdir(mode=0)
    remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_what_they_name_is_not(tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "run"
    for each in (other, folder):
        each.mkdir()
    (other / "precious").touch()
    (folder / "link").symlink_to(other)
    remove(folder)
    (tmp_path / "in-its-place").symlink_to(other)
    remove(tmp_path / "in-its-place")
    assert (other / "precious").exists()
    assert not folder.exists()


def test_what_is_not_there_is_removed(tmp_path: Path) -> None:
    remove(tmp_path / "gone")
