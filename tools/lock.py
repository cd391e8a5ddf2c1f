"""Owns requirements/*.txt: the exact versions and hashes that were tested.

`write` resolves again; `check` needs no network and tells whether the dependency tables changed
since. A lock names no index, so that any mirror can serve it.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = ROOT / "requirements"
UV: Final = Path(sysconfig.get_path("scripts")) / "uv"
DIGEST_LINE: Final = "# Dependency tables: sha256 "
COMMON: Final = (
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-package=tidemill",
    "--quiet",
)
BOTH: Final = ("pyproject.toml", "sdk/pyproject.toml", "--all-extras")

# What each lock is for. The later ones are held to the versions of the first.
PURPOSE: Final[Mapping[str, str]] = {
    "dev.txt": "everything: both distributions, all extras, tests and checks",
    "server.txt": "what a server image needs: both distributions and all extras",
    "uv.txt": "the installer that `make setup` begins with",
}
ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "dev.txt": (*BOTH, "--group=dev"),
    "server.txt": (*BOTH, "--constraints=requirements/dev.txt"),
    "uv.txt": ("-", "--constraints=requirements/dev.txt"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the locks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.lock", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="resolve, keeping locked versions where they fit")
    write.add_argument("--upgrade", action="store_true", help="take the newest that fit instead")
    commands.add_parser("check", help="exit 1 if a dependency table changed since the last write")
    arguments = parser.parse_args(argv)
    if arguments.command == "check":
        return _report_stale()
    for name in PURPOSE:
        _resolve(name, upgrade=arguments.upgrade)
    return 0


def dependency_digest() -> str:
    """Digest of every table that decides a lock, in both pyproject.toml files."""
    tables = [
        _dependency_tables(ROOT / "pyproject.toml"),
        _dependency_tables(ROOT / "sdk" / "pyproject.toml"),
    ]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def _dependency_tables(path: Path) -> list[object]:
    document = tomllib.loads(path.read_text())
    project = document["project"]
    return [
        document["build-system"]["requires"],
        project["requires-python"],
        project["dependencies"],
        project.get("optional-dependencies", {}),
        document.get("dependency-groups", {}),
    ]


def _resolve(name: str, *, upgrade: bool) -> None:
    lock = LOCKS / name
    command = [str(UV), "pip", "compile", *ARGUMENTS[name], *COMMON, "-o", str(lock)]
    if upgrade and name == "dev.txt":
        command.append("--upgrade")
    done = subprocess.run(command, cwd=ROOT, check=False, input=b"uv\n", stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"could not resolve requirements/{name}; the reason is above")
    header = f"# {PURPOSE[name]}. Written by `make lock`, never by hand.\n{DIGEST_LINE}{dependency_digest()}\n"
    lock.write_text(header + lock.read_text())


def _report_stale() -> int:
    wanted = DIGEST_LINE + dependency_digest()
    stale = [name for name in PURPOSE if wanted not in (LOCKS / name).read_text().splitlines()]
    for name in stale:
        print(f"requirements/{name} is older than pyproject.toml: run `make lock`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
