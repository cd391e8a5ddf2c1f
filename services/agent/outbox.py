"""Reports that the cell has not yet acknowledged. Each is sent again after every attach until it is; none is dropped.

It never sends anything itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from statemachines.values import Evidence, Reach, RunId, Tier

# Reports may go out before the state is stored (an end must be told even when the disk is full), so a restart skips
# the sequences that a lost write could have used. A gap is visible, a sequence used twice would not be.
SKIPPED_AT_RESTART = 1024


class RunBegan(msgspec.Struct, frozen=True, tag="began", gc=False):
    run: RunId


class RunFinished(msgspec.Struct, frozen=True, tag="finished", gc=False):
    run: RunId
    evidence: Evidence
    exit_code: int = 0
    signal: int = 0
    message: str = ""


class Saved(msgspec.Struct, frozen=True, tag="saved", gc=False):
    """A checkpoint seen by its commit marker, not told by the trainer."""

    job: str
    attempt: int
    step: int
    uri: str
    bytes: int
    tier: Tier
    reach: Reach
    manifest: str


class Relayed(msgspec.Struct, frozen=True, tag="relayed", gc=False):
    """What a trainer of this node left unsent when it ended: a serialised tidemill.v1.Report, checked by relay.py."""

    report: bytes


Kind = RunBegan | RunFinished | Saved | Relayed


class Report(msgspec.Struct, frozen=True, gc=False):
    """A claim of this node, with its place in the order of its claims."""

    sequence: int
    incarnation: int
    at_ms: int
    kind: Kind


class Outbox:
    """Unacknowledged reports in the order of their sequences."""

    def __init__(self, reports: Iterable[Report] = (), *, sequence: int = 0) -> None:
        self._reports = {report.sequence: report for report in reports}
        self.sequence = sequence

    def add(self, kind: Kind, *, incarnation: int, at_ms: int) -> Report:
        """Take a claim; it stays until acknowledged."""
        self.sequence += 1
        report = Report(self.sequence, incarnation, at_ms, kind)
        self._reports[report.sequence] = report
        return report

    def acknowledge(self, sequence: int) -> bool:
        """Whether that report was waiting; a repeated acknowledgement changes nothing."""
        return self._reports.pop(sequence, None) is not None

    def waits(self, sequence: int) -> bool:
        """Whether that report is still unacknowledged."""
        return sequence in self._reports

    def waiting(self) -> tuple[Report, ...]:
        """All unacknowledged reports, oldest first."""
        return tuple(self._reports.values())

    def __len__(self) -> int:
        return len(self._reports)
