"""Metrics of a scheduler: what it decides, counted as entries are read back; what the cell holds, read at each scrape.

State gauges are served by standbys too. No job or node id is a label.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.scheduler.core import Step
from services.scheduler.duetimes import STOP_OVERDUE
from statemachines import facts
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.values import Outcome

_STEP_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WAIT_S: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600)
_LOAD_BEARING: Final = frozenset({Outcome.FAILED, Outcome.LOST, Outcome.STOPPED})


class Metrics:
    """Counters and histograms of one scheduler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"tidemill_{name}", what, labels, registry=registry)

        self.leader = Gauge("tidemill_leader", "1 while this process leads", registry=registry)
        self.decision_seconds = Histogram(
            "tidemill_decision_seconds",
            "Time of one leader step",
            buckets=_STEP_S,
            registry=registry,
        )
        self.queue_wait_seconds = Histogram(
            "tidemill_queue_wait_seconds",
            "From queued to placed",
            ["queue"],
            buckets=_WAIT_S,
            registry=registry,
        )
        self.inputs = counter("inputs", "Inputs decided")
        self.ignored = counter("ignored_inputs", "Inputs that changed nothing", "why")
        self.parked = counter("parked_inputs", "Inputs that could not be decided", "topic")
        self.entries = counter("log_entries", "Entries accepted")
        self.voids = counter("void_entries", "Records that changed nothing", "why")
        self.facts = counter("facts", "Facts recorded", "fact")
        self.placements = counter("placements", "Gangs placed")
        self.ended = counter("attempts_ended", "Attempts ended", "outcome", "cause", "next")
        self.lost_gpu_seconds = counter(
            "gpu_seconds_lost", "Device time whose work has to be done again", "cause", "queue"
        )
        self.overdue = counter("stops_overdue", "Attempts that outlived their stop")
        self.weather = counter("weather", "Failures that were tried again", "what")
        self.lag = Gauge(
            "tidemill_input_lag_records", "Inputs not decided yet", ["topic"], registry=registry
        )
        self._began = 0.0

    def begins(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def decided(self, step: Step, inputs: int) -> None:
        """A step was decided."""
        self.decision_seconds.observe(time.perf_counter() - self._began)
        self.inputs.inc(inputs)
        for why, count in step.weather.items():
            self.ignored.labels(why).inc(count)

    def accepted(self, entry: Entry, cluster: Cluster) -> None:
        """An entry of ours is in the log; the cluster has folded it, and maybe more."""
        self.entries.inc()
        counts = Counts(type(each.fact).__name__ for each in entry.facts)
        for name, count in counts.items():
            self.facts.labels(name).inc(count)
        for recorded in entry.facts:
            match recorded.fact:
                case facts.GangPlaced() as fact:
                    self._placed(fact, cluster, entry.at_ms)
                case facts.AttemptEnded() as fact:
                    self._ended(fact, cluster, entry.at_ms)
                case facts.InputParked(topic=topic):
                    self.parked.labels(topic).inc()
                case facts.JobWaiting(reason=reason) if reason.code == STOP_OVERDUE:
                    self.overdue.inc()
                case _:
                    pass

    def _placed(self, fact: facts.GangPlaced, cluster: Cluster, at_ms: int) -> None:
        self.placements.inc()
        job = cluster.jobs.get(fact.job)
        if job is not None and job.attempt == fact.attempt:
            waited_ms = max(0, at_ms - max(job.queued_at_ms, job.not_before_ms))
            self.queue_wait_seconds.labels(job.spec.queue).observe(waited_ms / 1000)

    def _ended(self, fact: facts.AttemptEnded, cluster: Cluster, at_ms: int) -> None:
        self.ended.labels(fact.outcome, fact.cause, fact.next).inc()
        job, attempt = cluster.jobs.get(fact.job), cluster.find_attempt(fact.job, fact.attempt)
        if job is None or attempt is None or fact.outcome not in _LOAD_BEARING:
            return
        durable = cluster.newest_durable(fact.job)
        kept_ms = durable.saved_at_ms if durable is not None else 0
        lost_ms = max(0, at_ms - max(attempt.placed_at_ms, kept_ms))
        self.lost_gpu_seconds.labels(fact.cause, job.spec.queue).inc(
            job.spec.devices * lost_ms / 1000
        )


class CellCollector(Collector):
    """State of the cell as this process knows it. Copies each table in one go: the scrape is another thread."""

    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, from the present fold."""
        cluster = self._cluster()
        yield GaugeMetricFamily("tidemill_term", "The log's term", value=cluster.term)
        yield GaugeMetricFamily("tidemill_fold_offset", "Last record folded", value=cluster.offset)
        incident = 0 if cluster.incident is None else 1
        yield GaugeMetricFamily("tidemill_incident", "1 while the breaker is open", value=incident)
        yield GaugeMetricFamily(
            "tidemill_answers", "Answers remembered", value=len(cluster.answers)
        )
        jobs = GaugeMetricFamily(
            "tidemill_jobs", "Jobs of a queue and those below it", labels=["state", "queue"]
        )
        for queue, usage in list(cluster.queue_usage.items()):
            for state, count in list(usage.states.items()):
                jobs.add_metric([state, queue], count)
        yield jobs
        yield _count("tidemill_nodes", "Nodes", ["state", "service"], _nodes(cluster))
        yield _count("tidemill_gpus", "Devices", ["state", "model"], _gpus(cluster))


def _nodes(cluster: Cluster) -> Counts[tuple[str, str]]:
    return Counts((node.state, node.service) for node in list(cluster.nodes.values()))


def _gpus(cluster: Cluster) -> Counts[tuple[str, str]]:
    counts: Counts[tuple[str, str]] = Counts()
    for node in list(cluster.nodes.values()):
        usage = cluster.usage.get(node.id)
        held = set(usage.holders) if usage is not None else set()
        for device in node.devices:
            state = "held" if device.spec.index in held else device.state
            counts[state, device.spec.model] += 1
    return counts


def _count(
    name: str, what: str, labels: list[str], counts: Counts[tuple[str, str]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for key, count in sorted(counts.items()):
        family.add_metric(key, count)
    return family
