"""How long this node has been cut off from its cell, on its own clocks. It never reads a clock and kills nothing.

Only an acknowledged beat renews: the gateway answers one only while its fold has this incarnation standing. The
renewal counts from when that beat was sent, so the agent never believes itself attached for longer than the cell does.
"""

from __future__ import annotations

import msgspec

# Beats in flight that are remembered; older ones can no longer renew, which errs on the safe side.
BEATS_IN_FLIGHT = 64


class Now(msgspec.Struct, frozen=True, gc=False):
    """Clock values handed in. CLOCK_MONOTONIC, CLOCK_BOOTTIME (counts suspended time), and the wall."""

    mono_ms: int
    boot_ms: int
    wall_ms: int


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """When the newest acknowledged beat was sent, and its sequence. Written where supervisors read it too."""

    mono_ms: int
    boot_ms: int
    sequence: int


class Lease:
    """The agent's own clock of being attached."""

    def __init__(self, renewed: Stamp) -> None:
        self.renewed = renewed
        self._sent: dict[int, Now] = {}
        self.sequence = renewed.sequence

    def send(self, now: Now) -> int:
        """Sequence of a beat that leaves now."""
        self.sequence += 1
        self._sent[self.sequence] = now
        if len(self._sent) > BEATS_IN_FLIGHT:
            del self._sent[next(iter(self._sent))]
        return self.sequence

    def acknowledge(self, sequence: int) -> Stamp | None:
        """The renewal that this acknowledgement is worth; None for an unknown or overtaken beat."""
        sent = self._sent.pop(sequence, None)
        if sent is None or sequence <= self.renewed.sequence:
            return None
        if self._sent:
            for older in [number for number in self._sent if number < sequence]:
                del self._sent[older]
        self.renewed = Stamp(sent.mono_ms, sent.boot_ms, sequence)
        return self.renewed

    def cut_off_ms(self, now: Now) -> int:
        """Time since the renewal by whichever clock says more."""
        return max(now.mono_ms - self.renewed.mono_ms, now.boot_ms - self.renewed.boot_ms)
