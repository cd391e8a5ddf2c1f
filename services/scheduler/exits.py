"""Why a scheduler ends. Crash-only: it exits with one of these codes, and its supervisor starts another.

The codes are part of the command line's contract. 75 and above: starting again at once is right. 70 to 74: a person
is needed, starting again only repeats the message.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class ExitCode(IntEnum):
    """Exit status of `tidemilld scheduler`."""

    STOPPED = 0  # Asked to, after handing over.
    TERM_BEHIND = 70  # Elections went backwards: the election store was restored or emptied.
    INPUT_GAP = 71  # Inputs we had not decided are gone.
    LOG_DAMAGED = 72  # Stored bytes are not what was written.
    LOG_NEWER = 73  # A newer version leads, or has led, this cell.
    FOLD_BROKEN = 74  # A fact that the fold calls illegal: a bug of ours.
    DEPOSED = 75  # Another leader's entry was accepted, or ours was not.
    LEADERSHIP_LOST = 76  # The election says that we may no longer try.


class SchedulerExitError(Exception):
    """The process must end with `code`; the message says what an operator does, if anything."""

    code: ExitCode


class DeposedError(SchedulerExitError):
    """The chain went on without us. Nothing that we had in flight counts; nothing of ours was acted on."""

    code = ExitCode.DEPOSED


class LeadershipLostError(SchedulerExitError):
    """The lease or lock is gone. Entries still on their way are settled by the chain."""

    code = ExitCode.LEADERSHIP_LOST


class TermBehindError(SchedulerExitError):
    """Our term is not above the log's, so readers would not take our entries, or would take them beside another's."""

    code = ExitCode.TERM_BEHIND

    def __init__(self, *, term: int, log_term: int) -> None:
        super().__init__(
            f"won term {term}, but the log is at term {log_term} already: the election store has gone backwards "
            "(restored from a backup, or emptied). Refusing to lead. Running jobs are not affected. Raise the "
            f"store's terms above {log_term} (docs/operations.md, 'Terms went backwards'), then start again."
        )


class LogNewerError(SchedulerExitError):
    """The log holds facts that this version does not know."""

    code = ExitCode.LOG_NEWER


class LogDamagedError(SchedulerExitError):
    """The log, or what lies under it, is not what was written."""

    code = ExitCode.LOG_DAMAGED


class InputGapExitError(SchedulerExitError):
    """Inputs are gone that were never decided. Nothing was skipped."""

    code = ExitCode.INPUT_GAP


class FoldBrokenError(SchedulerExitError):
    """A fact was written that the fold calls illegal: a bug, ours or of the version that wrote it."""

    code = ExitCode.FOLD_BROKEN
