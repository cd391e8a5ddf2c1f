"""What the end of a run says about whose fault it was: a data table, read by the leader and quoted to people.

137 and 143 are how shells report SIGKILL and SIGTERM. 16 and 17 are Megatron's: the same checkpoint on other nodes,
and hardware suspect after a failed validation; planning puts the next attempt elsewhere for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from typing import Final

from statemachines.lifecycle import Word
from statemachines.run import Run
from statemachines.values import Cause, Evidence, Value


@unique
class Blame(Word):
    """Whose fault a bad end is, as far as one can tell."""

    CELL = "cell"  # A node, device or network failed: always tried again.
    UNCLEAR = "unclear"  # Tried again within the budget.
    PROGRAM = "program"  # Tried again only when it can do better than the last time.


class Meaning(Value):
    """What an end means; `words` go before what the agent said."""

    cause: Cause
    blame: Blame
    words: str


EXIT_CODES: Final[Mapping[int, Meaning]] = {
    16: Meaning(Cause.PROGRAM_FAILED, Blame.UNCLEAR, "asks for the same checkpoint on other nodes"),
    17: Meaning(Cause.DEVICE_FAULT, Blame.UNCLEAR, "suspects its hardware"),
    126: Meaning(Cause.PROGRAM_FAILED, Blame.PROGRAM, "its command cannot be executed"),
    127: Meaning(Cause.PROGRAM_FAILED, Blame.PROGRAM, "its command was not found"),
    137: Meaning(Cause.PROGRAM_FAILED, Blame.UNCLEAR, "was killed (out of memory is usual)"),
    143: Meaning(Cause.PROGRAM_FAILED, Blame.UNCLEAR, "was terminated from outside"),
}
SIGNALS: Final[Mapping[int, Meaning]] = {
    1: Meaning(Cause.PROGRAM_FAILED, Blame.UNCLEAR, "was hung up on"),
    2: Meaning(Cause.PROGRAM_FAILED, Blame.UNCLEAR, "was interrupted from outside"),
    9: Meaning(Cause.PROGRAM_FAILED, Blame.UNCLEAR, "was killed (out of memory is usual)"),
    15: Meaning(Cause.PROGRAM_FAILED, Blame.UNCLEAR, "was terminated from outside"),
}
EVIDENCE: Final[Mapping[Evidence, Meaning]] = {
    Evidence.KILLED_AND_REAPED: Meaning(Cause.NODE_LOST, Blame.UNCLEAR, "was killed by its node"),
    Evidence.FENCE_CONFIRMED: Meaning(Cause.NODE_LOST, Blame.CELL, "its node was fenced"),
    Evidence.SELF_FENCED: Meaning(
        Cause.NODE_LOST, Blame.CELL, "its node was cut off and killed it"
    ),
    Evidence.NODE_REBOOTED: Meaning(Cause.NODE_LOST, Blame.CELL, "its node started anew"),
    Evidence.OPERATOR_SAID: Meaning(Cause.NODE_LOST, Blame.CELL, "an operator says that it died"),
    Evidence.NEVER_STARTED: Meaning(Cause.START_FAILED, Blame.UNCLEAR, "could not be started"),
}
_ANY_SIGNAL: Final = Meaning(Cause.PROGRAM_FAILED, Blame.PROGRAM, "crashed")
_ANY_CODE: Final = Meaning(Cause.PROGRAM_FAILED, Blame.PROGRAM, "failed")


def suspects_hardware(run: Run) -> bool:
    """Whether the program itself said that its hardware is to blame."""
    ended = run.evidence is Evidence.EXIT_STATUS and not run.signal
    return ended and meaning(run).cause is Cause.DEVICE_FAULT


def clean(run: Run) -> bool:
    """Whether it ended by itself with exit code 0."""
    return run.exit_code == 0 and run.signal == 0 and run.evidence is Evidence.EXIT_STATUS


def meaning(run: Run) -> Meaning:
    """What the bad end of this run means."""
    assert run.evidence is not None, f"run {run.id} has not ended"
    known = EVIDENCE.get(run.evidence)
    if known is not None:
        return known
    if run.signal:
        return SIGNALS.get(run.signal, _ANY_SIGNAL)
    return EXIT_CODES.get(run.exit_code, _ANY_CODE)


def describe(run: Run) -> str:
    """The bad end of a run in one line: who, where, how."""
    status = ""
    if run.evidence is Evidence.EXIT_STATUS:
        status = f" (signal {run.signal})" if run.signal else f" (exit code {run.exit_code})"
    said = f": {run.message}" if run.message else ""
    return f"rank {run.rank} on {run.node} {meaning(run).words}{status}{said}"
