"""What cells of the demo do alike: start a host, fold the stored log in this process, go on without a broken part."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from services.demo.hosts import Host
from services.demo.story import DEVICES, Failed, OwnFold
from services.demo.timeline import Timeline
from services.runtime.reader import LogReader
from services.runtime.settings import CellSettings
from services.runtime.trial import TrialCell
from services.runtime.wiring import open_cell
from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.facts import Fact
from tidemill import Client, job_request


def host_of(cell: TrialCell, name: str, gateways: str) -> Host:
    """One more host, attached to the first of the gateways that answers. Its runs end with it."""
    arguments = (
        "--cell", cell.name, "--directory", str(cell.directory), "--gateway", gateways,
        "--fake-gpus", DEVICES, "--cpu", "8", "--end-runs",
    )  # fmt: skip
    return Host(name, arguments, cell.directory / "hosts" / name, os.environ)


def fold_of(settings: CellSettings, offset: int) -> OwnFold:
    """State and facts of the stored log up to that offset, read without asking any service."""
    with contextlib.ExitStack() as closing:
        opened = open_cell(settings)
        closing.callback(opened.close)
        log = opened.event_log()
        closing.callback(log.close)
        cluster = Cluster(settings.cell)
        reader = LogReader(log, cluster, stop_before=lambda entry: entry.offset > offset)
        facts: list[tuple[int, Fact]] = []
        while folded := reader.read(timeout_s=0):
            entries = [each.entry for each in folded if each.accepted]
            facts += [(entry.at_ms, told.fact) for entry in entries for told in entry.facts]
        return OwnFold(snapshot.digest(cluster), tuple(facts))


def go_on_without(
    client: Client, timeline: Timeline, member: str, what: str, *, kill: Callable[[], object]
) -> None:
    """Kill a member of Kafka or etcd and see a job through without it. Raises Failed, TidemillError."""
    timeline.add("fault", f"kill -9 of {member}, {what}")
    kill()
    began = time.monotonic()
    wanted = job_request({"name": f"without-{member}", "cpu": 1, "command": ["true"]})
    job = client.submit(wanted, deadline_s=60.0).job
    view = client.wait(job, timeout_s=60)
    if view.state != "succeeded":
        raise Failed(f"job {job} without {member} {view.state}: {view.reason.message}")
    took_s = time.monotonic() - began
    timeline.add("good", f"without {member} job {job} was decided, ran and ended in {took_s:.1f} s")
