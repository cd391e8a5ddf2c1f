"""What both cells of the demo do alike: start a host at a gateway, and fold the stored log in this process."""

from __future__ import annotations

import contextlib
import os

from services.demo.hosts import Host
from services.demo.story import DEVICES, OwnFold
from services.runtime.reader import LogReader
from services.runtime.trial import TrialCell
from services.runtime.wiring import open_cell
from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.facts import Fact


def host_of(cell: TrialCell, name: str, gateways: str) -> Host:
    """One more host, attached to the first of the gateways that answers. Its runs end with it."""
    arguments = (
        "--cell", cell.name, "--directory", str(cell.directory), "--gateway", gateways,
        "--fake-gpus", DEVICES, "--cpu", "8", "--end-runs",
    )  # fmt: skip
    return Host(name, arguments, cell.directory / "hosts" / name, os.environ)


def fold_of(cell: TrialCell, offset: int) -> OwnFold:
    """State and facts of the stored log up to that offset, read without asking any service."""
    with contextlib.ExitStack() as closing:
        opened = open_cell(cell.settings)
        closing.callback(opened.close)
        log = opened.event_log()
        closing.callback(log.close)
        cluster = Cluster(cell.name)
        reader = LogReader(log, cluster, stop_before=lambda entry: entry.offset > offset)
        facts: list[tuple[int, Fact]] = []
        while folded := reader.read(timeout_s=0):
            entries = [each.entry for each in folded if each.accepted]
            facts += [(entry.at_ms, told.fact) for entry in entries for told in entry.facts]
        return OwnFold(snapshot.digest(cluster), tuple(facts))
