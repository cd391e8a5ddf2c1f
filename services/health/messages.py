"""What the detector takes in and gives out. Values only; protobuf is wire.py's business."""

from __future__ import annotations

from enum import StrEnum, unique
from typing import Final, TypeAlias, dataclass_transform

import msgspec

from statemachines.device import DeviceState
from statemachines.nic import NicState
from statemachines.node import NodeState
from statemachines.values import Reason


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, frozen=True, gc=False):
    """A value without cycles."""


# --- telemetry


class PathHeard(Message):
    """A gateway's batch of beats came, be it an empty one: agents of this partition can be heard."""

    partition: int = 0


class Beat(Message):
    """A node's heartbeat; `stall_ms` is how late the agent's own loop ran."""

    node: str
    incarnation: int
    stall_ms: int


class Progressed(Message):
    """How far one rank is; `phase` is "train", "save", "eval" ...

    `busy_us`: of a step, in the mean, the time in which it did not wait for other ranks; 0: not measured.
    """

    job: str
    attempt: int
    rank: int
    step: int
    phase: str = ""
    busy_us: int = 0


@unique
class SignalKind(StrEnum):
    """What reported it. Names equal the wire's."""

    XID = "xid"
    SXID = "sxid"
    NIC_LINK = "nic_link"
    NIC_COUNTER = "nic_counter"
    DEVICE_MISSING = "device_missing"
    THERMAL = "thermal"
    PROBE_FAILED = "probe_failed"


# How the reasons of counters begin; the counter's signal code follows.
NIC_COUNTER: Final = "nic_counter_"


class Signalled(Message):
    """Something that a device or NIC did; `age_ms` ago when it is read again after a restart, else 0."""

    node: str
    incarnation: int
    kind: SignalKind
    device: int = 0
    nic: str = ""
    code: str = ""
    message: str = ""
    age_ms: int = 0


# --- what the fold says


class NodeKnown(Message):
    """A node exists, with its parts as they are recorded; `in_service` is what its operators say.

    `unlinked` names the interfaces that had no link when its agent attached, `counted` those that are as they are because
    of a counter, and its signal's code. `lost_ms`: how long ago it was lost, by
    the times in the log, which know of none since its last entry.
    """

    node: str
    incarnation: int
    state: NodeState
    devices: tuple[tuple[int, DeviceState], ...] = ()
    nics: tuple[tuple[str, NicState], ...] = ()
    in_service: bool = True
    unlinked: tuple[str, ...] = ()
    lost_ms: int = 0
    counted: tuple[tuple[str, str], ...] = ()


class NodeForgotten(Message):
    """A node was removed."""

    node: str


class AttemptKnown(Message):
    """An attempt of which every member runs, for `age_ms` at least; `hang_after_ms` 0: silence is no sign."""

    job: str
    attempt: int
    members: int
    hang_after_ms: int
    nodes: tuple[str, ...]
    age_ms: int = 0


class AttemptGone(Message):
    """No attempt of the job runs."""

    job: str


class AttemptBroken(Message):
    """An attempt ended because of these nodes' hardware. Said once."""

    job: str
    attempt: int
    nodes: tuple[str, ...]


class IncidentKnown(Message):
    """The incident that is recorded as open; empty for none."""

    incident: str


Telemetry: TypeAlias = PathHeard | Beat | Progressed | Signalled
Known: TypeAlias = (
    NodeKnown | NodeForgotten | AttemptKnown | AttemptGone | AttemptBroken | IncidentKnown
)
Input: TypeAlias = Telemetry | Known

# --- verdicts


class NodeSuspect(Message):
    """Silent for a while."""

    node: str
    incarnation: int
    silent_ms: int


class NodeGone(Message):
    """Silent for too long."""

    node: str
    incarnation: int
    silent_ms: int
    message: str


class NodeBack(Message):
    """A suspect spoke again."""

    node: str
    incarnation: int


class MassSilence(Message):
    """Too many fell silent, or tell of a congested fabric, at once."""

    incident: str
    nodes: int
    message: str


class SilenceOver(Message):
    """Most speak again, and of no congestion; or those that do not are dead indeed."""

    incident: str


class NodeUnfit(Message):
    """A lemon: it brought down attempt after attempt, alone. With `drain_ms`, a straggler: what runs there has to leave."""

    node: str
    incarnation: int
    message: str
    drain_ms: int = 0


class NodeSlow(Message):
    """A straggler that is only told of: for people, and never published."""

    node: str
    incarnation: int
    job: str
    attempt: int
    member: int
    message: str


class JobHung(Message):
    """Alive without progress. `step` is the last one seen, -1 for none; `rank` fell silent first.

    `node` and `nic` name the port that went down under it; empty when none explains it.
    """

    job: str
    attempt: int
    silent_ms: int
    step: int
    rank: int
    node: str = ""
    nic: str = ""


class DeviceJudged(Message):
    """What a device is now."""

    node: str
    incarnation: int
    index: int
    condition: DeviceState
    reason: Reason


class NicJudged(Message):
    """What a network interface is now."""

    node: str
    incarnation: int
    nic: str
    condition: NicState
    reason: Reason


# What the leader is told, and what only people are.
Published: TypeAlias = (
    NodeSuspect
    | NodeGone
    | NodeBack
    | MassSilence
    | SilenceOver
    | NodeUnfit
    | JobHung
    | DeviceJudged
    | NicJudged
)
Verdict: TypeAlias = Published | NodeSlow
