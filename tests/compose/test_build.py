"""The cache holds what was verified, or nothing; a missing tool is named with its remedy."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compose.local import build, toolchain
from compose.local.build import Recipe
from compose.local.errors import StackError
from compose.local.toolchain import Tool

CONTENT = b"a jar"


class Builds:
    """Counts how often the recipe was really carried out."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.count = 0
        self.content = content

    def __call__(self, target: Path) -> None:
        self.count += 1
        (target / "a.jar").write_bytes(self.content)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_built_once_is_used_again() -> None:
    make = Builds()
    folder = build._ensure(Recipe("kafka-1", make, locked=None))
    assert build._ensure(Recipe("kafka-1", make, locked=None)) == folder
    assert ((folder / "a.jar").read_bytes(), make.count) == (CONTENT, 1)


def change(folder: Path) -> None:
    (folder / "a.jar").write_bytes(b"another jar")


def remove(folder: Path) -> None:
    (folder / "a.jar").unlink()


def add(folder: Path) -> None:
    (folder / "b.jar").write_bytes(b"on the class path too")


def forget_sums(folder: Path) -> None:
    (folder / build.SUMS).unlink()


@pytest.mark.parametrize("damage", [change, remove, add, forget_sums])
def test_a_damaged_cache_is_built_again(damage: Callable[[Path], None]) -> None:
    make = Builds()
    folder = build._ensure(Recipe("kafka-1", make, locked=None))
    damage(folder)
    build._ensure(Recipe("kafka-1", make, locked=None))
    assert ({f.name for f in folder.iterdir()}, make.count) == ({"a.jar", build.SUMS}, 2)
    assert (folder / "a.jar").read_bytes() == CONTENT


def test_jars_that_are_not_the_locked_ones_are_refused_and_not_kept(cache: Path) -> None:
    with pytest.raises(StackError, match=r"(?s)1 of the fetched jars.*a\.jar.*--lock"):
        build._ensure(Recipe("kafka-1", Builds(), locked={"a.jar": "0" * 64}))
    assert not (cache / "kafka-1").exists()


def test_a_build_that_fails_leaves_nothing_under_its_name(cache: Path) -> None:
    def fail(target: Path) -> None:
        (target / "a.jar").write_bytes(b"half")
        raise StackError("the network went away")

    with pytest.raises(StackError, match="went away"):
        build._ensure(Recipe("kafka-1", fail, locked=None))
    assert {entry.name for entry in cache.iterdir()} == {".kafka-1.lock"}


def test_what_a_killed_build_left_is_removed_by_the_next(cache: Path) -> None:
    left = cache / ".building-kafka-1-abc"
    left.mkdir(parents=True)
    build._ensure(Recipe("kafka-1", Builds(), locked=None))
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(StackError, match="TIDEMILL_CACHE"):
        build._ensure(Recipe("kafka-1", Builds(), locked=None))


def test_an_empty_cache_is_not_ready_and_asking_fills_nothing(cache: Path) -> None:
    assert build.ready() is False
    assert not cache.exists()


def test_sums_are_read_as_they_were_written() -> None:
    sums = {"a.jar": "0" * 64, "b c.jar": "1" * 64}
    file = build.cache().with_name("sums")
    file.write_text(build.render_sums(sums))
    assert build.read_sums(file) == sums


def program(folder: Path, name: str, says: str) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    file.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, with no home of any tool set."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for home in ("JAVA_HOME", "MAVEN_HOME", "GOROOT", "GOTOOLCHAIN"):
        monkeypatch.delenv(home, raising=False)
    return tmp_path / "bin"


@pytest.mark.parametrize(
    ("tool", "package"),
    [
        (toolchain.java("17"), "openjdk-17-jre-headless"),
        (toolchain.maven(), "maven"),
        (toolchain.go("1.26.0"), "golang-go"),
    ],
    ids=lambda value: value.command if isinstance(value, Tool) else "",
)
def test_a_missing_tool_is_named_with_its_package(path: Path, tool: Tool, package: str) -> None:
    with pytest.raises(
        StackError, match=rf"(?s)`{tool.command}`.*not found.*apt-get install {package}"
    ):
        toolchain.require(tool)


def test_a_tool_that_is_too_old_is_named_with_its_version(path: Path) -> None:
    program(path, "java", 'openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(StackError, match=r"`java` 17 or newer .* is version 11\.0\.2"):
        toolchain.require(toolchain.java("17"))


def test_a_tool_that_does_not_tell_its_version_is_refused(path: Path) -> None:
    program(path, "java", "hello")
    with pytest.raises(StackError, match="does not tell its version"):
        toolchain.require(toolchain.java("17"))


def test_java_home_comes_before_the_path(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(path, "java", 'openjdk version "11.0.2"')
    (tmp_path / "jdk").mkdir()
    program(tmp_path / "jdk" / "bin", "java", 'openjdk version "21"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert toolchain.require(toolchain.java("17")) == tmp_path / "jdk" / "bin" / "java"


def test_an_older_go_is_taken_only_if_it_fetches_newer_ones_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(path, "go", "go version go1.24.1 linux/amd64")
    assert toolchain.require(toolchain.go("1.26.0")) == path / "go"
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    with pytest.raises(StackError, match=r"1\.24\.1"):
        toolchain.require(toolchain.go("1.26.0"))


def test_install_without_apt_says_what_it_needs(path: Path) -> None:
    with pytest.raises(StackError, match="--install works on Debian"):
        toolchain.require(toolchain.maven(), install=True)
