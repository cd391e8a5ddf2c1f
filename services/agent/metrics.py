"""What an agent shows of itself: runs by phase, reports that wait, how long it has been cut off. Reads the core only."""

from __future__ import annotations

from collections import Counter as Count

from prometheus_client import Counter, Gauge

from services.agent.core import AgentCore
from services.agent.outbox import RunFinished
from services.agent.table import Phase
from services.runtime.telemetry import Telemetry


class AgentMetrics:
    """`observe` is called after every event."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._health = telemetry.health
        registry = telemetry.registry
        self._attached = Gauge(
            "tidemill_agent_attached",
            "1 while a gateway has welcomed this node.",
            registry=registry,
        )
        self._stored = Gauge(
            "tidemill_agent_storage_ok", "1 while the state can be stored.", registry=registry
        )
        self._runs = Gauge(
            "tidemill_agent_runs", "Runs in the table.", ["phase"], registry=registry
        )
        self._waiting = Gauge(
            "tidemill_agent_reports_waiting", "Reports not yet acknowledged.", registry=registry
        )
        self._renewed = Gauge(
            "tidemill_agent_renewed_boottime_seconds",
            "CLOCK_BOOTTIME of the newest acknowledged beat.",
            registry=registry,
        )
        self._ends = Counter(
            "tidemill_agent_run_ends", "Runs that ended.", ["evidence"], registry=registry
        )
        self._said = 0
        telemetry.health.ready()

    def observe(self, core: AgentCore) -> None:
        """Show the state as it is now."""
        self._attached.set(core.attached)
        self._stored.set(core.storage_ok)
        phases = Count(entry.phase for entry in core.table.values())
        for phase in Phase:
            self._runs.labels(phase).set(phases[phase])
        self._waiting.set(len(core.outbox))
        self._renewed.set(core.lease.renewed.boot_ms / 1000)
        self._show("gateway", core.attached, "not attached to a gateway; runs go on")
        self._show("storage", core.storage_ok, "the state directory cannot be written; make space")
        for report in core.outbox.waiting():
            if report.sequence > self._said:
                self._said = report.sequence
                if isinstance(report.kind, RunFinished):
                    self._ends.labels(report.kind.evidence).inc()

    def _show(self, what: str, good: bool, why: str) -> None:  # noqa: FBT001 - the condition itself
        if good:
            self._health.ready(what)
        else:
            self._health.wait(what, why)
