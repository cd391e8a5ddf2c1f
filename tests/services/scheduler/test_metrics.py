"""Metrics: what was decided is counted from accepted entries, and what the cell holds is read from the fold."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.scheduler.duetimes import OVERDUE_MS
from services.scheduler.metrics import CellCollector, Metrics
from tests.services.scheduler.cell import POLICY, Cell, spec
from tidemill.v1 import requests_pb2, verdicts_pb2


class Counted:
    """A cell whose every entry is counted as it is read back."""

    def __init__(self) -> None:
        self.cell = Cell()
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.registry.register(CellCollector(lambda: self.cell.cluster))

    def step(self, *, after_ms: int = 0) -> None:
        before = len(self.cell.steps)
        self.cell.step(after_ms=after_ms)
        for step in self.cell.steps[before:]:
            self.metrics.begins()
            self.metrics.decided(step, 1)
            for sealed in step.sealed:
                self.metrics.accepted(sealed.entry, self.cell.cluster)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"tidemill_{name}", labels)


def test_device_time_lost_counts_from_the_last_durable_checkpoint() -> None:
    counted = Counted()
    cell = counted.cell
    cell.attach("n1")
    cell.submit("a", spec(devices=4))
    counted.step()
    cell.began("a.1.0")
    counted.step(after_ms=10_000)
    cell.saved("a", 10)
    counted.step(after_ms=10_000)
    cell.ended("a.1.0", signal=9)
    counted.step(after_ms=5_000)
    assert counted.value("gpu_seconds_lost_total", cause="program_failed", queue="default") == 20.0
    ended = {"outcome": "failed", "cause": "program_failed", "next": "queued"}
    assert counted.value("attempts_ended_total", **ended) == 1.0


def test_decisions_are_counted_by_fact_and_ignored_inputs_by_why() -> None:
    counted = Counted()
    cell = counted.cell
    cell.attach("n1")
    cell.raw("requests", b"\xff")
    cell.gone("n9")
    cell.submit("a")
    counted.step()
    assert counted.value("facts_total", fact="NodeJoined") == 1.0
    assert counted.value("placements_total") == 1.0
    assert counted.value("parked_inputs_total", topic="requests") == 1.0
    assert counted.value("ignored_inputs_total", why="unknown_node") == 1.0
    assert counted.value("queue_wait_seconds_count", queue="default") == 1.0
    assert counted.value("decision_seconds_count") == 1.0


def test_a_stop_that_is_overdue_is_counted() -> None:
    counted = Counted()
    cell = counted.cell
    cell.attach("n1")
    cell.submit("a")
    counted.step()
    cell.ask(requests_pb2.CancelJob(job="a"))
    counted.step()
    counted.step(after_ms=POLICY.grace_ms + OVERDUE_MS)
    assert counted.value("stops_overdue_total") == 1.0


def test_the_state_of_the_cell_is_shown_whoever_leads() -> None:
    counted = Counted()
    cell = counted.cell
    cell.attach("n1", devices=3)
    cell.attach("n2", devices=1)
    cell.submit("a")
    cell.verdict(verdicts_pb2.NodeSuspect(node="n2", incarnation=1))
    cell.verdict(verdicts_pb2.MassSilence(incident="i"))
    counted.step()
    assert counted.value("jobs", state="starting", queue="default") == 1.0
    assert counted.value("nodes", state="suspect", service="in_service") == 1.0
    assert counted.value("gpus", state="held", model="H100") == 1.0
    assert counted.value("gpus", state="healthy", model="H100") == 3.0
    assert (counted.value("term"), counted.value("incident")) == (1.0, 1.0)
