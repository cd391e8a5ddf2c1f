"""Golden logs: stored bytes that fold to the recorded state for ever, whatever the code becomes.

    python -m tests.statemachines.golden fold FILE     prints what the log folds to, as JSON
    python -m tests.statemachines.golden record        writes logs that are missing, and digests of a new fold version

A log is never written again. When the fold's meaning changes, FOLD_VERSION grows and `record` adds its digests beside
the old ones; when it must not change and a test fails, the code is wrong.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services.runtime import codec
from statemachines import snapshot
from statemachines.cluster import FOLD_VERSION, Cluster
from tests.statemachines.test_histories import long_history
from tests.statemachines.tour import tour
from tests.statemachines.world import CELL, World

FOLDER: Final = Path(__file__).parent / "golden"
LOGS: Final[dict[str, Callable[[], World]]] = {
    "tour": tour,  # Every kind of fact.
    "history-7": lambda: long_history(7),  # Many leaders, retries and late records.
}


def write(path: Path, stored: list[bytes]) -> None:
    """Each record behind its length, as u32 big-endian."""
    path.write_bytes(b"".join(struct.pack(">I", len(each)) + each for each in stored))


def read(path: Path) -> list[bytes]:
    """The stored records, in order."""
    data, at, stored = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        stored.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return stored


def fold(path: Path) -> dict[str, Any]:
    """What the log says, all in plain values."""
    cluster = Cluster(CELL)
    stored = read(path)
    for offset, record in enumerate(stored):
        cluster.fold(codec.decode_entry(offset, record))
    return {
        "records": len(stored),
        "void": cluster.voided,
        "facts": cluster.facts,
        "head": cluster.head.hex(),
        "state_digest": {str(FOLD_VERSION): snapshot.digest(cluster).hex()},
    }


def record() -> None:
    """Write what is missing, and nothing else."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in LOGS.items():
        log, told = FOLDER / f"{name}.bin", FOLDER / f"{name}.json"
        if not log.exists():
            write(log, make().stored)
        folded = fold(log)
        if told.exists():
            known = json.loads(told.read_text())["state_digest"]
            folded["state_digest"] |= known
        told.write_text(json.dumps(folded, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record()
    else:
        print(json.dumps(fold(Path(sys.argv[2]))))
