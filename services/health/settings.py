"""Settings of the health processor."""

from __future__ import annotations

import os
import socket
from typing import Annotated, Literal

from msgspec import Meta

from services.health.rules import Rules
from services.runtime.settings import CellSettings, SettingsError

_R = Rules()


class HealthSettings(CellSettings, frozen=True, kw_only=True):
    """Flags, environment and file of `tidemilld health`."""

    name: Annotated[
        str, Meta(max_length=128, description="Who judges, as verdicts say it; empty: HOST-PID")
    ] = ""
    signals_file: Annotated[
        str, Meta(description="Table of device events, TOML; empty: the one that is shipped")
    ] = ""
    host: Annotated[
        Literal["auto", "loop", "faust"],
        Meta(
            description="What brings the records: a loop of its own, or Faust with standbys, on Kafka; auto: faust there"
        ),
    ] = "auto"
    stream_stalled_s: Annotated[
        int,
        Meta(ge=5, description="Seconds that Faust may bring nothing though records are there"),
    ] = 30
    outside_progress: Annotated[
        bool,
        Meta(
            description="Others than gateways may write progress: each record must prove who wrote it"
        ),
    ] = False
    key: Annotated[
        str,
        Meta(
            description="File of the cell's key, as the gateways have it, for outside_progress; empty: one in the "
            "cell's directory"
        ),
    ] = ""
    weather_patience_s: Annotated[
        int, Meta(ge=1, description="Seconds of failing storage or broker after which it ends")
    ] = 60
    suspect_after_ms: Annotated[
        int, Meta(ge=3_000, description="Silent for this long, a node gets nothing new")
    ] = _R.suspect_after_ms
    lost_after_ms: Annotated[
        int, Meta(ge=5_000, description="Silent for this long, a node is given up")
    ] = _R.lost_after_ms
    path_gap_ms: Annotated[
        int,
        Meta(ge=2_500, description="No gateway heard for this long: every deadline starts anew"),
    ] = _R.path_gap_ms
    own_gap_ms: Annotated[
        int, Meta(ge=1_500, description="Time that we did not look counts for nobody; from this on")
    ] = _R.own_gap_ms
    breaker_least: Annotated[
        int, Meta(ge=2, description="Fewer silent nodes are never taken for an incident")
    ] = _R.breaker_least
    breaker_percent: Annotated[
        int,
        Meta(
            ge=0, le=100, description="More of the nodes silent at once are an incident, not deaths"
        ),
    ] = _R.breaker_percent
    breaker_window_ms: Annotated[int, Meta(ge=1_000, description="At once means within this")] = (
        _R.breaker_window_ms
    )
    incident_patience_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="Those still silent after this are given up, slowly, if half of the cell speaks",
        ),
    ] = _R.incident_patience_ms
    fabric_percent: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="More of the nodes that tell of congestion at once are the fabric's incident",
        ),
    ] = _R.fabric_percent
    lemon_strikes: Annotated[
        int,
        Meta(
            ge=0,
            description="A node that alone broke so many attempts within 28 days is cordoned; 0: never",
        ),
    ] = _R.lemon_strikes
    lemon_percent: Annotated[
        int,
        Meta(ge=0, le=100, description="Most nodes cordoned for that at a time, but one at least"),
    ] = _R.lemon_percent
    straggler_percent: Annotated[
        int,
        Meta(
            ge=0,
            description="A member that works so much longer than its gang's median for 50 s is a straggler; 0: none is",
        ),
    ] = _R.straggler_percent
    straggler_drain_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A straggler's node is drained within this, after a save; 0: it is only told of",
        ),
    ] = _R.straggler_drain_ms
    port_down_ms: Annotated[
        int, Meta(ge=0, description="A port that is down for longer is faulty")
    ] = _R.port_down_ms
    port_stall_ms: Annotated[
        int,
        Meta(ge=1_000, description="A gang that stands still this long waits for its port"),
    ] = _R.port_stall_ms
    port_flaps: Annotated[
        int, Meta(ge=2, description="A port that is down so often within the hour flaps")
    ] = _R.port_flaps

    @property
    def judge(self) -> str:
        """Who we are."""
        return self.name or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def hosted_by(self) -> Literal["loop", "faust"]:
        """What brings the records."""
        if self.host == "auto":
            return "faust" if self.log == "kafka" else "loop"
        return self.host

    def rules(self) -> Rules:
        """What the detector judges by. Raises SettingsError."""
        if self.lost_after_ms <= self.suspect_after_ms:
            raise SettingsError(
                f"lost_after_ms {self.lost_after_ms} must be above suspect_after_ms {self.suspect_after_ms}"
            )
        ours = {field for field in Rules.__struct_fields__ if field in type(self).__struct_fields__}
        return Rules(judge=self.judge, **{field: getattr(self, field) for field in sorted(ours)})
