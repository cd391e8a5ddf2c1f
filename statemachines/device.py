"""The lifecycle of a device (GPU, NPU) of a node. A faulty one is never granted; a run that holds it is the leader's concern."""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from statemachines.facts import DeviceDegraded, DeviceFact, DeviceFaulted, DeviceRecovered
from statemachines.lifecycle import Word, next_state
from statemachines.values import DeviceSpec, Reason


@unique
class DeviceState(Word):
    """How a device does."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAULTY = "faulty"


LIFECYCLE: Final[Mapping[tuple[DeviceState, type], DeviceState]] = {
    (DeviceState.HEALTHY, DeviceDegraded): DeviceState.DEGRADED,
    (DeviceState.HEALTHY, DeviceFaulted): DeviceState.FAULTY,
    (DeviceState.DEGRADED, DeviceFaulted): DeviceState.FAULTY,
    (DeviceState.DEGRADED, DeviceRecovered): DeviceState.HEALTHY,
    (DeviceState.FAULTY, DeviceRecovered): DeviceState.HEALTHY,
    # A repair that is not whole: usable again, not as it should be.
    (DeviceState.FAULTY, DeviceDegraded): DeviceState.DEGRADED,
}


class Device(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One device of a node."""

    spec: DeviceSpec
    state: DeviceState = DeviceState.HEALTHY
    reason: Reason | None = None


def advance(device: Device, fact: DeviceFact) -> Device:
    """Apply one recorded fact; raises IllegalTransition."""
    state = next_state(LIFECYCLE, device.state, fact, "a device of", fact.node)
    match fact:
        case DeviceDegraded(reason=reason) | DeviceFaulted(reason=reason):
            return replace(device, state=state, reason=reason)
        case DeviceRecovered():
            return replace(device, state=state, reason=None)
        case _:
            assert_never(fact)
