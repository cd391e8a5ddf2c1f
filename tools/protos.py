"""Generates sdk/tidemill/v1 from protos/tidemill/v1, and tells when it is stale.

Rules of protovalidate stay in the generated descriptors as bytes, but the import of their schema is
dropped: a program that imports the SDK must not register buf/validate/validate.proto, since two
copies of one file name in a process are an error. This must never edit generated text by hand.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT: Final = Path(__file__).resolve().parent.parent
BIN: Final = Path(sysconfig.get_path("scripts"))
PACKAGE: Final = "tidemill/v1"
GENERATED: Final = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")
RULES_SCHEMA: Final = "buf/validate/validate.proto"
BASELINE: Final = ROOT / "protos" / "baseline.binpb"


def main(argv: Sequence[str] | None = None) -> int:
    """Generate, check or move the baseline; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.protos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("generate", help="write sdk/tidemill/v1 from protos/")
    commands.add_parser(
        "check", help="exit 1 if sdk/tidemill/v1 differs from what would be written"
    )
    commands.add_parser("baseline", help="make today's protos what `buf breaking` compares with")
    command: str = parser.parse_args(argv).command
    if command == "baseline":
        buf("build", "--exclude-source-info", "-o", str(BASELINE))
        return 0
    with tempfile.TemporaryDirectory(prefix="tidemill-protos-") as scratch:
        fresh = _generate(Path(scratch))
        return _install(fresh) if command == "generate" else _report_stale(fresh)


def without_rules_schema(compiled: FileDescriptorSet) -> FileDescriptorSet:
    """Drop the schema of the rules and every import of it; the rules stay as unknown bytes."""
    kept = FileDescriptorSet()
    for file in compiled.file:
        if file.name != RULES_SCHEMA:
            kept.file.append(_without_import(file))
    return kept


def _without_import(file: FileDescriptorProto) -> FileDescriptorProto:
    """Imports are numbered, so a public import behind the dropped one moves up."""
    if RULES_SCHEMA not in file.dependency:
        return file
    slot = list(file.dependency).index(RULES_SCHEMA)
    slim = FileDescriptorProto()
    slim.CopyFrom(file)
    del slim.dependency[slot]
    for numbered in (slim.public_dependency, slim.weak_dependency):
        numbered[:] = [number - (number > slot) for number in numbered if number != slot]
    return slim


def _generate(scratch: Path) -> dict[str, bytes]:
    """Compile into `scratch`; returns the content of each generated file by its name."""
    image, out = scratch / "protos.binpb", scratch / "out"
    buf("build", "--as-file-descriptor-set", "-o", str(image))
    slim = without_rules_schema(FileDescriptorSet.FromString(image.read_bytes()))
    ours = [file for file in slim.file if file.name.startswith(PACKAGE + "/")]
    if not ours:
        sys.exit(f"protos/{PACKAGE} holds no .proto file, so there is nothing to generate")
    image.write_bytes(slim.SerializeToString())
    out.mkdir()
    _protoc(image, out, ("python", "mypy"), [file.name for file in ours])
    _protoc(image, out, ("grpc_python", "mypy_grpc"), [file.name for file in ours if file.service])
    return _contents(out / PACKAGE)


def _protoc(image: Path, out: Path, plugins: Sequence[str], sources: Sequence[str]) -> None:
    arguments = [
        "protoc",
        f"--descriptor_set_in={image}",
        f"--plugin=protoc-gen-mypy={BIN / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={BIN / 'protoc-gen-mypy_grpc'}",
        *(f"--{plugin}_out={'quiet:' if 'mypy' in plugin else ''}{out}" for plugin in plugins),
        *sources,
    ]
    if sources and protoc.main(arguments) != 0:
        sys.exit("protoc failed; its message is above")


def _contents(folder: Path) -> dict[str, bytes]:
    paths = [path for pattern in GENERATED for path in folder.glob(pattern)]
    return {path.name: path.read_bytes() for path in sorted(paths)}


def _install(fresh: dict[str, bytes]) -> int:
    target = ROOT / "sdk" / PACKAGE
    target.mkdir(parents=True, exist_ok=True)
    present = _contents(target)
    for name in sorted(present.keys() - fresh.keys()):
        (target / name).unlink()
    for name, content in fresh.items():
        if present.get(name) != content:  # An untouched file keeps its time for build tools.
            (target / name).write_bytes(content)
    return 0


def _report_stale(fresh: dict[str, bytes]) -> int:
    present = _contents(ROOT / "sdk" / PACKAGE)
    names = sorted(fresh.keys() | present.keys())
    stale = [name for name in names if fresh.get(name) != present.get(name)]
    for name in stale:
        print(f"sdk/{PACKAGE}/{name} is stale: run `make proto` and commit it", file=sys.stderr)
    return 1 if stale else 0


def buf(*arguments: str) -> None:
    done = subprocess.run([str(BIN / "buf"), *arguments], cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"`buf {arguments[0]}` failed; its message is above")


if __name__ == "__main__":
    sys.exit(main())
