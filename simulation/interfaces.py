"""What a simulated host's interfaces count and run at: the agent's real windows over what grows there by faults.

A host is looked at from its first such fault on, so a history without one is what it was before there were any. What is
found is told as the agent would tell it, and nothing while its agent is away.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from services.agent.core import AgentCore
from services.agent.counters import Counters, Reading, parse
from services.agent.monitor import COUNTERS_EVERY_S
from simulation.kernel import US_PER_S, Kernel
from simulation.nodes import RATE_MBPS, Host
from statemachines.values import NicSpec
from tidemill.v1 import telemetry_pb2

_EVERY_US: Final = int(COUNTERS_EVERY_S * US_PER_S)
_TABLE: Final = parse(
    resources.files("services.agent").joinpath("counters.toml").read_text(encoding="utf-8"),
    "counters.toml",
)


class Interfaces:
    """Of one host, which beats time for itself."""

    def __init__(self, kernel: Kernel, host: Host) -> None:
        self._kernel, self._host = kernel, host
        self._grows: dict[str, dict[str, int]] = {name: {} for name in host.links}
        self._counts: dict[str, dict[str, int]] = {name: {} for name in host.links}
        self._rates = dict.fromkeys(host.links, RATE_MBPS)
        self._looked_us = kernel.now_us
        self._agent: AgentCore | None = None
        self._attached = False
        self._look()

    def grow(self, nic: str, counter: str, per_s: int) -> None:
        """A counter grows by so many a second from now on; 0: no more."""
        self._count()
        self._grows[nic][counter] = per_s
        self._counts[nic].setdefault(counter, 0)

    def run_at(self, nic: str, mbps: int) -> None:
        """An interface has another rate from now on."""
        self._rates[nic] = mbps

    def mend(self) -> None:
        """Nothing grows, and all run at full rate."""
        self._count()
        self._grows = {name: {} for name in self._grows}
        self._rates = dict.fromkeys(self._rates, RATE_MBPS)

    def _count(self) -> None:
        passed_us = self._kernel.now_us - self._looked_us
        self._looked_us = self._kernel.now_us
        for nic, grows in self._grows.items():
            for counter, per_s in grows.items():
                self._counts[nic][counter] += per_s * passed_us // US_PER_S

    def _look(self) -> None:
        """As the agent's monitor does: another agent begins anew, another stream is told all."""
        self._count()
        host, core = self._host, self._host.core
        if core is not self._agent:
            self._agent = core
            specs = [NicSpec(name, RATE_MBPS, kind="infiniband") for name in host.links]
            self._counters = Counters(_TABLE, specs)
        attached = core is not None and core.attached and not host.paused
        if attached and not self._attached:
            self._counters.say_again()
        self._attached = attached
        if attached:
            for crossing in self._counters.judge(self._readings(), self._kernel.now_ms):
                host.signal(
                    telemetry_pb2.SIGNAL_KIND_NIC_COUNTER, nic=crossing.nic, code=crossing.code
                )
        self._kernel.after(_EVERY_US, self._look)

    def _readings(self) -> list[Reading]:
        return [
            Reading(name, self._rates[name] if up else 0, dict(self._counts[name]))
            for name, up in self._host.links.items()
        ]
