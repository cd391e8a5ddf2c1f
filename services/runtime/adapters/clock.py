"""The Clock port on the operating system's clocks. The only place that reads the wall clock."""

from __future__ import annotations

import time


class SystemClock:
    """Clock of this machine."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds that only grow, suspended time included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
