"""Log lines of decisions: one a fact while there are few, one a second with counts when there are thousands.

What went wrong is always said. The event is the fact's name in snake case; ids, term and offset go with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog

from statemachines import facts
from statemachines.entry import Entry, Recorded
from statemachines.values import Outcome

LINES_PER_SECOND: Final = 50
_ALARMING: Final = (
    facts.InputParked,
    facts.InputGapAccepted,
    facts.BreakerOpened,
    facts.NodeLost,
    facts.DeviceFaulted,
    facts.NicFaulted,
    facts.ResumeMismatched,
    facts.CheckpointCondemned,
)
# Of a fact's own fields, those that name or explain; the rest is in the log.
_SHOWN: Final = frozenset(
    {
        "job", "attempt", "run", "node", "queue", "incarnation", "cause", "outcome", "next", "evidence", "exit_code",
        "signal", "step", "code", "message", "number", "count", "kind", "target", "request", "incident", "term",
        "leader", "topic", "partition", "offset", "reason",
    }
)  # fmt: skip
_WORDS: Final = re.compile(r"(?<!^)(?=[A-Z])")


class Narrator:
    """Says what was decided. `now_s` is any clock that only grows."""

    def __init__(
        self, log: structlog.typing.FilteringBoundLogger, now_s: Callable[[], float]
    ) -> None:
        self._log = log
        self._now_s = now_s
        self._second = 0
        self._said = 0
        self._unsaid: Counter[str] = Counter()

    def tell(self, entry: Entry) -> None:
        """Say the facts of an accepted entry, or count them."""
        second = int(self._now_s())
        if second != self._second:
            self._sum_up()
            self._second, self._said = second, 0
        for recorded in entry.facts:
            if alarming(recorded):
                self._line(recorded, entry, self._log.warning)
            elif self._said < LINES_PER_SECOND:
                self._said += 1
                self._line(recorded, entry, self._log.info)
            else:
                self._unsaid[event(recorded)] += 1

    def _sum_up(self) -> None:
        if self._unsaid:
            self._log.info("facts_recorded", **self._unsaid)
            self._unsaid.clear()

    def _line(self, recorded: Recorded, entry: Entry, say: Callable[..., None]) -> None:
        fields: dict[str, Any] = {}
        for name in recorded.fact.__struct_fields__:
            if name in _SHOWN:
                value = getattr(recorded.fact, name)
                plain = not isinstance(value, msgspec.Struct)
                # An input's own offset is not the entry's.
                shown = f"input_{name}" if name == "offset" else name
                fields[shown] = value if plain else msgspec.to_builtins(value)
        say(
            event(recorded),
            **{"term": entry.term, "offset": entry.offset, **fields},
            by=recorded.by,
        )


def alarming(recorded: Recorded) -> bool:
    """Whether a person should see it even on a busy day."""
    fact = recorded.fact
    if isinstance(fact, facts.AttemptEnded):
        return fact.outcome in {Outcome.FAILED, Outcome.LOST}
    return isinstance(fact, _ALARMING)


def event(recorded: Recorded) -> str:
    """The fact's name in snake case."""
    return _WORDS.sub("_", type(recorded.fact).__name__).lower()
