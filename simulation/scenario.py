"""A scenario as data: a cell, its work, what breaks, and what is expected beyond what must always hold.

Without faults of its own a scenario draws them, so that each seed is another history; the cell is drawn too when
`swarm` is set, with a part of all kinds of faults each time, for faults that come together hide each other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from simulation.clients import Wanted, job_of
from simulation.faults import Fault, draw
from simulation.referee import KINDS, Event
from simulation.storage import BrokerFaults
from simulation.training import Program
from simulation.world import Shape


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job of the scenario, named job-0, job-1 ... in their order."""

    at_s: float = 2.0
    members: int = 2
    devices: int = 4
    steps: int = 400
    step_ms: int = 500
    save_every: int = 20
    overlap_safe: bool = True
    failover: bool = False
    hang_after_s: float = 60.0
    fence_after_s: float = 20.0
    attempts_without_progress: int = 3
    fails_at_step: int = 0
    hangs_at_step: int = 0
    crash_loop: int = 0
    remote_every: int = 1
    measures: bool = False
    first_more: int = 0

    def wanted(self, number: int) -> Wanted:
        """The request, and what it runs."""
        program = Program(
            steps=self.steps, step_ms=self.step_ms, save_every=self.save_every, failover=self.failover,
            fails_at_step=self.fails_at_step, hangs_at_step=self.hangs_at_step, crash_loop=self.crash_loop,
            remote_every=self.remote_every, measures=self.measures, first_more=self.first_more,
        )  # fmt: skip
        return job_of(
            number, program, members=self.members, devices=self.devices, overlap_safe=self.overlap_safe,
            hang_after_ms=int(self.hang_after_s * 1000), fence_after_ms=int(self.fence_after_s * 1000),
            stalled_max=self.attempts_without_progress,
        )  # fmt: skip


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often something is expected on the timeline: a kind of fact, or `final` for how a job stands at the end.

    `subject` is a node or a job (job-0 is the first of the scenario), `detail` whole words of what else the timeline
    says of it. One that could not fail is refused: ValueError.
    """

    fact: str
    why: str
    subject: str = ""
    detail: str = ""
    at_least: int | None = None
    at_most: int | None = None
    from_s: float = 0.0
    until_s: float = 1e9

    def __post_init__(self) -> None:
        if self.fact not in KINDS:
            raise ValueError(
                f"the timeline shows no {self.fact!r}; it shows {', '.join(sorted(KINDS))}"
            )
        if not self.at_least and self.at_most is None:
            raise ValueError(
                f"the check of {self.fact} holds whatever happens: give it at_least (1 or more), or at_most"
            )
        if self.from_s > self.until_s:
            raise ValueError(
                f"the check of {self.fact} is of no time: from {self.from_s:g} s until {self.until_s:g} s"
            )

    def failure(self, events: Sequence[Event], names: Mapping[str, str]) -> str:
        """Why it does not hold; empty when it does."""
        subject = names.get(self.subject, self.subject)
        found = [
            event
            for event in events
            if event.kind == self.fact
            and subject in {"", event.subject}
            and (not self.detail or _words(self.detail) in _words(event.detail))
            and self.from_s * 1000 <= event.at_ms <= self.until_s * 1000
        ]
        low, high = self.at_least, self.at_most
        if (low is None or len(found) >= low) and (high is None or len(found) <= high):
            return ""
        wanted = " and ".join(
            text
            for text in (
                f"at least {low}" if low is not None else "",
                f"at most {high}" if high is not None else "",
            )
            if text
        )
        which = " ".join(part for part in (self.fact, self.subject, self.detail) if part)
        times = ", ".join(f"{event.at_ms / 1000:.1f} s" for event in found[:5])
        return f"expected {wanted} of [{which}], saw {len(found)}{f' at {times}' if times else ''}: {self.why}"


def _words(text: str) -> str:
    """Each between spaces, so that what is found in it is whole words."""
    return f" {' '.join(text.split())} "


class Drawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults that the seed draws; `kinds` empty: any."""

    count: int = 20
    within_s: float = 150.0
    kinds: tuple[str, ...] = ()


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a history is made of. `live`: can also be played on real processes; else than `simulated`: only there."""

    summary: str
    shape: Shape = Shape()
    run_s: float = 160.0
    swarm: bool = False
    work: tuple[Work, ...] = ()
    fault: tuple[Fault, ...] = ()
    drawn: Drawn | None = None
    check: tuple[Check, ...] = ()
    accepts_gaps: bool = True
    # No restart may throw away more steps than these.
    lost_steps_max: int | None = None
    live: bool = False
    simulated: bool = True


class Setup(msgspec.Struct, frozen=True):
    """One scenario for one seed: nothing is left to draw. What a minimiser makes smaller."""

    shape: Shape
    plan: tuple[Fault, ...]


def setup(scenario: Scenario, chance: random.Random, kinds: Sequence[str]) -> Setup:
    """Draw what the scenario leaves open."""
    shape, plan = scenario.shape, list(scenario.fault)
    if scenario.swarm:
        shape = _any_shape(chance)
    if scenario.drawn is not None:
        drawn = scenario.drawn
        among = drawn.kinds or kinds
        count = drawn.count
        if scenario.swarm:
            among = [kind for kind in among if chance.random() < 0.4] or among
            count = chance.randint(3, 2 * drawn.count)
        plan += draw(chance, count=count, within_ms=int(drawn.within_s * 1000), kinds=among)
    return Setup(shape, tuple(plan))


def _any_shape(chance: random.Random) -> Shape:
    """A small cell, on a broker that is more or less well."""
    ill = chance.choice([0, 0, 1_000, 5_000])
    broker = BrokerFaults(
        lost=ill, lost_ack=ill, late=ill // 2, duplicated=ill,
        visible_after_ms=chance.choice([(1, 4), (1, 4), (5, 60)]),
        snapshot_damaged=chance.choice([0, 300_000]),
    )  # fmt: skip
    return Shape(
        nodes=chance.randint(3, 9), devices=chance.choice([2, 4, 8]), jobs=chance.randint(8, 30),
        jobs_within_s=chance.choice([20, 120]), schedulers=chance.choice([2, 2, 3]), gateways=chance.choice([1, 2, 3]),
        broker=broker, crash_ppm=chance.choice([0, 0, 30, 300]),
    )  # fmt: skip
