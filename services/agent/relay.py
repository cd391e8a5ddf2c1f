"""Which of the reports that a run left unsent are told in its place: those about its own attempt, of a trainer's kinds.

They go before the run's end, so that a checkpoint which was durable when its program died still counts. Pure. Nothing
passes that the protos' rules refuse: a gateway ends the stream of an agent that says such a thing, and the report would
come again on the next one. The rules are spelled out here because protovalidate would add a third to an agent's size;
a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError, Message

from services.agent.orders import Order
from services.agent.outbox import Relayed
from tidemill.v1 import reports_pb2

# An answer to an ask is of no use once the program is gone.
KINDS: Final = frozenset(
    {"save_began", "saved", "save_failed", "removed", "resumed", "load_failed", "finished"}
)
# Characters, by field.
LENGTH_MAX: Final = {"job": 128, "uri": 4096, "message": 4096, "manifest": 64, "node": 253}


def relayed(order: Order, left: Iterable[bytes]) -> tuple[Relayed, ...]:
    """What may be told, in order. The run may have left anything: the rest is dropped."""
    return tuple(Relayed(data) for data in left if _is_its_own(order, data))


def _is_its_own(order: Order, data: bytes) -> bool:
    try:
        report = reports_pb2.Report.FromString(data)
    except DecodeError:
        return False
    kind = report.WhichOneof("kind")
    if kind not in KINDS:
        return False
    said: Message = getattr(report, kind)
    words = {field.name: value for field, value in said.ListFields()}
    about_us = words.get("job") == order.job
    about_us &= kind == "removed" or words.get("attempt") == order.attempt
    return about_us and (kind != "saved" or "uri" in words) and _keeps_the_rules(said)


def _keeps_the_rules(said: Message) -> bool:
    for field, value in said.ListFields():
        if field.enum_type is not None:
            good = value in field.enum_type.values_by_number
        elif isinstance(value, str):
            good = len(value) <= LENGTH_MAX[field.name]
        else:
            good = value >= 0
        if not good:
            return False
    return True
