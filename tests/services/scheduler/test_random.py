"""Whatever comes in, valid or hostile, the core never raises, no invariant breaks, and a replay agrees.

Each seed is one history (walk.py); `Cell.step` asserts the invariants and equal states after every step.
"""

from __future__ import annotations

import typing
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime import codec
from statemachines import facts, invariants, snapshot
from statemachines.cluster import Cluster
from tests.services.scheduler.cell import Cell
from tests.services.scheduler.walk import Walk

# Facts that no input of a leader can cause: its own opening, and the word of an operator over a gap.
_NOT_DECIDED = {"TermOpened", "PolicyApplied", "InputGapAccepted"}


def replay(cell: Cell) -> Cluster:
    """What a reader makes of the log from the beginning."""
    cluster = Cluster("test")
    for record in cell.log:
        assert cluster.fold(codec.decode_entry(record.offset, record.value))
    return cluster


@pytest.mark.parametrize("seed", range(40))
def test_no_history_breaks_the_leader(seed: int) -> None:
    walk = Walk(seed)
    walk.go(150)
    assert invariants.unexplained(walk.cell.cluster, after_ms=0) == []
    assert snapshot.encode(replay(walk.cell)) == snapshot.encode(walk.cell.cluster)


def test_the_histories_reach_every_fact_that_a_leader_records() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 160):
        walk = Walk(seed)
        walk.go(150)
        seen.update(type(each.fact).__name__ for each in walk.cell.recorded)
    every = {kind.__name__ for kind in typing.get_args(facts.Fact)} - _NOT_DECIDED
    assert every - set(seen) == set()


@given(
    st.lists(
        st.tuples(st.sampled_from(["requests", "reports", "verdicts"]), st.binary(max_size=80)),
        max_size=10,
    )
)
def test_bytes_of_nobody_are_parked_or_refused(inputs: list[tuple[str, bytes]]) -> None:
    cell = Cell()
    for topic, value in inputs:
        cell.raw(topic, value)
    allowed = (facts.InputParked, facts.RequestRefused, facts.RequestAccepted, facts.BreakerOpened)
    assert all(isinstance(fact, allowed) for fact in cell.step())
    assert sum(cell.cluster.positions.values()) == len(inputs)
