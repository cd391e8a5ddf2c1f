"""Random legal histories, with foreign entries between: invariants after every step, and a snapshot at any moment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statemachines import facts, snapshot
from statemachines.cluster import Cluster
from statemachines.invariants import violations
from tests.statemachines.leader import ACTIONS, Chance
from tests.statemachines.world import CELL, World

T = TypeVar("T")
# Placing and ending is where entities meet, so it is drawn more often.
OFTEN: Final = (
    "admit",
    "place",
    "place",
    "start_run",
    "start_run",
    "end_run",
    "end_attempt",
    "save",
)
DRAWN: Final = (*sorted(ACTIONS), *OFTEN)
SEEDS: Final = 20
STEPS: Final = 500


class Drawn:
    """Chance that Hypothesis can shrink."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def pick(self, among: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(among))

    def number(self, least: int, most: int) -> int:
        return self._data.draw(st.integers(least, most))


class Diced:
    """Chance from a seed, for histories longer than Hypothesis draws them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, among: Sequence[T]) -> T:
        return self._random.choice(among)

    def number(self, least: int, most: int) -> int:
        return self._random.randint(least, most)


def change_leader(world: World, _chance: Chance) -> None:
    world.open_term(f"leader-{world.term + 1}")


def append_again(world: World, chance: Chance) -> None:
    """A retry, or a record that comes late: an earlier entry is stored once more."""
    at = chance.number(0, len(world.entries) - 1)
    assert not world.append(world.entries[at], world.stored[at])


def append_as_an_old_leader(world: World, _chance: Chance) -> None:
    assert not world.append(*world.entry(term=world.term - 1))


FOREIGN: Final = (change_leader, append_again, append_as_an_old_leader)


class Histories(RuleBasedStateMachine):
    """A leader that decides at random, and a reader that starts from a snapshot now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.reader = Cluster(CELL)
        self.read = 0

    @initialize()
    def begin(self) -> None:
        self.world.open_term()
        self.world.queue()
        self.world.node("n1")
        self.world.node("n2")

    @rule(actions=st.lists(st.sampled_from(DRAWN), min_size=4, max_size=12), data=st.data())
    def decide(self, actions: list[str], data: st.DataObject) -> None:
        for action in actions:
            decided = ACTIONS[action](self.world.cluster, Drawn(data))
            if decided:
                self.world.record(*decided, by="ann")

    @rule(data=st.data())
    def disturb(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(FOREIGN))(self.world, Drawn(data))

    @rule()
    def recover_the_reader(self) -> None:
        data = snapshot.encode(self.reader)
        self.reader = snapshot.decode(data, offset=self.reader.offset)
        assert snapshot.encode(self.reader) == data

    @invariant()
    def holds(self) -> None:
        for entry in self.world.entries[self.read :]:
            self.reader.fold(entry)
        self.read = len(self.world.entries)
        assert violations(self.world.cluster) == []
        assert violations(self.reader) == []

    @invariant()
    def is_the_same_for_every_reader(self) -> None:
        assert snapshot.encode(self.reader) == snapshot.encode(self.world.cluster)


TestHistories: Any = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=60)


def long_history(seed: int) -> World:
    """Many steps from one seed, the same every time."""
    world, chance = World(), Diced(seed)
    world.open_term()
    world.queue()
    for _ in range(STEPS):
        decided = ACTIONS[chance.pick(DRAWN)](world.cluster, chance)
        if decided:
            world.record(*decided, by="ann")
        if chance.number(0, 19) == 0:
            chance.pick(FOREIGN)(world, chance)
    return world


def test_long_histories_keep_every_invariant_and_reach_every_kind_of_fact() -> None:
    told: set[type] = set()
    for seed in range(SEEDS):
        world = long_history(seed)
        assert violations(world.cluster) == [], seed
        told |= {type(recorded.fact) for entry in world.entries for recorded in entry.facts}
        reader = Cluster(CELL)
        for at, entry in enumerate(world.entries):
            reader.fold(entry)
            if at % 50 == 0:
                reader = snapshot.decode(snapshot.encode(reader), offset=reader.offset)
        assert snapshot.encode(reader) == snapshot.encode(world.cluster), seed
    assert told == set(get_args(facts.Fact)) - {facts.PolicyApplied}
