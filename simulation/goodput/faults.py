"""The generator: all that will happen to a fleet, drawn from a seed before anything runs.

Pure. Everything random about a fault is drawn with it, so that every way of answering it meets the same faults. Whether
it finds its node in service, or a lemon that has been replaced since, is the simulator's to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum, unique
from random import Random
from typing import Final

import msgspec

from simulation.goodput.parameters import (
    CAUSES,
    NETWORK,
    NODE_DAYS,
    Channel,
    Lognormal,
    Network,
    Noise,
    Row,
    World,
)

DAY_MS: Final = 86_400_000


@unique
class Kind(StrEnum):
    """What an event is to the fleet."""

    FAULT = "fault"
    FLAP = "flap"  # A port is down for `length_ms`; a collective survives less than `cut_ms`.
    SILENCE = "silence"  # A healthy node is not heard for `length_ms`.
    ALARM = "alarm"  # A healthy node is taken for lost by mistake.
    PLANNED = "planned"  # Drained with `notice_ms`, then out for `length_ms`.
    STRAGGLER = "straggler"  # Runs at `speed` for `length_ms`.
    INCIDENT = (
        "incident"  # Nothing of the cell makes progress for `length_ms`; no node is at fault.
    )


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens to a node (-1: to all), and all that is random about it."""

    at_ms: int
    number: int
    kind: Kind
    node: int
    cause: str
    channel: Channel = Channel.CRASH
    lemon: bool = False  # Of the extra hazard of a lemon: void once it is replaced.
    implicit: bool = False
    noticed_ms: int = (
        0  # Until it shows to whoever looks; silence and hangs show by timeouts instead.
    )
    speed: float = 1.0
    transient: bool = False
    again: bool = False
    again_ms: int = 0
    repair_ms: int = 0
    unfixed: bool = False
    length_ms: int = 0
    cut_ms: int = 0
    notice_ms: int = 0


def lemons(world: World, seed: int) -> frozenset[int]:
    """The nodes that carry more than their share."""
    count = round(world.lemon_nodes * world.nodes) if world.lemon_carry else 0
    return frozenset(Random(f"{seed}/lemons").sample(range(world.nodes), count))


def events(world: World, seed: int) -> list[Event]:
    """Everything, in order of time."""
    found = [*_base(world, seed)]
    if world.network is not None:
        found += _network(world, world.network, seed)
    if world.noise is not None:
        found += _noise(world, world.noise, seed)
    found.sort(key=lambda event: (event.at_ms, event.kind, event.node, event.cause))
    return [msgspec.structs.replace(event, number=i) for i, event in enumerate(found)]


# --- the base hazard


def _rows(world: World) -> list[Row]:
    return [row for row in CAUSES if world.network is None or row.cause not in NETWORK]


def _base(world: World, seed: int) -> Iterator[Event]:
    rows = _rows(world)
    special = sorted(lemons(world, seed))
    new = frozenset(Random(f"{seed}/new").sample(range(world.nodes), round(world.new_nodes * world.nodes)))  # fmt: skip
    for row in rows:
        per_day = row.count / NODE_DAYS * world.scale * world.nodes
        carried = per_day * world.lemon_carry if row.hardware and special else 0.0
        chance = Random(f"{seed}/{row.cause}")
        yield from _faults(world, chance, row, per_day - carried, range(world.nodes), new, extra=False)  # fmt: skip
        yield from _faults(world, chance, row, carried, special, new, extra=True)
    job = Row("program", 0, Channel.CRASH, hardware=False)
    everyone = range(world.nodes)
    rate = world.job_failures * world.nodes
    yield from _faults(world, Random(f"{seed}/program"), job, rate, everyone, frozenset(), extra=False)  # fmt: skip


def _faults(
    world: World,
    chance: Random,
    row: Row,
    per_day: float,
    nodes: range | list[int],
    new: frozenset[int],
    *,
    extra: bool,
) -> Iterator[Event]:
    """Competing exponentials, thinned for nodes that are not in their first days."""
    factor = world.infant_factor if new and row.hardware else 1.0
    for at_ms in _times(chance, per_day * factor, world.days):
        node = chance.choice(nodes)
        if chance.random() * factor >= (_infancy(world, at_ms) if node in new else 1.0):
            continue
        event = _fault(world, chance, row, at_ms, node, extra=extra)
        yield event
        if row.hardware and chance.random() < world.second:
            later_ms = at_ms + round(chance.random() * world.second_within_s * 1000)
            yield _fault(world, chance, chance.choice(_rows(world)), later_ms, node, extra=extra)


def _infancy(world: World, at_ms: int) -> float:
    return max(1.0, world.infant_factor - (world.infant_factor - 1) * at_ms / DAY_MS / world.infant_days)  # fmt: skip


def _times(chance: Random, per_day: float, days: float) -> Iterator[int]:
    """Arrivals of a Poisson process."""
    day = 0.0
    while per_day > 0:
        day += chance.expovariate(per_day)
        if day >= days:
            return
        yield round(day * DAY_MS)


