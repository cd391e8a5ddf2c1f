"""Faults of a history: what breaks, when, and for how long. Values drawn from the seed, so that a history replays.

What each kind does is in cell_faults.py and host_faults.py; healing is the world's business.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from simulation.kernel import US_PER_MS

if TYPE_CHECKING:
    from simulation.world import World


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fault: `kind` at a time, on `count` targets from the one numbered `target`, for a while.

    `what` says more where a kind needs it: an interface, the code of an event, a direction.
    """

    at_ms: int
    kind: str
    target: int = 0
    lasts_ms: int = 0
    count: int = 1
    what: str = ""


Act: TypeAlias = "Callable[[World, Fault], None]"
_LASTS_MS: Final = (200, 1_000, 4_000, 8_000, 20_000, 45_000)


def draw(
    chance: random.Random, *, count: int, within_ms: int, kinds: Sequence[str]
) -> tuple[Fault, ...]:
    """A plan of faults, by time."""
    faults = [
        Fault(
            at_ms=chance.randint(2_000, within_ms),
            kind=chance.choice(kinds),
            target=chance.randrange(1_000_000),
            lasts_ms=chance.choice(_LASTS_MS),
        )
        for _ in range(count)
    ]
    return tuple(sorted(faults, key=lambda fault: (fault.at_ms, fault.kind, fault.target)))


def schedule(world: World, plan: Sequence[Fault], acts: Mapping[str, Act]) -> None:
    """Let them happen, unless the world has been healed by then."""
    for fault in plan:
        world.kernel.at(fault.at_ms * US_PER_MS, partial(_strike, world, fault, acts[fault.kind]))


def _strike(world: World, fault: Fault, act: Act) -> None:
    if world.healed:
        return
    world.kernel.note(f"fault {fault.kind} {fault.target} {fault.lasts_ms}")
    world.referee.count(f"fault: {fault.kind}")
    world.referee.note(
        "fault", fault.kind, f"{fault.target} {fault.lasts_ms} ms {fault.what}".strip()
    )
    act(world, fault)


def after(world: World, fault: Fault, undo: Callable[[], None]) -> None:
    """The end of a fault; harmless when the world was healed before."""
    world.kernel.after(fault.lasts_ms * US_PER_MS, undo)
