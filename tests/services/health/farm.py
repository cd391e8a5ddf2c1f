"""A cell on a real broker for health workers as processes: a log, nodes that beat through a gateway, a leader that records.

The gateway and the leader here are threads of the test and the least that a worker needs; the workers are the real ones.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.runtime import topics
from services.runtime.ports import Outgoing, PortError
from statemachines.facts import (
    BreakerClosed,
    BreakerOpened,
    Fact,
    NodeJoined,
    NodeLost,
    NodeRecovered,
    NodeSuspected,
)
from statemachines.values import NodeId
from tests.fixtures.kafka_cell import KafkaCell
from tests.services.runtime.write import Writer
from tests.statemachines.world import inventory
from tidemill.v1 import telemetry_pb2, verdicts_pb2

BEAT_S: Final = 2.0
BATCH_S: Final = 0.25
PATIENCE_S: Final = 90.0


class Worker:
    """A process of `tidemilld health`."""

    def __init__(self, cell: KafkaCell, folder: Path, name: str, *flags: str) -> None:
        self._output = folder / f"{name}.log"
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "services.health", "--cell", cell.settings.cell, "--log", "kafka",
                    "--kafka", cell.settings.bootstrap, "--directory", str(folder), "--name", name,
                    "--log-format", "json", *flags,
                ],
                stderr=output,
            )  # fmt: skip

    def said(self) -> list[dict[str, object]]:
        lines = self._output.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def gauge(self, name: str) -> float:
        """A number of its metrics page; -1 while there is none."""
        address = next(
            (line["address"] for line in self.said() if line["event"] == "monitor_listens"), None
        )
        if address is None:
            return -1
        try:
            connection = http.client.HTTPConnection(str(address), timeout=10)
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        except OSError:
            return -1
        values = [line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")]
        return float(values[0]) if values else -1

    @property
    def active(self) -> bool:
        """The cell is judged here, and a gateway has been heard."""
        return self.gauge("tidemill_health_active") == self.gauge("tidemill_health_path_heard") == 1

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Farm:
    """Nodes n0, n1 ...; `deaf` ones are not heard; `lost` says when each was called gone."""

    def __init__(self, cell: KafkaCell, nodes: int) -> None:
        self.cell = cell
        self.nodes = [f"n{i}" for i in range(nodes)]
        self.silent: set[str] = set()
        self.lost: dict[str, float] = {}
        self.verdicts: list[verdicts_pb2.Verdict] = []
        self.deaf = threading.Event()  # The gateway stands still.
        self.storm = False  # Batches come twice and out of order.
        self._writer = Writer(cell.log(), cell=cell.settings.cell)
        self._states: dict[str, str] = dict.fromkeys(self.nodes, "ready")
        self._incident = ""
        self._closing = threading.Event()
        self._failed: list[BaseException] = []
        self._begin()

    def _begin(self) -> None:
        self._writer.open_term()
        bare = inventory(0)
        self._writer.append([NodeJoined(NodeId(name), 1, bare) for name in self.nodes])
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._beat, self._lead)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        assert self._failed == []

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - shown when the test ends
            self._failed.append(error)

    # --- what happens

    def die(self, *names: str) -> float:
        self.silent |= set(names)
        return time.monotonic()

    def named(self, kind: str) -> set[str]:
        """Nodes that verdicts of the kind were about."""
        return {
            getattr(each, kind).node for each in self.verdicts if each.WhichOneof("kind") == kind
        }

    def until(self, what: str, holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        ends = time.monotonic() + within_s
        while not holds():
            assert not self._failed, self._failed
            assert time.monotonic() < ends, f"waited in vain for {what}"
            time.sleep(0.05)

    # --- the gateway

    def _beat(self) -> None:
        publisher = self.cell.publisher()
        partitions = len(self.cell.admin.list_topics().topics[self.cell.name("beats")].partitions)
        due = {name: i % 8 * BATCH_S for i, name in enumerate(self.nodes)}
        began = time.monotonic()
        while not self._closing.wait(BATCH_S):
            if self.deaf.is_set():
                continue
            now = time.monotonic() - began
            beating = [name for name in self.nodes if due[name] <= now]
            due.update(dict.fromkeys(beating, now + BEAT_S))
            batches = [
                Outgoing("beats", b"", self._batch(beating, partition, partitions), partition)
                for partition in range(partitions)
            ]
            try:
                publisher.publish(batches[::-1] * 2 if self.storm else batches)
            except PortError:  # The broker is frozen; beats are lost, as a gateway would lose them.
                continue

    def _batch(self, beating: list[str], partition: int, partitions: int) -> bytes:
        beats = [
            telemetry_pb2.Beat(node=name, incarnation=1)
            for name in beating
            if name not in self.silent
            and topics.partition_of(name.encode(), partitions) == partition
        ]
        return telemetry_pb2.BeatBatch(gateway="g", beats=beats).SerializeToString()

    # --- the leader

    def _lead(self) -> None:
        inputs = self.cell.inputs()
        position = 0
        while not self._closing.is_set():
            try:
                records = inputs.read({("verdicts", 0): position}, limit=100, timeout_s=0.2)
                for record in records:
                    self._decide(verdicts_pb2.Verdict.FromString(record.value))
                    position = record.offset + 1
            except PortError:
                continue

    def _decide(self, verdict: verdicts_pb2.Verdict) -> None:
        self.verdicts.append(verdict)
        facts = list(self._facts(verdict))
        if facts:
            self._writer.append(facts)

    def _facts(self, verdict: verdicts_pb2.Verdict) -> Iterator[Fact]:
        kind = verdict.WhichOneof("kind")
        said = getattr(verdict, str(kind))
        match kind, self._states.get(getattr(said, "node", "")):
            case "node_suspect", "ready":
                self._states[said.node] = "suspect"
                yield NodeSuspected(NodeId(said.node), said.silent_ms)
            case "node_back", "suspect":
                self._states[said.node] = "ready"
                yield NodeRecovered(NodeId(said.node))
            case "node_gone", "ready" | "suspect":
                self._states[said.node] = "lost"
                self.lost[said.node] = time.monotonic()
                yield NodeLost(NodeId(said.node), 1, said.message)
            case "mass_silence", _ if not self._incident:
                self._incident = said.incident
                yield BreakerOpened(said.incident, said.message, said.nodes)
            case "silence_over", _ if self._incident:
                self._incident = ""
                yield BreakerClosed(said.incident)


@contextmanager
def farm(cell: KafkaCell, nodes: int) -> Iterator[Farm]:
    made = Farm(cell, nodes)
    try:
        yield made
    finally:
        made.close()
