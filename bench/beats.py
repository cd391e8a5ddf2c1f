"""Nodes that one health worker carries at one beat every two seconds, brought to it through the broker or the file.

For each number of nodes: a cell whose log knows them, the real worker as a process, and batches of beats as gateways
write them. A number is carried when the worker fell no further behind within the window, could judge at most
looks, and called nobody silent. The feeder has its batches ready, so that it takes little of the machine; the broker runs beside the worker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import _history as history
from bench._cell import log_argument
from bench.registry import Measured, at_least
from services.health.host import TURN_S
from services.runtime import topics
from services.runtime.ports import Outgoing
from services.runtime.settings import CellSettings
from services.runtime.topic_admin import Declared, apply
from services.runtime.wiring import open_cell, open_topic_admin
from statemachines.facts import NodeJoined
from statemachines.values import Inventory, NodeId
from tidemill.v1 import telemetry_pb2

_NODES: Final = {
    "small": (12_500, 50_000),
    "full": (12_500, 50_000, 100_000, 200_000, 300_000, 400_000),
}
_WINDOW_S: Final = {"small": 6.0, "full": 15.0}
_BEAT_S: Final = 2.0
_BATCH_S: Final = 0.1
_SLOTS: Final = int(_BEAT_S / _BATCH_S)
# As a gateway: a full batch does not wait.
_BATCH_BEATS: Final = 2_000
_PARTITIONS: Final = 4
_BEHIND_S: Final = 1.0
_HELD_BACK: Final = 0.5
_SAMPLES: Final = 20
_SAMPLE_S: Final = 0.1
_READY_WITHIN_S: Final = 120.0
_BAR_NODES: Final = 50_000
_BEATS: Final = 'tidemill_telemetry_total{topic="beats"}'
_HELD: Final = "tidemill_health_turns_held_back"


class Carried(msgspec.Struct, frozen=True):
    """One number of nodes. `cpu` is of one core.

    `fell_behind_s`: how much later than at the beginning of the window beats were observed at its end. `held_back`: the
    share of looks at which so much was on its way that nobody could be judged.
    """

    nodes: int
    beats_per_s: float
    cpu: float
    fell_behind_s: float
    held_back: float
    verdicts: float
    rss_mib: float

    @property
    def well(self) -> bool:
        """Whether the worker kept up."""
        behind = self.fell_behind_s > _BEHIND_S or self.held_back > _HELD_BACK
        return not behind and self.verdicts == 0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    log_argument(parser)
    parser.add_argument("--nodes", type=int, help="only this many nodes (default: more and more)")


def run(options: argparse.Namespace) -> Measured:
    """More and more nodes, until the worker no longer keeps up."""
    steps = (options.nodes,) if options.nodes else _NODES[options.scale]
    best: Carried | None = None
    tried: list[Carried] = []
    with _brokers(options.log) as kafka:
        for nodes in steps:
            tried.append(_measure(kafka, nodes, _WINDOW_S[options.scale]))
            print(f"beats: {tried[-1]}", file=sys.stderr)
            if not tried[-1].well:
                break
            best = tried[-1]
    figures: dict[str, object] = {"tried": [msgspec.to_builtins(each) for each in tried]}
    if best is not None:
        figures |= {
            "nodes_per_worker": best.nodes,
            "beats_per_s": round(best.beats_per_s),
            "cpu_percent": round(best.cpu * 100, 1),
            "rss_mib": round(best.rss_mib),
        }
    at_bar = [each for each in tried if each.nodes == _BAR_NODES]
    if at_bar:
        figures["cpu_percent_50000_nodes"] = round(at_bar[0].cpu * 100, 1)
    return Measured(
        figures,
        bars={"nodes_per_worker": at_least(best.nodes if best else 0, _BAR_NODES)},
        params={
            "host": "faust" if kafka else "loop",
            "partitions": _PARTITIONS if kafka else 1,
            "beat_s": _BEAT_S,
            "batch_ms": int(_BATCH_S * 1000),
        },
    )


@contextlib.contextmanager
def _brokers(log: str) -> Iterator[str]:
    """Addresses of brokers; empty for the embedded log."""
    given = os.environ.get("TIDEMILL_KAFKA", "")
    if log == "embedded" or given:
        yield given if log == "kafka" else ""
        return
    from compose.local.stack import Stack

    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-stack-") as folder,
        Stack.open(Path(folder) / "stack", brokers=1, etcd=0) as started,
    ):
        yield started.layout.bootstrap


# --- one number of nodes


def _measure(kafka: str, nodes: int, window_s: float) -> Carried:
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-beats-") as folder,
        _cell(kafka, Path(folder)) as settings,
    ):
        _record(settings, nodes)
        sent = multiprocessing.get_context("spawn").Value("q", 0)
        with _worker(settings, Path(folder)) as worker, _feeder(settings, nodes, sent):
            worker.until_active()
            time.sleep(2 * _BEAT_S)  # What waited while it began has been observed.
            return _window(worker, sent, nodes, window_s)


def _window(worker: _Worker, sent: Synchronized[int], nodes: int, window_s: float) -> Carried:
    lead = _lead(worker, sent)
    began_s, began, cpu_s = time.monotonic(), worker.gauges(), worker.cpu_s()
    time.sleep(window_s)
    took_s, cpu_s, now = time.monotonic() - began_s, worker.cpu_s() - cpu_s, worker.gauges()
    lead -= _lead(worker, sent)
    verdicts = sum(value for key, value in now.items() if key.startswith("tidemill_verdicts_total"))
    held_back = now.get(_HELD, 0.0) - began.get(_HELD, 0.0)
    return Carried(
        nodes,
        beats_per_s=round((now[_BEATS] - began[_BEATS]) / took_s, 1),
        cpu=round(cpu_s / took_s, 4),
        fell_behind_s=round(lead / (nodes / _BEAT_S), 2),
        held_back=round(held_back / (took_s / TURN_S), 3),
        verdicts=verdicts,
        rss_mib=round(now["process_resident_memory_bytes"] / (1 << 20), 1),
    )


def _lead(worker: _Worker, sent: Synchronized[int]) -> float:
    """Beats observed less those written, at the best moment of a few: batches are on their way at any other."""

    def now() -> float:
        written = sent.value
        return worker.gauges().get(_BEATS, 0.0) - written

    samples = []
    for _ in range(_SAMPLES):
        samples.append(now())
        time.sleep(_SAMPLE_S)
    return max(samples)


@contextlib.contextmanager
def _cell(kafka: str, folder: Path) -> Iterator[CellSettings]:
    """A cell of its own, with its topics."""
    if not kafka:
        yield CellSettings(cell="bench", directory=str(folder), log="embedded")
        return
    settings = CellSettings(
        cell=f"bench-{secrets.token_hex(4)}", directory=str(folder), log="kafka", kafka=kafka
    )
    admin = open_topic_admin(settings)
    said: list[str] = []
    partitions = {topics.BEATS.suffix: _PARTITIONS}
    if not apply(admin, Declared(settings.cell, 1, partitions), said.append):
        raise RuntimeError("\n".join(said))
    try:
        yield settings
    finally:
        admin.delete([topic.name(settings.cell) for topic in topics.TOPICS.values()])


def _record(settings: CellSettings, nodes: int) -> None:
    with contextlib.ExitStack() as closing:
        cell = open_cell(settings)
        closing.callback(cell.close)
        log = cell.event_log()
        closing.callback(log.close)
        recorder = history.Recorder(log, cell=settings.cell, consumes=False)
        for fact in history.opening(0):
            recorder.add(fact)
        bare = Inventory("10.0.0.1", 128_000, 1_024_000)
        for number in range(nodes):
            recorder.add(NodeJoined(_node(number), 1, bare))
        recorder.flush()


def _node(number: int) -> NodeId:
    return NodeId(f"node-{number:06d}")


# --- the worker


class _Worker:
    """The process that is measured."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    def gauges(self) -> dict[str, float]:
        """All numbers of its metrics page; empty before there is one."""
        lines = [line for line in self._output.read_text().splitlines() if line.startswith("{")]
        said = [json.loads(line) for line in lines]
        address = [line["address"] for line in said if line["event"] == "monitor_listens"]
        if not address:
            return {}
        with urllib.request.urlopen(f"http://{address[0]}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        pairs = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def cpu_s(self) -> float:
        """Time of all its threads, of user and system."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def until_active(self) -> None:
        """It judges: the partitions are its own, and a gateway was heard."""
        ends = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < ends:
            if self._process.poll() is not None:
                raise RuntimeError(f"the worker ended:\n{self._output.read_text()[-2000:]}")
            gauges = self.gauges()
            if (
                gauges.get("tidemill_health_path_heard") == 1
                and gauges.get("tidemill_health_active", 1) == 1
            ):
                return
            time.sleep(0.2)
        raise RuntimeError(
            f"the worker judged nobody within {_READY_WITHIN_S:g} s:\n{self._output.read_text()[-2000:]}"
        )


@contextlib.contextmanager
def _worker(settings: CellSettings, folder: Path) -> Iterator[_Worker]:
    output = folder / "health.log"
    flags = ["--cell", settings.cell, "--directory", str(folder), "--log", settings.log,
             "--kafka", settings.kafka, "--log-format", "json"]  # fmt: skip
    with output.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.health", *flags],
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield _Worker(process, output)
    finally:
        process.kill()
        process.wait()


# --- the gateways


@contextlib.contextmanager
def _feeder(settings: CellSettings, nodes: int, sent: Synchronized[int]) -> Iterator[None]:
    feeder = multiprocessing.get_context("spawn").Process(
        target=_feed, args=(settings, nodes, sent), daemon=True
    )
    feeder.start()
    try:
        yield
    finally:
        feeder.kill()
        feeder.join()


def _feed(settings: CellSettings, nodes: int, sent: Synchronized[int]) -> None:
    """Every batch at its time, for ever; a late one delays the next, never drops it."""
    cell = open_cell(settings)
    publisher: Any = cell.publisher()
    partitions = _PARTITIONS if settings.log == "kafka" else 1
    slots = [_slot(nodes, slot, partitions) for slot in range(_SLOTS)]
    due = time.monotonic()
    while True:
        for records, beats in slots:
            publisher.publish(records)
            sent.value += beats
            due += _BATCH_S
            time.sleep(max(0.0, due - time.monotonic()))


def _slot(nodes: int, slot: int, partitions: int) -> tuple[list[Outgoing], int]:
    """The records of one batch, and how many beats they carry: each node has one slot of the beat's period."""
    beating: list[list[telemetry_pb2.Beat]] = [[] for _ in range(partitions)]
    for number in range(slot, nodes, _SLOTS):
        node = _node(number)
        beat = telemetry_pb2.Beat(
            node=node, incarnation=1, sequence=number, at_ms=1_700_000_000_000
        )
        beating[topics.partition_of(node.encode(), partitions)].append(beat)
    records = [
        Outgoing(topics.BEATS.suffix, b"", _batch(beats[at : at + _BATCH_BEATS]), partition)
        for partition, beats in enumerate(beating)
        for at in range(0, len(beats), _BATCH_BEATS)
    ]
    return records, sum(map(len, beating))


def _batch(beats: list[telemetry_pb2.Beat]) -> bytes:
    return telemetry_pb2.BeatBatch(gateway="bench", beats=beats).SerializeToString()
