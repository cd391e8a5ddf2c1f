"""Which of the reports that a run left unsent are told in its place: those about its own attempt, of a trainer's kinds.

They go before the run's end, so that a checkpoint which was durable when its program died still counts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from services.agent.orders import Order
from services.agent.outbox import Relayed
from tidemill.v1 import reports_pb2

# An answer to an ask is of no use once the program is gone.
KINDS: Final = frozenset(
    {"save_began", "saved", "save_failed", "removed", "resumed", "load_failed", "finished"}
)


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
    said = getattr(report, kind)
    return said.job == order.job and (kind == "removed" or said.attempt == order.attempt)
