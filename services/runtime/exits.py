"""Exit codes of every `tidemilld` command, in one place. Part of the command line's contract.

75 and above: starting again at once is right. 70 to 74, 2 and 78: a person is needed, starting again only repeats the
message. It decides nothing; a supervisor does.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final

from services.runtime.ports import DamagedError, InputGapError, PortError
from services.runtime.settings import SettingsError


@unique
class ExitCode(IntEnum):
    """What an end means."""

    STOPPED = 0  # Asked to, after draining.
    FAILED = (
        1  # A bug of ours, or an error that has no code of its own; the last log line says which.
    )
    USAGE = 2  # The command line makes no sense.
    TERM_BEHIND = 70  # Elections went backwards: the election store was restored or emptied.
    INPUT_GAP = 71  # Inputs we had not decided are gone.
    LOG_DAMAGED = 72  # Stored bytes are not what was written.
    LOG_NEWER = 73  # A newer version leads, or has led, this cell.
    FOLD_BROKEN = 74  # A fact that the fold calls illegal: a bug of ours.
    DEPOSED = 75  # Another leader's entry was accepted, or ours was not.
    LEADERSHIP_LOST = 76  # The election says that we may no longer try.
    UNAVAILABLE = 77  # Weather that outlived our patience: a broker, a disk, a port that is taken.
    SETTINGS = 78  # A setting is wrong or missing.


# Starting again only repeats the message.
FINAL: Final = frozenset(
    {
        ExitCode.USAGE,
        ExitCode.TERM_BEHIND,
        ExitCode.INPUT_GAP,
        ExitCode.LOG_DAMAGED,
        ExitCode.LOG_NEWER,
        ExitCode.FOLD_BROKEN,
        ExitCode.SETTINGS,
    }
)
_MEANINGS: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    (SettingsError, ExitCode.SETTINGS),
    (InputGapError, ExitCode.INPUT_GAP),
    (DamagedError, ExitCode.LOG_DAMAGED),
    (PortError, ExitCode.UNAVAILABLE),
    (OSError, ExitCode.UNAVAILABLE),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The code of a process that ends with this error; an error may carry its own as `code`."""
    code = getattr(error, "code", None)
    if isinstance(code, ExitCode):
        return code
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return meaning
    return _of_the_log(error)


def _of_the_log(error: BaseException) -> ExitCode:
    # Loaded when it is needed: a supervisor knows the codes and has no use for the wire format.
    from services.runtime.codec import UnknownFactError
    from statemachines.lifecycle import IllegalTransition

    if isinstance(error, UnknownFactError):
        return ExitCode.LOG_NEWER
    return ExitCode.FOLD_BROKEN if isinstance(error, IllegalTransition) else ExitCode.FAILED
