"""Faults of interfaces that are up: counters that grow, rates that fall, frames that are too large.

Struck only where a scenario names them: what a seed drew before there were any stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from simulation.faults import Act, Fault, after
from simulation.host_faults import hosts
from simulation.nodes import RATE_MBPS, Host
from simulation.world import World

# Counter, and how fast it grows, where a fault does not say.
_GROWTH: Final = (
    ("symbol_error", 50),
    ("local_link_integrity_errors", 1),
    ("rx_dropped", 40),
    ("link_error_recovery", 1),
    ("port_xmit_discards", 500),
    ("local_ack_timeout_err", 5),
)


def nic_counters(world: World, fault: Fault) -> None:
    """A counter grows: `what` is interface, counter and how many a second, such as "ib1 symbol_error 50"."""
    nic, counter, per_s = fault.what.split() if fault.what else ("", "", "0")
    if not counter:
        counter, growth = _GROWTH[fault.target % len(_GROWTH)]
        per_s = str(growth)
    for host in hosts(world, fault):
        seen = world.interfaces_of(host)
        for name in _chosen(host, fault, nic):
            seen.grow(name, counter, int(per_s))
            if fault.lasts_ms:
                after(world, fault, partial(seen.grow, name, counter, 0))


def rate_drop(world: World, fault: Fault) -> None:
    """An interface trains slower: `what` is interface and Mb/s, such as "ib1 200000"."""
    nic, _, mbps = fault.what.partition(" ")
    for host in hosts(world, fault):
        seen = world.interfaces_of(host)
        for name in _chosen(host, fault, nic):
            seen.run_at(name, int(mbps or RATE_MBPS // 2))
            if fault.lasts_ms:
                after(world, fault, partial(seen.run_at, name, RATE_MBPS))


def small_mtu(world: World, fault: Fault) -> None:
    """An interface takes no large frame any more: it counts what it drops, and gangs' messages are large."""
    for host in hosts(world, fault):
        seen = world.interfaces_of(host)
        for name in _chosen(host, fault, fault.what):
            seen.grow(name, "rx_dropped", 40)
            host.carry(name, large=False)
            if fault.lasts_ms:
                after(world, fault, partial(seen.grow, name, "rx_dropped", 0))
                after(world, fault, partial(host.carry, name, large=True))


def _chosen(host: Host, fault: Fault, nic: str) -> list[str]:
    names = list(host.links)
    if not names or nic == "all":
        return names
    return [nic or names[fault.target % len(names)]]


NIC_FAULTS: Final[Mapping[str, Act]] = {
    "nic counters": nic_counters,
    "rate drop": rate_drop,
    "small mtu": small_mtu,
}
