"""What is really so, whatever the cell believes: processes that live, devices they hold, links, storage.

Checked as it happens, so that a promise broken in the world is found though the log looks well. The cell knows none
of it but by reports.
"""

from __future__ import annotations

from collections.abc import Callable

from services.agent.orders import Order
from simulation.gateway import GatewayProcess
from simulation.kernel import Kernel
from simulation.training import Gang, Program, Rank, Reporter, Storage
from statemachines.values import RunId


class Physics:
    """Of all hosts: gangs, storage, devices held, starts."""

    def __init__(self, kernel: Kernel, gateways: list[GatewayProcess]) -> None:
        self.kernel = kernel
        self.storage = Storage()
        self.reporter = Reporter(kernel, gateways)
        self.programs: dict[str, Program] = {}
        self.gangs: dict[tuple[str, int], Gang] = {}
        self.held: dict[tuple[str, int], RunId] = {}
        self.starts: dict[RunId, int] = {}
        self.living: set[RunId] = set()
        self.alive: dict[str, dict[int, int]] = {}
        # Of hosts with links that are down: how many work, of how many.
        self.links: dict[str, tuple[int, int]] = {}
        # How long a step takes on hosts that are slow, in percent of what it should.
        self.slow: dict[str, int] = {}
        # What goes wrong on a host when a run has started there.
        self.flaws: dict[str, Callable[[Order], None]] = {}
        self.broken: list[str] = []

    def started(self, host: str, order: Order, exit_: Callable[[int, int], None]) -> None:
        """Processes of a run exist."""
        self._check_start(host, order)
        self.living.add(order.run)
        key = (order.job, order.attempt)
        if key not in self.gangs:
            program = self.programs[order.launch]
            self.gangs[key] = Gang(
                self.kernel, order, program, self.storage, self.reporter, self.slow
            )
        gang = self.gangs[key]
        gang.join(Rank(host, order, exit_))
        if host in self.links:
            up, of = self.links[host]
            gang.linked(host, up=up, of=of)
        if host in self.flaws:
            self.flaws[host](order)

    def _check_start(self, host: str, order: Order) -> None:
        run = order.run
        self.starts[run] = self.starts.get(run, 0) + 1
        if self.starts[run] > 1:
            self.broken.append(f"G: run {run} was started {self.starts[run]} times")
        for grant in order.devices:
            holder = self.held.setdefault((host, grant.index), run)
            if holder != run:
                self.broken.append(
                    f"A: device {grant.index} of {host} really serves {holder} and {run}"
                )
        attempts = self.alive.setdefault(order.job, {})
        attempts[order.attempt] = attempts.get(order.attempt, 0) + 1
        if not order.overlap_safe and len(attempts) > 1:
            self.broken.append(
                f"J: attempts {sorted(attempts)} of job {order.job} really run at once"
            )
        if order.resume.uri:
            really = self.storage.committed.get(order.resume.uri)
            if really is None or (really[0], really[2]) != (order.job, order.resume.step):
                self.broken.append(
                    f"E: {run} starts from {order.resume.uri} as step {order.resume.step}, which is {really}"
                )

    def ended(self, host: str, order: Order) -> None:
        """Nothing of a run lives any more."""
        self.living.discard(order.run)
        for grant in order.devices:
            if self.held.get((host, grant.index)) == order.run:
                del self.held[host, grant.index]
        attempts = self.alive[order.job]
        attempts[order.attempt] -= 1
        if not attempts[order.attempt]:
            del attempts[order.attempt]
        self.gangs[order.job, order.attempt].leave(order.rank)

    def linked(self, host: str, *, up: int, of: int) -> None:
        """So many of a host's interfaces work now: gangs that need them stand still, and give up after a while."""
        self.links.pop(host, None)
        if up < of:
            self.links[host] = (up, of)
        for gang in self.gangs.values():
            gang.linked(host, up=up, of=of)
