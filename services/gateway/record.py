"""Records as the gateway makes them. One that the store would not take, or the leader would park unread, is refused.

A store that takes a batch says one thing of the whole of it, so a record that can never be stored must not come so far:
it would fail everybody's. Fields that we do not know count too: they are kept, and so they are stored.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from services.gateway.refusal import Refusal, Status
from services.runtime.ports import INPUT_BYTES_MAX, RECORD_BYTES_MAX, Outgoing
from services.runtime.topics import LEADER_INPUTS, Topic

_DECIDED: Final = frozenset(topic.suffix for topic in LEADER_INPUTS)


def record(topic: Topic, key: str, message: Message) -> Outgoing:
    """The message as a record of the topic; raises Refusal when it is too large for one."""
    value = message.SerializeToString()
    limit = INPUT_BYTES_MAX if topic.suffix in _DECIDED else RECORD_BYTES_MAX
    if len(value) > limit:
        raise too_large(message, len(value), limit)
    return Outgoing(topic.suffix, key.encode(), value)


def too_large(message: Message, size: int, limit: int) -> Refusal:
    """What the sender of a message is told that no record can hold."""
    return Refusal(
        Status.INVALID_ARGUMENT,
        "too_large",
        f"{message.DESCRIPTOR.name} has {size} bytes with all its fields, and the cell takes at most {limit}: "
        "leave out what is not needed",
    )
