"""The port of a stream framework: records of topics are brought to one member of a group, the rest stand by.

What a group promises is weak, and a handler must live with it: records may come again or late, positions may jump, and
for a moment two members may hold the same partitions. It decides nothing about what a record means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from services.runtime.ports import InputRecord, PortError

# (topic by suffix, partition)
Place: TypeAlias = tuple[str, int]


class StreamsEndedError(PortError):
    """The framework gave up; starting the process again is the cure."""


class StreamHandler(Protocol):
    """Takes what is brought. Both are called on the event loop that runs the streams."""

    def assigned(self, places: frozenset[Place]) -> None:
        """From now on these are brought to us and no others; empty: another member has them."""

    async def take(self, record: InputRecord) -> None:
        """One record. Those of a partition come in order, one after the other; it must not raise."""


class Streams(Protocol):
    """Membership of one group."""

    async def run(self, topics: Sequence[str], handler: StreamHandler) -> None:
        """Bring all partitions of the topics to one member, until cancelled: that leaves the group at once.

        Raises StreamsEndedError.
        """
