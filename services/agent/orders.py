"""What a node must run: orders, and how a desired set follows another. It never holds what the agent did about them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from enum import StrEnum, unique

import msgspec

from statemachines.values import Grant, ResumePoint, RunId


@unique
class Action(StrEnum):
    """What an order asks. Order equals the wire's."""

    RUN = "run"
    STOP = "stop"


class Order(msgspec.Struct, frozen=True, gc=False):
    """One run of the desired set, with all that is needed to start it. Field names equal those of RunOrder.

    `digest` is the SHA-256 of the order as it came over the wire; it goes into the digest of the set.
    """

    run: RunId
    job: str
    attempt: int
    rank: int
    action: Action
    role: str = ""
    name: str = ""
    grace_ms: int = 0
    devices: tuple[Grant, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    launch: str = ""
    members: int = 1
    processes: int = 1
    world_size: int = 1
    first_global_rank: int = 0
    master_address: str = ""
    master_port: int = 0
    resume: ResumePoint = ResumePoint()
    token: str = ""
    fence_after_ms: int = 0
    overlap_safe: bool = False
    save_ask: int = 0
    save_at_step: int = 0
    stop_after_save: bool = False
    gang_nodes: tuple[str, ...] = ()
    started: bool = False
    digest: bytes = b""

    @property
    def fenced_after_ms(self) -> int:
        """How long the agent may be cut off before it kills this run; 0: for ever."""
        return 0 if self.overlap_safe else self.fence_after_ms

    @property
    def ask(self) -> tuple[int, int, bool]:
        """The newest early save that was asked for, as the trainer reads it."""
        return (self.save_ask, self.save_at_step, self.stop_after_save)


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where in the log a desired set was computed. A higher term beats any offset."""

    term: int = 0
    offset: int = 0


class DesiredSet(msgspec.Struct, frozen=True, gc=False):
    """A whole set, or what changed since the one before, with the digest of the whole."""

    at: Position
    full: bool
    changed: tuple[Order, ...] = ()
    removed: tuple[RunId, ...] = ()
    digest: bytes = b""


def set_digest(orders: Iterable[Order]) -> bytes:
    """What services.runtime.desired computes from the wire's orders; a test holds the two equal.

    Over each run in order: u32 length and name, then the order's own digest.
    """
    whole = hashlib.sha256()
    for order in sorted(orders, key=lambda order: order.run):
        name = order.run.encode()
        whole.update(struct.pack(">I", len(name)) + name + order.digest)
    return whole.digest()


def follow(orders: Mapping[RunId, Order], desired: DesiredSet) -> dict[RunId, Order] | None:
    """The orders after `desired`, or None when its digest shows that a change was missed."""
    new = {} if desired.full else dict(orders)
    for run in desired.removed:
        new.pop(run, None)
    for order in desired.changed:
        new[order.run] = order
    return new if set_digest(new.values()) == desired.digest else None
