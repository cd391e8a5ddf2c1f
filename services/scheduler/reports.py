"""Reports: what an agent or trainer saw. Each is checked against the fold; one that does not fit is weather.

Weather is counted, makes no fact, and its position moves: late, duplicated and reordered reports are how networks are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.scheduler import nodes, trainers
from services.scheduler.draft import Draft
from services.scheduler.wire import need, need_name, parse
from tidemill.v1 import reports_pb2

_OF_NODES: Final[dict[str, Callable[[Draft, reports_pb2.Report], None]]] = {
    "node_attached": nodes.attached,
    "run_began": nodes.run_began,
    "run_finished": nodes.run_finished,
}


def decide(draft: Draft, stored: bytes) -> None:
    """Turn one record of <cell>.reports into facts, or none; raises UnfitError."""
    report = parse(reports_pb2.Report, stored)
    need_name(report.principal.name, "the principal")
    kind = report.WhichOneof("kind")
    need(kind is not None, "a report of no kind that this version knows")
    assert kind is not None
    draft.by = report.principal.name
    of_node = _OF_NODES.get(kind)
    if of_node is not None:
        need_name(report.node, "the node")
        of_node(draft, report)
        return
    trainers.HANDLERS[kind](draft, getattr(report, kind))
