"""The fleet as facts: nodes, the queue of the big job, the queue of smaller ones that leaves the spares alone.

A node's eight GPUs are one device here, since gangs of this size take whole nodes; its NICs are there one by one. Never
decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from simulation.goodput.formula import poisson_quantile
from simulation.goodput.parameters import PER_1000_NODE_DAYS, World
from statemachines.facts import Fact, JobAdmitted, NodeJoined, QueueApplied
from statemachines.queue import NO_LIMIT
from statemachines.values import (
    DeviceSpec,
    Inventory,
    JobId,
    JobSpec,
    NicSpec,
    NodeId,
    QueueId,
    Resources,
    RetryPolicy,
    Role,
)

GPUS_PER_NODE: Final = 8
_NICS: Final = 8
_MODEL: Final = "8xH100"
_PRIORITY: Final = 1_000_000  # Above all that waiting could add to a smaller job's.


class Fleet(msgspec.Struct, frozen=True):
    """Who is there: (job, nodes) with the big one first, and how many nodes are left for spares."""

    jobs: tuple[tuple[JobId, int], ...]
    spares: int


def fleet(world: World) -> Fleet:
    """Spares for the mean number of nodes out, by Poisson; smaller jobs on what is left."""
    spares = min(_wanted_spares(world), world.nodes - world.train_nodes)
    small = (
        (world.nodes - world.train_nodes - spares) // world.small_nodes if world.small_nodes else 0
    )
    jobs = [(JobId("big"), world.train_nodes)]
    jobs += [(JobId(f"small{i}"), world.small_nodes) for i in range(small)]
    taken = sum(nodes for _, nodes in jobs)
    return Fleet(tuple(jobs), world.nodes - taken)


def _wanted_spares(world: World) -> int:
    repair = world.repair
    mean_s = _mean_s(repair.reset.median_s, repair.reset.sigma) * repair.reset_share
    mean_s += _mean_s(repair.physical.median_s, repair.physical.sigma) * (1 - repair.reset_share)
    per_day = PER_1000_NODE_DAYS / 1000 * world.scale * world.nodes
    return poisson_quantile(per_day * mean_s / 86_400, world.spares)


def _mean_s(median_s: float, sigma: float) -> float:
    return median_s * float(2.718281828459045 ** (sigma * sigma / 2))


def node_id(number: int) -> NodeId:
    """Its name."""
    return NodeId(f"n{number:05}")


def inventory(number: int) -> Inventory:
    """What a node has."""
    name = node_id(number)
    nics = tuple(NicSpec(f"nic{i}", 400_000) for i in range(_NICS))
    return Inventory("127.0.0.1", 128_000, 2_097_152, (DeviceSpec(0, _MODEL, name),), nics)


def facts(world: World, crew: Fleet, *, brake: int) -> Iterator[Fact]:
    """All of it, as a leader would have recorded it."""
    small = sum(nodes for _, nodes in crew.jobs[1:])
    yield QueueApplied(QueueId("big"), "", NO_LIMIT, NO_LIMIT, NO_LIMIT)
    yield QueueApplied(QueueId("small"), "", small, NO_LIMIT, NO_LIMIT)
    for number in range(world.nodes):
        yield NodeJoined(node_id(number), 1, inventory(number))
    for number, (job, nodes) in enumerate(crew.jobs, start=1):
        big = number == 1
        role = Role("worker", nodes, Resources(64_000, 1_048_576, 1, (_MODEL,)))
        spec = JobSpec(
            job, QueueId("big" if big else "small"), _PRIORITY if big else 0, (role,),
            retry=RetryPolicy(max_attempts=-1, max_attempts_without_progress=brake),
            overlap_safe=True, hang_after_ms=round(world.hang_after_s * 1000),
        )  # fmt: skip
        yield JobAdmitted(job, number, 0, spec, f"r/{number}", b"")
