"""Who answers the faults: Tidemill by its own rules, and two peers by the defaults they document.

Data, and the time until a fault is known. All three place by the same real planner and lose the same time in stopping
and restarting, so that what differs is detection, requeueing and which bad nodes are kept out, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

from services.health.rules import Rules
from simulation.goodput.faults import Event
from simulation.goodput.parameters import Channel, World

_BEAT_MS: Final = 2_000  # agents send one this often [P: our protocol]
_TICK_MS: Final = 1_000  # the detector looks this often [P: ours]
_BATCH_MS: Final = 250  # a gateway holds a beat no longer [P: ours]


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """How a system notices and what it does then. Ranges are uniform, in milliseconds."""

    name: str
    lost_ms: tuple[int, int]  # From silence to its work going on elsewhere.
    suspect_ms: int  # From silence until nothing new is placed there; 0: not before it is lost.
    port_ms: int  # From a port's fall until the stalled gang is stopped.
    hang_ms: int  # From the last step.
    react_ms: tuple[int, int]  # From a fault that shows until the system acts.
    requeue_ms: int  # That a requeued job waits although there is room.
    kill_ms: int  # From the stop signal until a gang that hangs is killed; 0: by the leader's own deadline.
    shuts: frozenset[Channel]  # Faults after which the node takes nothing new.
    sees_ports: bool  # A gang takes a node with a dead port last.
    lemons: Rules | None  # Who breaks too many attempts is cordoned, by these rules.
    stragglers: Rules | None  # Who slows a gang down is drained, by these rules.
    reads_exit_codes: bool  # 16 and 17 put the next attempt elsewhere.
    false_alarms: bool  # The world's rate is that of a detector that is as fast as ours.
    asks_for_saves: bool  # Before planned work and preemption.
    brake: int  # Attempts without progress until a person is asked; -1: never.


def tidemill(world: World, rules: Rules) -> Arm:
    """By our rules; what a job sets itself (when it counts as hung) is the world's."""
    stall_ms = max(rules.port_stall_ms, round(2 * world.step_s * 1000))
    return Arm(
        name="tidemill",
        lost_ms=(rules.lost_after_ms - _BEAT_MS, rules.lost_after_ms + _TICK_MS + _BATCH_MS),
        suspect_ms=rules.suspect_after_ms,
        port_ms=stall_ms + _TICK_MS,
        hang_ms=round(world.hang_after_s * 1000) + _TICK_MS,
        react_ms=(0, _TICK_MS),
        requeue_ms=0,
        kill_ms=0,
        shuts=frozenset({Channel.SILENT, Channel.DEVICE}),
        sees_ports=True,
        lemons=rules,
        stragglers=rules if rules.straggler_percent and rules.straggler_drain_ms else None,
        reads_exit_codes=True,
        false_alarms=True,
        asks_for_saves=True,
        brake=0,
    )


def kubernetes(world: World) -> Arm:
    """Pods of a silent node are gone after 345-355 s [P]; a failed pod is made again after 10 s of back-off [R].

    The device plugin takes a device with a critical XID out [P]. Nothing looks for hangs: PyTorch's collectives time out
    after 600 s [R]; a dead port fails them when NCCL gives up.
    """
    return Arm(
        name="kubernetes_defaults",
        lost_ms=(345_000, 355_000),
        suspect_ms=50_000,  # Not ready: 40 s of grace, 50 s in newer versions [P].
        port_ms=round(world.collective_gives_up_s * 1000),
        hang_ms=600_000,
        react_ms=(0, 1_000),
        requeue_ms=10_000,
        kill_ms=30_000,  # terminationGracePeriodSeconds [P].
        shuts=frozenset({Channel.SILENT, Channel.DEVICE}),
        sees_ports=False,
        lemons=None,
        stragglers=None,
        reads_exit_codes=False,
        false_alarms=False,
        asks_for_saves=False,
        brake=-1,
    )


def slurm(world: World) -> Arm:
    """SlurmdTimeout 300 s [P]; a requeued job waited 130 s more with nodes idle [P, measured on 64 nodes].

    HealthCheckInterval is 0 [P]: a node with a bad device is used again. The same measurement saw 465-497 s until a node
    was down; the documented timeout, which is kinder, is used. The job's script requeues itself after a failure.
    """
    return Arm(
        name="slurm_defaults",
        lost_ms=(300_000, 300_000),
        suspect_ms=0,
        port_ms=round(world.collective_gives_up_s * 1000),
        hang_ms=600_000,
        react_ms=(0, 1_000),
        requeue_ms=130_000,
        kill_ms=30_000,  # KillWait [P].
        shuts=frozenset({Channel.SILENT}),
        sees_ports=False,
        lemons=None,
        stragglers=None,
        reads_exit_codes=False,
        false_alarms=False,
        asks_for_saves=False,
        brake=-1,
    )


def known_after_ms(arm: Arm, event: Event, chance: Random) -> int:
    """From the fault until the system acts on it."""
    fixed: Mapping[Channel, int] = {Channel.HANG: arm.hang_ms, Channel.PORT: arm.port_ms}
    if event.channel is Channel.SILENT:
        return round(chance.uniform(*arm.lost_ms))
    if event.channel in fixed:
        return fixed[event.channel]
    return event.noticed_ms + round(chance.uniform(*arm.react_ms))
