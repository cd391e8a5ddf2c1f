"""Makes Kafka's jars, the etcd programs and, for chaos, libfaketime from published packages, once, in a cache by content.

It owns the cache and nothing else: it starts no broker and writes nothing into the repository,
except jars.sha256 when asked to (--lock).
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compose import versions
from compose.local import toolchain
from compose.local.errors import StackError

HERE: Final = Path(__file__).parent
KAFKA: Final = HERE / "kafka"
ETCD: Final = HERE / "etcd"
FAKETIME: Final = HERE / "faketime" / "requirements.txt"
JAR_SUMS: Final = KAFKA / "jars.sha256"
SUMS: Final = "SHA256SUMS"
FETCH_LIMIT_S: Final = 1200

Sums = dict[str, str]


@dataclass(frozen=True, slots=True)
class Programs:
    """What the launcher runs."""

    jars: Path
    etcd: Path
    etcdctl: Path


@dataclass(frozen=True, slots=True)
class Recipe:
    """One folder of the cache: its name carries a digest of everything that it is made from."""

    folder: str
    make: Callable[[Path], None]
    locked: Sums | None  # Digests known beforehand; None when the build itself defines them.


def ensure(*, install: bool = False) -> Programs:
    """Verified programs of the pinned versions, built if the cache does not hold them.

    Raises:
        StackError: a tool is missing, a fetch failed, or what came is not what is locked.
    """
    kafka = _ensure(kafka_recipe(install=install))
    etcd = _ensure(etcd_recipe(install=install))
    return Programs(jars=kafka, etcd=etcd / "etcd", etcdctl=etcd / "etcdctl")


def faketime() -> Path:
    """The verified library that fakes the wall clock of a process which loads it first. Raises StackError."""
    return _ensure(faketime_recipe()) / "libfaketime.so.1"


def ready() -> bool:
    """Whether the cache holds all programs of the stack, verified; builds and fetches nothing."""
    recipes = (kafka_recipe(install=False), etcd_recipe(install=False))
    return all(_verified(cache() / recipe.folder, recipe) for recipe in recipes)


def cache() -> Path:
    """TIDEMILL_CACHE, else the user's cache folder."""
    if own := os.environ.get("TIDEMILL_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tidemill"


def kafka_recipe(*, install: bool) -> Recipe:
    pinned = versions.pinned()
    key = _digest_of(KAFKA / "pom.xml", JAR_SUMS)
    return Recipe(
        folder=f"kafka-{pinned['KAFKA_VERSION']}-{key}",
        make=lambda target: fetch_jars(target, install=install),
        locked=read_sums(JAR_SUMS),
    )


def etcd_recipe(*, install: bool) -> Recipe:
    key = _digest_of(*(ETCD / name for name in ("main.go", "etcdctl/main.go", "go.mod", "go.sum")))
    return Recipe(
        folder=f"etcd-{versions.pinned()['ETCD_VERSION']}-{_host()}-{key}",
        make=lambda target: build_etcd(target, install=install),
        locked=None,
    )


def faketime_recipe() -> Recipe:
    return Recipe(
        folder=f"libfaketime-{_host()}-{_digest_of(FAKETIME)}", make=build_faketime, locked=None
    )


def _host() -> str:
    return f"{platform.system()}-{platform.machine()}".lower()


def fetch_jars(target: Path, *, install: bool) -> None:
    """Let Maven copy the broker's jars; it checks each against the repository's own checksum."""
    pinned = versions.pinned()
    toolchain.require(toolchain.java(pinned["JAVA_VERSION"]), install=install)
    maven = toolchain.require(toolchain.maven(), install=install)
    print(f"fetching Kafka {pinned['KAFKA_VERSION']} through Maven ...", flush=True)
    _run(
        [
            *(str(maven), "-q", "-B", "-C", "-f", str(KAFKA / "pom.xml")),
            f"-Dkafka.version={pinned['KAFKA_VERSION']}",
            f"-Dscala.version={pinned['SCALA_VERSION']}",
            f"-Dlog4j.version={pinned['LOG4J_VERSION']}",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={target}",
        ],
        cwd=KAFKA,
        hint="Maven must reach a repository or a mirror (settings.xml), or copy a filled cache: "
        "docs/how-to/local-stack.md",
    )


def build_etcd(target: Path, *, install: bool) -> None:
    match = re.search(r"(?m)^go (\S+)$", (ETCD / "go.mod").read_text())
    assert match, "go.mod names the Go that it needs"
    go = toolchain.require(toolchain.go(match[1]), install=install)
    print(f"building etcd {versions.pinned()['ETCD_VERSION']} (about a minute) ...", flush=True)
    _run(
        [
            *(str(go), "build", "-trimpath", "-buildvcs=false", "-mod=readonly"),
            *("-ldflags=-s -w", "-o", f"{target}/", "./etcdctl", "."),
        ],
        cwd=ETCD,
        environment={"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        hint="Go must reach a module proxy (GOPROXY), or copy a filled cache: "
        "docs/how-to/local-stack.md",
    )


def build_faketime(target: Path) -> None:
    """Sleeps and file times are left alone, as its package does it; safe for threads, as it does not."""
    print("building libfaketime ...", flush=True)
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory() as scratch:
        exactly = ["--no-cache", "--no-deps", "--require-hashes", "--no-binary", "libfaketime"]
        into = ["--python", sys.executable, "--target", scratch, "-r", str(FAKETIME)]
        _run(
            [str(uv), "pip", "install", *exactly, *into],
            cwd=FAKETIME.parent,
            environment={"CFLAGS": "-DPTHREAD_SINGLETHREADED_TIME"},
            hint="it needs a C compiler and make (apt-get install gcc libc6-dev make), and a package index",
        )
        (library,) = Path(scratch).rglob("libfaketime.so.1")
        shutil.copy(library, target)


def _ensure(recipe: Recipe) -> Path:
    folder = cache() / recipe.folder
    if _verified(folder, recipe):
        return folder
    try:
        cache().mkdir(parents=True, exist_ok=True)
        with _one_builder(folder.with_name(f".{recipe.folder}.lock")):
            if not _verified(folder, recipe):
                _build(folder, recipe)
    except OSError as error:
        raise StackError(
            f"the cache {cache()} cannot be written: {error}.\n"
            "  free space there, or name another folder: TIDEMILL_CACHE=/path"
        ) from error
    return folder


def _build(folder: Path, recipe: Recipe) -> None:
    """Build beside the target, check, then rename: a half-made folder never has its name."""
    began = time.monotonic()
    prefix = f".building-{folder.name}-"
    for left in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left)  # Of a build that was killed: this one holds the lock.
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as scratch:
        fresh = Path(scratch, "fresh")
        fresh.mkdir()
        recipe.make(fresh)
        made = sums_of(fresh)
        _check_lock(made, recipe.locked)
        (fresh / SUMS).write_text(render_sums(made))
        if folder.exists():
            print(f"replacing {folder}: it does not match its digests", flush=True)
            folder.rename(Path(scratch, "damaged"))
        fresh.rename(folder)
    print(f"ready after {time.monotonic() - began:.1f} s: {folder}", flush=True)


def _check_lock(made: Sums, locked: Sums | None) -> None:
    if locked is None or made == locked:
        return
    differing = sorted(name for name in made | locked if made.get(name) != locked.get(name))
    raise StackError(
        f"{len(differing)} of the fetched jars are not those of {JAR_SUMS.name}: "
        f"{', '.join(differing[:5])}{' ...' if differing[5:] else ''}.\n"
        "  after a change of versions on purpose: python -m compose.local.build --lock\n"
        "  otherwise do not run them: a mirror or this machine's Maven repository was altered"
    )


def _verified(folder: Path, recipe: Recipe) -> bool:
    file = folder / SUMS
    if not file.is_file():
        return False
    expected = recipe.locked if recipe.locked is not None else read_sums(file)
    return bool(expected) and sums_of(folder) == expected


def lock_jars() -> None:
    """Fetch the jars of the pinned versions and write their digests into the repository."""
    with tempfile.TemporaryDirectory() as scratch:
        fetch_jars(Path(scratch), install=False)
        made = sums_of(Path(scratch))
    JAR_SUMS.write_text(render_sums(made))
    print(f"{JAR_SUMS}: {len(made)} jars")


def sums_of(folder: Path) -> Sums:
    """SHA-256 of each file directly in the folder, by name; the sum file itself aside."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != SUMS)
    return {file.name: _sha256(file) for file in files}


def read_sums(file: Path) -> Sums:
    """The format of sha256sum(1)."""
    lines = (line.split(maxsplit=1) for line in file.read_text().splitlines() if line.strip())
    return {name.strip(): digest for digest, name in lines}


def render_sums(sums: Sums) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


@contextmanager
def _one_builder(lock: Path) -> Iterator[None]:
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build of the same is under way; waiting for it ...", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _run(
    command: list[str], *, cwd: Path, hint: str, environment: dict[str, str] | None = None
) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            check=False,
            capture_output=True,
            text=True,
            timeout=FETCH_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(f"`{command[0]}` took over {FETCH_LIMIT_S} s.\n  {hint}") from error
    if done.returncode:
        tail = "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).splitlines()[-12:])
        raise StackError(f"`{' '.join(command[:2])} ...` failed:\n{tail}\n  {hint}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compose.local.build", description=__doc__)
    parser.add_argument(
        "--install", action="store_true", help="as root on Debian: apt-get what is missing"
    )
    parser.add_argument(
        "--lock", action="store_true", help="rewrite jars.sha256 after a change of versions"
    )
    options = parser.parse_args(arguments)
    try:
        if options.lock:
            lock_jars()
        toolchain.require(
            toolchain.java(versions.pinned()["JAVA_VERSION"]), install=options.install
        )
        programs = ensure(install=options.install)
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name in ("jars", "etcd", "etcdctl"):
        print(f"{name:8} {getattr(programs, name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
