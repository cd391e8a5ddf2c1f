"""Metrics and log lines of the health processor. No node or job id is a label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.health.judge import Judge
from services.health.messages import JobHung, MassSilence, NodeGone, NodeSlow, NodeUnfit, Verdict
from services.runtime.ports import InputGapError, PortError
from services.runtime.telemetry import Telemetry

# What a person should see.
_LOUD: Final = (NodeGone, MassSilence, NodeUnfit, NodeSlow, JobHung)
# (name, what it is, value) of each.
Gauges = Callable[[], Iterable[tuple[str, str, float]]]


class Observer:
    """A Watch on one judge; `attach` it once the judge is made."""

    def __init__(self, telemetry: Telemetry) -> None:
        def counter(name: str, what: str, label: str) -> Counter:
            return Counter(f"tidemill_{name}", what, [label], registry=telemetry.registry)

        self._telemetry = telemetry
        self._log = telemetry.log
        self._observed = counter("telemetry", "Beats, signals and steps observed", "topic")
        self._unreadable = counter("telemetry_unreadable", "Records that were dropped", "topic")
        self._skipped = counter("telemetry_skipped", "Records gone before they were read", "topic")
        self._verdicts = counter("verdicts", "Verdicts, repeats included", "verdict")
        self._weather = counter("weather", "Failures that were tried again", "what")

        self._refused = counter(
            "progress_refused", "Records of progress without a good proof", "why"
        )

    def refused(self, why: str) -> None:
        """A record of progress was not believed."""
        self._refused.labels(why).inc()
        self._log.debug("progress_refused", why=why)

    def attach(self, judge: Judge, gauges: Gauges = tuple) -> None:
        """Say how it recovered, and serve what it watches; `gauges` are those of its host."""
        recovered, cluster = judge.recovered, judge.cluster
        for why in recovered.passed_over:
            self._log.warning("snapshot_passed_over", why=why)
        self._log.info(
            "recovered", offset=cluster.offset, term=cluster.term, records=recovered.records
        )
        self._telemetry.registry.register(_Watched(judge, gauges))
        self._telemetry.health.ready()

    # --- Watch

    def observed(self, topic: str, count: int) -> None:
        self._observed.labels(topic).inc(count)

    def unreadable(self, topic: str, why: str) -> None:
        self._unreadable.labels(topic).inc()
        self._log.debug("telemetry_unreadable", topic=topic, why=why)

    def skipped(self, gap: InputGapError) -> None:
        records = max(
            0, gap.oldest - gap.position
        )  # None is known to be lost of a topic made anew.
        self._skipped.labels(gap.topic).inc(records)
        self._log.warning("telemetry_skipped", topic=gap.topic, records=records)

    def judged(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            name = type(verdict).__name__
            self._verdicts.labels(name).inc()
            fields = {each: getattr(verdict, each) for each in verdict.__struct_fields__}
            say = self._log.warning if isinstance(verdict, _LOUD) else self._log.info
            say("verdict", verdict=name, **fields)

    # --- the shell

    def turned(self) -> None:
        """A turn went well."""
        self._telemetry.health.ready("weather")

    def failing(self, error: PortError) -> None:
        """A turn failed: not ready until one goes well again."""
        self._weather.labels("turn").inc()
        self._log.warning("weather", what="turn", error=str(error))
        self._telemetry.health.wait("weather", str(error))

    def ended(self, error: BaseException, code: int) -> None:
        """The process ends."""
        self._log.error("health_ends", code=code, why=str(error) or type(error).__name__)


class _Watched(Collector):
    """What is watched now, read at each scrape."""

    def __init__(self, judge: Judge, gauges: Gauges) -> None:
        self._judge = judge
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges."""
        detector = self._judge.detector
        for name, what, value in (
            ("health_nodes_watched", "Nodes that are not lost", detector.silence.watched),
            ("health_nodes_silent", "Of those, silent", detector.silence.silent),
            ("health_attempts_watched", "Attempts that run", detector.progress.watched),
            (
                "health_stragglers",
                "Members that work for longer than others of their gangs",
                detector.stragglers.found,
            ),
            (
                "health_incident",
                "1 during mass silence or congestion",
                int(bool(detector.silence.incident)),
            ),
            (
                "health_nodes_congested",
                "Nodes that tell of a congested fabric",
                detector.parts.congested_nodes,
            ),
            ("health_path_heard", "1 once a gateway was heard", int(detector.path_heard)),
            ("health_own_stalls", "Times that we did not look", detector.stalls),
            ("health_path_returns", "Times that gateways were heard again", detector.restarts),
            ("fold_offset", "Last record folded", self._judge.cluster.offset),
            *self._gauges(),
        ):
            yield GaugeMetricFamily(f"tidemill_{name}", what, value=value)
