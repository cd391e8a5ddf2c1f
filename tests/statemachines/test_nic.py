"""The lifecycle of a network interface: every pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest

from statemachines import facts, nic
from statemachines.lifecycle import IllegalTransition
from statemachines.nic import Nic, NicState
from statemachines.values import NicSpec, NodeId, Reason
from tests.statemachines.matrix import every_pair, pair_id

SPEC: Final = NicSpec("ib3", 400_000)
OLD: Final = Reason("errors", "symbol errors")
NEW: Final = Reason("down", "link down")
NODE: Final = NodeId("n1")
S: Final = NicState
FACTS: Final[Mapping[type, Any]] = {
    facts.NicDegraded: facts.NicDegraded(NODE, "ib3", NEW),
    facts.NicFaulted: facts.NicFaulted(NODE, "ib3", NEW),
    facts.NicRecovered: facts.NicRecovered(NODE, "ib3"),
}
HEALTHY: Final = Nic(SPEC, S.HEALTHY, None)
DEGRADED: Final = Nic(SPEC, S.DEGRADED, NEW)
FAULTY: Final = Nic(SPEC, S.FAULTY, NEW)
LEGAL: Final[Mapping[tuple[NicState, type], Nic]] = {
    (S.HEALTHY, facts.NicDegraded): DEGRADED,
    (S.HEALTHY, facts.NicFaulted): FAULTY,
    (S.DEGRADED, facts.NicFaulted): FAULTY,
    (S.DEGRADED, facts.NicRecovered): HEALTHY,
    (S.FAULTY, facts.NicDegraded): DEGRADED,
    (S.FAULTY, facts.NicRecovered): HEALTHY,
}


def test_every_fact_about_a_nic_has_an_example_here() -> None:
    assert set(FACTS) == set(get_args(facts.NicFact))


@pytest.mark.parametrize(("state", "kind"), every_pair(S, facts.NicFact), ids=pair_id)
def test_each_pair_gives_the_whole_value_or_is_illegal(state: NicState, kind: type) -> None:
    before = Nic(SPEC, state, OLD)
    expected = LEGAL.get((state, kind))
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"is {state}: {kind.__name__} is not legal"):
            nic.advance(before, FACTS[kind])
        return
    after = nic.advance(before, FACTS[kind])
    assert after == expected
    assert after.state is nic.LIFECYCLE[(state, kind)]
