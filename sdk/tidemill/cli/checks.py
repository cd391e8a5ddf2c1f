"""What `tidemill doctor` looks at. It changes nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemill.client import Client
    from tidemill.v1 import views_pb2

SLOW_S = 0.5
STALE_MS = 5_000


class Finding(NamedTuple):
    """One thing looked at."""

    subject: str
    verdict: str
    text: str
    next_command: str = ""


def check(subject: str, verdict: str, text: str, next_command: str = "") -> Finding:
    """A finding on one line."""
    return Finding(subject, verdict, " ".join(text.split()), next_command)


def check_cell(client: Client) -> list[Finding]:
    """The way to the gateway, the token, and what the gateway says about the cell."""
    where = f"{client.context.gateway}, from {client.context.source}"
    began = time.monotonic()
    try:
        cell = client.cell(deadline_s=5.0)
    except TidemillError as error:
        return [check("gateway", "failed", f"{where}: {error.why or error.what}", "tidemilld up")]
    took_s = time.monotonic() - began
    verdict = "warning" if took_s > SLOW_S else "ok"
    return [
        check(
            "gateway",
            verdict,
            f"{where}, answers in {took_s * 1000:.0f} ms, version {cell.version or 'unknown'}",
        ),
        *_findings(cell),
    ]


def _findings(cell: views_pb2.CellView) -> Iterator[Finding]:
    if cell.leader:
        yield check("leader", "ok", f"{cell.leader}, term {cell.term}, offset {cell.offset}")
    else:
        yield check("leader", "failed", "nobody leads: nothing is decided", "tidemilld scheduler")
    if cell.lag_ms > STALE_MS:
        text = f"this gateway last read the log to its end {cell.lag_ms / 1000:.0f} s ago"
        yield check("view", "warning", text, "tidemill log tail")
    if cell.incident:
        yield check(
            "incident",
            "warning",
            f"{cell.incident}: no node is declared lost meanwhile",
            "tidemill nodes",
        )
    simulated = " (simulated)" if cell.simulated_devices else ""
    fleet = f"{cell.nodes_ready} of {cell.nodes} nodes ready, {cell.devices_free} of {cell.devices} devices free{simulated}"
    if cell.nodes_ready:
        yield check("fleet", "ok" if cell.nodes_ready == cell.nodes else "warning", fleet)
    else:
        yield check("fleet", "failed", fleet + ": nothing can run", "tidemilld agent --help")
    yield check(
        "jobs",
        "ok",
        f"{cell.jobs_running} running, {cell.jobs_waiting} waiting, {cell.jobs_held} held",
    )
    if cell.voided:
        yield check("log", "warning", f"{cell.voided} void entries: two leaders tried at once, or a retry",
                    "tidemill log tail --void")  # fmt: skip
    if cell.parked:
        yield check(
            "inputs",
            "warning",
            f"{cell.parked} inputs could not be decided and are parked",
            "tidemill log tail",
        )
