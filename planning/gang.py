"""Placing a gang: all members or none, each on the tightest node that holds it, largest members first."""

from __future__ import annotations

from collections.abc import Collection

from planning.capacity import Capacity, Taken
from statemachines.job import Job
from statemachines.values import NodeId, Placement, Resources, Role, RunId


def place_gang(
    capacity: Capacity, job: Job, *, avoid: Collection[NodeId]
) -> tuple[tuple[Placement, ...], int]:
    """Take a place for every member of `job`'s next attempt, or for none: placements in rank order, and how many members had room."""
    members = _members(job.spec.roles)
    linked = len(members) > 1
    taken: list[Taken] = []
    placements: list[Placement] = []
    for rank, role in sorted(members, key=_largest_first):
        need = role.resources
        node = capacity.tightest(need, linked=linked, without=avoid)
        if node is None:
            for share in reversed(taken):
                capacity.put_back(share)
            return (), len(taken)
        share = capacity.take(node, need)
        taken.append(share)
        run = RunId(f"{job.id}.{job.attempt + 1}.{rank}")
        placements.append(
            Placement(run, node, rank, role.name, share.grants, need.cpu_milli, need.memory_mib)
        )
    placements.sort(key=lambda placement: placement.rank)
    return tuple(placements), len(placements)


def _members(roles: tuple[Role, ...]) -> list[tuple[int, Role]]:
    each = [role for role in roles for _ in range(role.count)]
    return list(enumerate(each))


def _largest_first(member: tuple[int, Role]) -> tuple[int, int, int, int]:
    rank, role = member
    need: Resources = role.resources
    return (-need.devices, -need.cpu_milli, -need.memory_mib, rank)
