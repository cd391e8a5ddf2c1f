"""The lifecycle of a device: every pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest

from statemachines import device, facts
from statemachines.device import Device, DeviceState
from statemachines.lifecycle import IllegalTransition
from statemachines.values import DeviceSpec, NodeId, Reason
from tests.statemachines.matrix import every_pair, pair_id

SPEC: Final = DeviceSpec(3, "H100", "GPU-3", 81_559)
OLD: Final = Reason("xid_48", "double-bit ECC")
NEW: Final = Reason("xid_79", "fell off the bus")
NODE: Final = NodeId("n1")
S: Final = DeviceState
FACTS: Final[Mapping[type, Any]] = {
    facts.DeviceDegraded: facts.DeviceDegraded(NODE, 3, NEW),
    facts.DeviceFaulted: facts.DeviceFaulted(NODE, 3, NEW),
    facts.DeviceRecovered: facts.DeviceRecovered(NODE, 3),
}
HEALTHY: Final = Device(SPEC, S.HEALTHY, None)
DEGRADED: Final = Device(SPEC, S.DEGRADED, NEW)
FAULTY: Final = Device(SPEC, S.FAULTY, NEW)
LEGAL: Final[Mapping[tuple[DeviceState, type], Device]] = {
    (S.HEALTHY, facts.DeviceDegraded): DEGRADED,
    (S.HEALTHY, facts.DeviceFaulted): FAULTY,
    (S.DEGRADED, facts.DeviceFaulted): FAULTY,
    (S.DEGRADED, facts.DeviceRecovered): HEALTHY,
    (S.FAULTY, facts.DeviceDegraded): DEGRADED,
    (S.FAULTY, facts.DeviceRecovered): HEALTHY,
}


def test_every_fact_about_a_device_has_an_example_here() -> None:
    assert set(FACTS) == set(get_args(facts.DeviceFact))


@pytest.mark.parametrize(("state", "kind"), every_pair(S, facts.DeviceFact), ids=pair_id)
def test_each_pair_gives_the_whole_value_or_is_illegal(state: DeviceState, kind: type) -> None:
    before = Device(SPEC, state, OLD)
    expected = LEGAL.get((state, kind))
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"is {state}: {kind.__name__} is not legal"):
            device.advance(before, FACTS[kind])
        return
    after = device.advance(before, FACTS[kind])
    assert after == expected
    assert after.state is device.LIFECYCLE[(state, kind)]
