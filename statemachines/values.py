"""Values that facts and entities share. Frozen; integers only: milli-CPU, milli-device, MiB, milliseconds.

Field names equal those of the protobuf messages of the same name, which is what the codec relies on. This file
never holds behaviour beyond arithmetic on one value.
"""

from __future__ import annotations

from enum import unique
from typing import NewType, dataclass_transform

import msgspec

from statemachines.lifecycle import Word

JobId = NewType("JobId", str)
RunId = NewType("RunId", str)
NodeId = NewType("NodeId", str)
QueueId = NewType("QueueId", str)

WHOLE_DEVICE_MILLI = 1000


# For type checkers: what inherits from a frozen value is frozen too.
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frozen record without cycles; encoded as an array, in field order."""


@unique
class Evidence(Word):
    """How a run's end is known. Silence is not among them. Order equals the wire's."""

    EXIT_STATUS = "exit_status"
    KILLED_AND_REAPED = "killed_and_reaped"
    FENCE_CONFIRMED = "fence_confirmed"
    SELF_FENCED = "self_fenced"
    NODE_REBOOTED = "node_rebooted"
    OPERATOR_SAID = "operator_said"
    NEVER_STARTED = "never_started"


@unique
class Cause(Word):
    """Why an attempt stops or ended. Order equals the wire's."""

    PROGRAM_EXITED = "program_exited"
    PROGRAM_FAILED = "program_failed"
    NODE_LOST = "node_lost"
    DEVICE_FAULT = "device_fault"
    NIC_FAULT = "nic_fault"
    HUNG = "hung"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    HELD = "held"
    REQUEUED = "requeued"
    DRAINED = "drained"
    PREEMPTED = "preempted"
    START_FAILED = "start_failed"
    RESUME_MISMATCH = "resume_mismatch"


@unique
class Outcome(Word):
    """How an attempt ended. Order equals the wire's."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


@unique
class JobNext(Word):
    """What becomes of a job when its attempt has ended. Order equals the wire's."""

    QUEUED = "queued"
    HELD = "held"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@unique
class Tier(Word):
    """Where a checkpoint's bytes are. Order equals the wire's."""

    MEMORY = "memory"
    LOCAL = "local"
    PEER = "peer"
    REMOTE = "remote"


@unique
class Reach(Word):
    """What a checkpoint can be loaded from: its node, its domain, the cell, everywhere. Order equals the wire's."""

    NODE = "node"
    DOMAIN = "domain"
    CELL = "cell"
    EVERYWHERE = "everywhere"


class Resources(Value):
    """What one member needs on its node."""

    cpu_milli: int = 0
    memory_mib: int = 0
    devices: int = 0
    device_models: tuple[str, ...] = ()


class Role(Value):
    """Members of a gang that need the same."""

    name: str
    count: int
    resources: Resources
    processes: int = 0


class RetryPolicy(Value):
    """Bounds on further attempts; 0 takes the cell's default (see Policy)."""

    max_attempts: int = 0
    max_attempts_without_progress: int = 0
    backoff_ms: int = 0
    only_infrastructure: bool = False


class JobSpec(Value):
    """What planning and recovery need to know of a job; what it runs is a blob, named by digest."""

    name: str
    queue: QueueId
    priority: int
    roles: tuple[Role, ...]
    retry: RetryPolicy = RetryPolicy()
    overlap_safe: bool = False
    fence_after_ms: int = 0
    grace_ms: int = 0
    hang_after_ms: int = 0
    max_run_ms: int = 0
    held: bool = False
    launch: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    keep_checkpoints: int = 0

    @property
    def members(self) -> int:
        """Runs in the gang."""
        return sum(role.count for role in self.roles)

    @property
    def devices(self) -> int:
        """Whole devices of the gang."""
        return self.demand()[0]

    @property
    def cpu_milli(self) -> int:
        """Milli-CPU of the gang."""
        return self.demand()[1]

    def demand(self) -> tuple[int, int]:
        """Whole devices and milli-CPU of the gang, for those who need both of every job."""
        devices = cpu_milli = 0
        for role in self.roles:
            each, count = role.resources, role.count
            devices += count * each.devices
            cpu_milli += count * each.cpu_milli
        return devices, cpu_milli


class Grant(Value):
    """Share of one device held by a run; milli 1000 is the whole."""

    index: int
    milli: int


class Placement(Value):
    """One member of a gang, put on a node."""

    run: RunId
    node: NodeId
    rank: int
    role: str
    devices: tuple[Grant, ...]
    cpu_milli: int
    memory_mib: int


class ResumePoint(Value):
    """Where an attempt starts from; step 0 and an empty uri mean the beginning."""

    step: int = 0
    uri: str = ""
    manifest: str = ""
    attempt: int = 0


class Reason(Value):
    """Why something waits, is held or ended: code for programs, message for people."""

    code: str
    message: str = ""
    blockers: tuple[str, ...] = ()
    missing: int = 0


class DeviceSpec(Value):
    """A device as the agent found or was told to declare it."""

    index: int
    model: str
    uuid: str = ""
    memory_mib: int = 0
    simulated: bool = False


class NicSpec(Value):
    """A network interface as the agent found it."""

    name: str
    speed_mbps: int = 0
    up: bool = True
    kind: str = ""


class Inventory(Value):
    """What a node has."""

    address: str
    cpu_milli: int
    memory_mib: int
    devices: tuple[DeviceSpec, ...] = ()
    nics: tuple[NicSpec, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    boot_id: str = ""
    agent_version: str = ""
