"""Why a scheduler ends although nothing failed: the chain or the election says that it may not lead.

Crash-only: the process exits with the error's `code`, and its supervisor starts another. Other ends (damaged storage, a
gap in the inputs, a newer log, an illegal fact) keep their own errors; services/runtime/exits.py gives each its code.
"""

from __future__ import annotations

from services.runtime.exits import ExitCode


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
            f"store's terms above {log_term} (docs/how-to/scheduler.md, 'Terms went backwards'), then start again."
        )
