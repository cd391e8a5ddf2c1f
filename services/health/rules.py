"""The numbers that the detector judges by; reference: 2 s beats. Settings fill them in."""

from __future__ import annotations

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All times in milliseconds of a clock that only grows."""

    judge: str = "health"
    # Three beats missed: nothing new is placed there. Five: the work goes on elsewhere. A pause of 8 s is forgiven: up
    # to 2 s since the beat before it, and a quarter of a second for the batch, the broker and us (decision 0016).
    suspect_after_ms: int = 6_000
    lost_after_ms: int = 10_250
    # A verdict is said again this often while the log does not show it.
    repeat_ms: int = 2_000
    # Gateways were not heard for this long (they are every 2 s): their agents have to find them again.
    path_gap_ms: int = 3_500
    # We were not looking for this long: the time that passed does not count.
    own_gap_ms: int = 3_000
    # At least so many nodes, and more than this share, silent within the window: an incident, not deaths.
    breaker_least: int = 3
    breaker_percent: int = 2
    breaker_window_ms: int = 60_000
    # After this long those that are still silent are dead indeed, if half of the cell speaks.
    incident_patience_ms: int = 120_000
    # A lemon: so many attempts broken by it alone within the window; 0: nobody is one.
    lemon_strikes: int = 3
    lemon_window_ms: int = 28 * 86_400_000
    # Quarantined at a time: this share of the nodes, at least one; none of so few nodes that each is needed.
    lemon_percent: int = 2
    lemon_nodes_least: int = 4
    # More of the nodes with a strike within this time, and at least so many: a storm, not lemons.
    lemon_storm_window_ms: int = 86_400_000
    lemon_storm_percent: int = 10
    lemon_storm_least: int = 4
    # A straggler: a member that works for so much longer than the median of its gang in so many rounds; 0: nobody is one.
    straggler_percent: int = 10
    straggler_round_ms: int = 10_000
    straggler_rounds: int = 5
    # More of the members at once, and more than one: the program, or what they share.
    straggler_storm_percent: int = 10
    # How long what runs on it may take to save and go; 0: it is only told of.
    straggler_drain_ms: int = 0
    # Told of so often.
    straggler_tell_ms: int = 600_000
    # More of the nodes tell of congestion, and at least so many: the fabric's fault, and no port's.
    fabric_percent: int = 10
    fabric_least: int = 3
    # A collective survives a port that is down for less (NCCL: timeout 4.3 s, 7 retries).
    port_down_ms: int = 35_000
    # A gang that made no step for this long while a port of it is down waits for that port.
    port_stall_ms: int = 10_000
    # Up for this long: a port is back.
    port_steady_ms: int = 10_000
    # Down so often within the window: it flaps.
    port_flaps: int = 3
    port_flap_window_ms: int = 3_600_000
