"""Cells to measure, on the embedded log or on real Kafka and etcd, with simulated nodes on one stream.

Everything runs on this machine beside the load that measures it; figures say so by being of whole processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from services.runtime.settings import CellSettings
from services.runtime.trial import TrialCell
from services.runtime.trial_kafka import KafkaTrialCell
from simulation.fleet import NodeShape

# Says little, so that logging is not what is measured.
_QUIET: Final = ("--log-level", "warning")


class MeasuredCell(TrialCell):
    """On the embedded log."""

    def __init__(self, *, agents: int = 0, flags: Sequence[str] = ()) -> None:
        super().__init__("bench", agents=agents, flags=(*_QUIET, *flags))


class MeasuredKafkaCell(KafkaTrialCell):
    """On brokers and etcd members that run."""

    def __init__(self, *, kafka: str, etcd: str, flags: Sequence[str] = ()) -> None:
        super().__init__("bench", kafka=kafka, etcd=etcd, flags=(*_QUIET, *flags))


def log_argument(parser: argparse.ArgumentParser) -> None:
    """The option of benchmarks that run on either log."""
    parser.add_argument(
        "--log",
        choices=("embedded", "kafka"),
        default="embedded",
        help="kafka: brokers and etcd of TIDEMILL_KAFKA and TIDEMILL_ETCD, else three of each started for it",
    )


@contextlib.contextmanager
def stack() -> Iterator[tuple[str, str]]:
    """Addresses of Kafka and etcd: those of the environment, or of a stack that lasts as long as the block."""
    kafka, etcd = os.environ.get("TIDEMILL_KAFKA"), os.environ.get("TIDEMILL_ETCD")
    if kafka and etcd:
        yield kafka, etcd
        return
    from compose.local.stack import Stack

    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-stack-") as folder,
        Stack.open(Path(folder) / "stack") as started,
    ):
        yield started.layout.bootstrap, started.layout.endpoints


@contextlib.contextmanager
def measured(log: str, flags: Sequence[str] = ()) -> Iterator[TrialCell]:
    """A cell on either log, up inside the block."""
    if log == "embedded":
        with MeasuredCell(flags=flags) as cell:
            yield cell
        return
    with stack() as (kafka, etcd), MeasuredKafkaCell(kafka=kafka, etcd=etcd, flags=flags) as cell:
        yield cell


@contextlib.contextmanager
def storage(log: str) -> Iterator[CellSettings]:
    """Where a log can be written and read, without any service."""
    if log == "embedded":
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as directory:
            yield CellSettings(cell="bench", directory=directory)
        return
    with stack() as (kafka, etcd), contextlib.ExitStack() as closing:
        cell = MeasuredKafkaCell(kafka=kafka, etcd=etcd)
        closing.push(cell.__exit__)
        cell.prepare()
        yield cell.settings


def attach(cell: TrialCell, shapes: Sequence[NodeShape]) -> None:
    """Attach simulated nodes, and wait until all are ready."""
    file = cell.directory / "fleet.json"
    file.write_bytes(msgspec.json.encode(list(shapes)))
    cell.spawn(
        "fleet", "simulation.fleet", "--gateway", cell.address, "--token-file", str(cell.node_token), "--nodes", str(file)
    )  # fmt: skip
    with cell.client() as client:
        cell.until("the fleet to join", lambda: client.cell().nodes_ready >= len(shapes))
