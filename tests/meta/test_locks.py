"""The locks: exact, hashed, served by any index, and in step with what the distributions ask for."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tools import lock

NAMES: Final = tuple(lock.PURPOSE)
LOCAL: Final = {"tidemill"}


def requirements(name: str) -> list[tuple[Requirement, int]]:
    """Each requirement of a lock and how many hashes it allows."""
    text = (lock.LOCKS / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [
        (Requirement(line.split(" --hash", 1)[0]), line.count("--hash=sha256:")) for line in lines
    ]


def pins(name: str) -> set[tuple[str, str]]:
    return {(requirement.name, str(requirement.specifier)) for requirement, _ in requirements(name)}


@pytest.mark.parametrize("name", NAMES)
def test_every_version_is_exact_and_hashed(name: str) -> None:
    found = requirements(name)
    loose = [str(r) for r, _ in found if not re.fullmatch(r"==[^*,]+", str(r.specifier))]
    unhashed = [str(r) for r, hashes in found if hashes == 0]
    assert (bool(found), loose, unhashed) == (True, [], [])


@pytest.mark.parametrize("name", NAMES)
def test_no_lock_names_an_index(name: str) -> None:
    text = (lock.LOCKS / name).read_text()
    assert re.findall(r"https?://\S+|--(?:extra-)?index\S*|--find-links\S*", text) == []


@pytest.mark.parametrize("name", NAMES[1:])
def test_every_lock_holds_to_the_versions_that_were_tested(name: str) -> None:
    assert pins(name) - pins("dev.txt") == set()


@pytest.mark.parametrize("project", ["pyproject.toml", "sdk/pyproject.toml"])
def test_what_a_distribution_asks_for_is_locked_at_a_version_that_it_accepts(project: str) -> None:
    table = tomllib.loads((lock.ROOT / project).read_text())["project"]
    extras = table["optional-dependencies"].values()
    wanted = [*table["dependencies"], *itertools.chain.from_iterable(extras)]
    locked: dict[str, list[str]] = {}
    for name, pin in pins("server.txt"):
        locked.setdefault(name, []).append(pin.removeprefix("=="))
    for requirement in map(Requirement, wanted):
        if requirement.name not in LOCAL:
            assert all(map(requirement.specifier.contains, locked[requirement.name])), requirement


def test_an_edited_dependency_table_makes_the_locks_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sdk").mkdir()
    for path in ("pyproject.toml", "sdk/pyproject.toml"):
        (tmp_path / path).write_text((lock.ROOT / path).read_text())
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert lock.main(["check"]) == 0
    edited = (tmp_path / "pyproject.toml").read_text().replace('"msgspec>=', '"msgspec>')
    (tmp_path / "pyproject.toml").write_text(edited)
    assert lock.main(["check"]) == 1
