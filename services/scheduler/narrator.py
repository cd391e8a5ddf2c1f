"""Log lines of decisions: one a fact while there are few, one a second with counts when there are thousands.

What went wrong has a larger share. The event is the fact's name in snake case; ids, term and offset go with it.
"""

from __future__ import annotations

import re
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from statemachines import facts
from statemachines.entry import Entry, Recorded
from statemachines.values import Outcome, Reason

LINES_PER_SECOND: Final = 50
ALARMS_PER_SECOND: Final = 200
_ALARMING: Final = frozenset(
    {
        facts.InputParked,
        facts.InputGapAccepted,
        facts.BreakerOpened,
        facts.NodeLost,
        facts.DeviceFaulted,
        facts.NicFaulted,
        facts.ResumeMismatched,
        facts.CheckpointCondemned,
    }
)
_BAD: Final = frozenset({Outcome.FAILED, Outcome.LOST})
# Of a fact's own fields, those that name or explain; the rest is in the log.
_SHOWN: Final = frozenset(
    {
        "job", "attempt", "run", "node", "queue", "incarnation", "cause", "outcome", "next", "evidence", "exit_code",
        "signal", "step", "code", "message", "number", "count", "kind", "target", "request", "incident", "term",
        "leader", "topic", "partition", "offset", "reason",
    }
)  # fmt: skip
_WORDS: Final = re.compile(r"(?<!^)(?=[A-Z])")
EVENTS: Final[Mapping[type, str]] = {
    kind: _WORDS.sub("_", kind.__name__).lower() for kind in typing.get_args(facts.Fact)
}


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
            alarm = alarming(recorded.fact)
            if self._said < (ALARMS_PER_SECOND if alarm else LINES_PER_SECOND):
                self._said += 1
                self._line(recorded, entry, self._log.warning if alarm else self._log.info)
            else:
                self._unsaid[EVENTS[type(recorded.fact)]] += 1

    def _sum_up(self) -> None:
        if self._unsaid:
            self._log.info("facts_recorded", **self._unsaid)
            self._unsaid.clear()

    def _line(self, recorded: Recorded, entry: Entry, say: Callable[..., None]) -> None:
        fields: dict[str, Any] = {}
        for name in recorded.fact.__struct_fields__:
            value = getattr(recorded.fact, name) if name in _SHOWN else None
            if isinstance(value, Reason):
                fields["reason"], fields["message"] = value.code, value.message
            elif value is not None:
                # An input's own offset is not the entry's.
                fields[f"input_{name}" if name == "offset" else name] = value
        where = {"term": entry.term, "offset": entry.offset}
        say(EVENTS[type(recorded.fact)], **{**where, **fields}, by=recorded.by)


def alarming(fact: facts.Fact) -> bool:
    """Whether a person should see it even on a busy day."""
    if type(fact) is facts.AttemptEnded:
        return fact.outcome in _BAD
    return type(fact) in _ALARMING
