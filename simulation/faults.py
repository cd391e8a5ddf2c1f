"""Faults of a history: what breaks, when, and for how long. Values drawn from the seed, so that a history replays.

Each fault is one small act on a world, with its own end; healing is the world's business.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from simulation.kernel import US_PER_MS
from simulation.world import World


class Fault(msgspec.Struct, frozen=True):
    """One fault: `kind` at a time, on a target, for a while."""

    at_ms: int
    kind: str
    target: int = 0
    lasts_ms: int = 0


Act = Callable[[World, Fault], None]


def draw(
    chance: random.Random, *, count: int, within_ms: int, kinds: tuple[str, ...]
) -> tuple[Fault, ...]:
    """A plan of faults, by time."""
    faults = [
        Fault(
            at_ms=chance.randint(2_000, within_ms),
            kind=chance.choice(kinds),
            target=chance.randrange(1_000_000),
            lasts_ms=chance.choice([200, 1_000, 4_000, 8_000, 20_000, 45_000]),
        )
        for _ in range(count)
    ]
    return tuple(sorted(faults, key=lambda fault: (fault.at_ms, fault.kind, fault.target)))


def schedule(world: World, plan: tuple[Fault, ...]) -> None:
    """Let them happen."""
    for fault in plan:
        world.kernel.at(fault.at_ms * US_PER_MS, partial(_strike, world, fault))


def _strike(world: World, fault: Fault) -> None:
    if world.healed:
        return
    world.kernel.note(f"fault {fault.kind} {fault.target} {fault.lasts_ms}")
    world.referee.count(f"fault {fault.kind}")
    KINDS[fault.kind](world, fault)


def _after(world: World, fault: Fault, undo: Callable[[], None]) -> None:
    world.kernel.after(fault.lasts_ms * US_PER_MS, undo)


def _kill_leader(world: World, _fault: Fault) -> None:
    for scheduler in world.schedulers:
        if scheduler.leads:
            scheduler.crash()


def _pause_leader(world: World, fault: Fault) -> None:
    for scheduler in world.schedulers:
        if scheduler.leads:
            scheduler.pause(fault.lasts_ms)


def _kill_service(world: World, fault: Fault) -> None:
    world.services[fault.target % len(world.services)].crash()


def _pause_service(world: World, fault: Fault) -> None:
    world.services[fault.target % len(world.services)].pause(fault.lasts_ms)


def _kill_everything(world: World, _fault: Fault) -> None:
    for process in (*world.services, *world.hosts):
        process.crash()


def _kill_agent(world: World, fault: Fault) -> None:
    world.hosts[fault.target % len(world.hosts)].crash()


def _pause_agent(world: World, fault: Fault) -> None:
    world.hosts[fault.target % len(world.hosts)].pause(fault.lasts_ms)


def _reboot(world: World, fault: Fault) -> None:
    world.hosts[fault.target % len(world.hosts)].reboot(fault.lasts_ms)


def _partition(world: World, fault: Fault) -> None:
    """One way or both, chosen by the target."""
    host = world.hosts[fault.target % len(world.hosts)]
    host.cut_up, host.cut_down = fault.target % 3 != 0, fault.target % 3 != 1

    def heal() -> None:
        host.cut_up = host.cut_down = False

    _after(world, fault, heal)


def _broker_down(world: World, fault: Fault) -> None:
    world.broker.down = True

    def heal() -> None:
        world.broker.down = False

    _after(world, fault, heal)


def _election_down(world: World, fault: Fault) -> None:
    world.election.down = True

    def heal() -> None:
        world.election.down = False

    _after(world, fault, heal)


def _two_leaders(world: World, fault: Fault) -> None:
    """Everyone believes to hold the lease."""
    world.election.blind = True

    def heal() -> None:
        world.election.blind = False

    _after(world, fault, heal)


def _lease_revoked(world: World, _fault: Fault) -> None:
    world.election.revoke()


def _disk_full(world: World, fault: Fault) -> None:
    host = world.hosts[fault.target % len(world.hosts)]
    host.disk_full = True

    def heal() -> None:
        host.disk_full = False

    _after(world, fault, heal)


def _clock_step(world: World, fault: Fault) -> None:
    """An hour forward or back, on one host or service."""
    step_ms = 3_600_000 if fault.target % 2 else -3_600_000
    world.clocks[fault.target % len(world.clocks)].wall_offset_ms += step_ms


def _cancel_a_job(world: World, fault: Fault) -> None:
    if world.clients.wanted:
        world.clients.cancel(world.clients.wanted[fault.target % len(world.clients.wanted)].job)


KINDS: Final[dict[str, Act]] = {
    "kill leader": _kill_leader,
    "pause leader": _pause_leader,
    "kill service": _kill_service,
    "pause service": _pause_service,
    "kill everything": _kill_everything,
    "kill agent": _kill_agent,
    "pause agent": _pause_agent,
    "reboot": _reboot,
    "partition": _partition,
    "broker down": _broker_down,
    "election down": _election_down,
    "two leaders": _two_leaders,
    "lease revoked": _lease_revoked,
    "disk full": _disk_full,
    "clock step": _clock_step,
    "cancel a job": _cancel_a_job,
}