def _fault(world: World, chance: Random, row: Row, at_ms: int, node: int, *, extra: bool) -> Event:
    implicit = row.hardware and chance.random() < world.implicit
    channel = row.channel
    if implicit:
        kinds, weights = zip(*world.implicit_kinds, strict=True)
        channel = chance.choices(kinds, weights)[0]
    physical = chance.random() >= world.repair.reset_share
    repair = world.repair.physical if physical else world.repair.reset
    return Event(
        at_ms=at_ms,
        number=0,
        kind=Kind.FAULT,
        node=node,
        cause=row.cause,
        channel=channel,
        lemon=extra,
        implicit=implicit,
        noticed_ms=_noticed_ms(world, chance, channel),
        speed=chance.uniform(0.7, 0.95),
        transient=not row.hardware or chance.random() < world.transient,
        again=chance.random() < world.again,
        again_ms=round(chance.random() * world.again_within_s * 1000),
        repair_ms=_lognormal_ms(chance, repair),
        unfixed=row.hardware and chance.random() < world.repair.unfixed,
    )


def _noticed_ms(world: World, chance: Random, channel: Channel) -> int:
    match channel:
        case Channel.SLOW:
            return round(world.slow_noticed_s * 1000)
        case Channel.CORRUPT:
            return round(chance.uniform(*world.corrupt_noticed_s) * 1000)
        case _:
            return _lognormal_ms(chance, world.visible)


def _lognormal_ms(chance: Random, law: Lognormal) -> int:
    return round(law.median_s * math.exp(law.sigma * chance.gauss(0, 1)) * 1000)


# --- NICs, links, switches, racks


def _network(world: World, network: Network, seed: int) -> Iterator[Event]:
    ports = world.nodes * network.nics
    chance = Random(f"{seed}/network")
    dead = (network.nic_dead + network.link_dead) * ports * world.scale
    row = Row("nic_or_link", 0, Channel.PORT)
    yield from _faults(world, chance, row, dead, range(world.nodes), frozenset(), extra=False)
    flappy = chance.sample(range(world.nodes), round(network.flappy_share * world.nodes))
    for at_ms in _times(chance, network.flap * ports * world.scale, world.days):
        some = flappy if chance.random() < network.flappy_carry else range(world.nodes)
        node, cut_s = chance.choice(some), chance.uniform(*network.flap_cut_s)
        length_ms = _lognormal_ms(chance, network.flap_length)
        yield Event(at_ms=at_ms, number=0, kind=Kind.FLAP, node=node, cause="link_flap", channel=Channel.PORT,
                    length_ms=length_ms, cut_ms=round(cut_s * 1000))  # fmt: skip
    yield from _switches(world, network, chance)
    yield from _racks(world, network, chance)


def _switches(world: World, network: Network, chance: Random) -> Iterator[Event]:
    """One rail of its nodes is down, longer than any collective waits."""
    switches = world.nodes * network.nics / network.switch_nodes
    for at_ms in _times(chance, network.switch_crash * switches * world.scale, world.days):
        first = chance.randrange(0, world.nodes, network.switch_nodes)
        out_ms = round(chance.uniform(*network.switch_out_s) * 1000)
        for node in range(first, min(first + network.switch_nodes, world.nodes)):
            yield Event(at_ms=at_ms, number=0, kind=Kind.FLAP, node=node, cause="leaf_switch", channel=Channel.PORT,
                        length_ms=out_ms, cut_ms=round(network.flap_cut_s[0] * 1000))  # fmt: skip


def _racks(world: World, network: Network, chance: Random) -> Iterator[Event]:
    racks = world.nodes / network.rack_nodes
    for at_ms in _times(chance, network.rack_loss * racks * world.scale, world.days):
        first = chance.randrange(0, world.nodes, network.rack_nodes)
        for node in range(first, min(first + network.rack_nodes, world.nodes)):
            later_ms = at_ms + round(chance.random() * network.rack_within_s * 1000)
            row = Row("rack_power", 0, Channel.SILENT, hardware=False)
            yield _fault(world, chance, row, later_ms, node, extra=False)


# --- what is no fault of the base rate


def _noise(world: World, noise: Noise, seed: int) -> Iterator[Event]:
    chance = Random(f"{seed}/noise")

    def each(
        kind: Kind, cause: str, per_day: float, fields: Callable[[], dict[str, float]]
    ) -> Iterator[Event]:
        for at_ms in _times(chance, per_day, world.days):
            node = -1 if kind is Kind.INCIDENT else chance.randrange(world.nodes)
            yield Event(at_ms=at_ms, number=0, kind=kind, node=node, cause=cause, **fields())  # type: ignore[arg-type]

    def length(bounds: tuple[float, float]) -> Callable[[], dict[str, float]]:
        return lambda: {"length_ms": round(chance.uniform(*bounds) * 1000)}

    yield from each(Kind.ALARM, "false_alarm", noise.false_agent * world.nodes, dict)
    yield from each(Kind.SILENCE, "heartbeat_gap", noise.gap * world.nodes, length(noise.gap_s))
    yield from each(Kind.PLANNED, "planned_work", noise.planned * world.nodes, lambda: {
        "notice_ms": round(chance.uniform(*noise.notice_s) * 1000),
        "length_ms": round(noise.planned_out_s * 1000),
    })  # fmt: skip
    mean_days = sum(noise.straggler_s) / 2 / 86_400
    per_day = noise.straggler_share * world.nodes / mean_days
    yield from each(Kind.STRAGGLER, "straggler", per_day, lambda: {
        "speed": chance.uniform(*noise.straggler_speed), **length(noise.straggler_s)(),
    })  # fmt: skip
    yield from each(Kind.INCIDENT, "incident", 1 / noise.incident_days, length(noise.incident_s))
