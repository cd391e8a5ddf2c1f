"""Many that believe they lead, on one log that delays, repeats and loses: whatever the order, one history comes out.

Each seed interleaves turns of three schedulers under an election that elects everyone, kills some between any two
appends, and delivers records late. In the end every request has one answer and every reader one state.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from services.runtime.ports import LogRecord, PortError
from services.scheduler.driver import Scheduler
from services.scheduler.exits import SchedulerExitError
from tests.fakes.memory import MemoryEventLog
from tests.services.scheduler.cell import spec
from tests.services.scheduler.stage import Ballot, Crash, Stage, same, settle
from tidemill.v1 import requests_pb2


class WildLog:
    """Stores what is appended now, later or twice; says so, says nothing, or kills the caller."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self._log = MemoryEventLog(stage.cell)
        self._random = chance
        self.late: list[bytes] = []
        self.tame = False

    def append(self, value: bytes) -> None:
        dice = 1.0 if self.tame else self._random.random()
        if dice < 0.03:
            raise Crash
        if dice < 0.06:
            self.late.append(value)
            raise Crash
        if dice < 0.10:
            self.late.append(value)
            raise PortError("no answer")
        self._log.append(value)
        if dice < 0.14:
            raise PortError("no answer, and yet it is stored")
        if dice < 0.17:
            self.late.append(value)  # A retry of the library that comes through later.
        if dice < 0.20:
            raise Crash

    def deliver(self) -> None:
        """What was on its way arrives."""
        self._random.shuffle(self.late)
        while self.late:
            self._log.append(self.late.pop())

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        return self._log.read(offset, limit=limit, timeout_s=0)

    def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize("seed", range(60))
def test_any_interleaving_of_leaders_gives_one_history(seed: int) -> None:
    chance = random.Random(seed)
    stage = Stage()
    log = WildLog(stage, chance)
    terms, names = iter(range(1, 10_000)), iter(range(10_000))
    term = next(terms)

    def stand() -> Scheduler:
        nonlocal term
        if chance.random() < 0.8:  # Else two are elected for one term.
            term = next(terms)
        name = f"s{next(names)}"
        in_flight = chance.choice((1, 4))
        return stage.scheduler(
            name, Ballot(term), log=log, snapshot_entries=3, in_flight_max=in_flight
        )

    def turn(at: int) -> None:
        try:
            several[at].turn(0)
        except PortError:
            pass  # Weather: it is called again.
        except (Crash, SchedulerExitError):
            several[at] = stand()

    several = [stand() for _ in range(3)]
    keys: list[str] = []
    for _ in range(150):
        if chance.random() < 0.3 and len(keys) < 40:
            keys.append(stage.submit(f"j{len(keys)}", spec()))
        if chance.random() < 0.1 and keys:
            keys.append(stage.ask(requests_pb2.CancelJob(job=f"j{chance.randrange(len(keys))}")))
        if chance.random() < 0.15:
            log.deliver()
        stage.clock.advance(chance.choice((0, 1, 50)))
        turn(chance.randrange(3))
    log.deliver()
    log.tame = True
    term = next(terms) + 1_000
    last = stage.leader("last", term, log=log)
    settle(last, stage)
    reader = stage.read()
    assert set(reader.answers) == set(keys)
    assert reader.next_number == len(reader.jobs) + 1
    assert same(last.cluster, reader)


def test_the_interleavings_are_wild_enough() -> None:
    """Else the test above shows nothing: void records, several terms that led, and decisions by more than one."""
    voided = terms = 0
    for seed in range(10):
        stage = Stage()
        chance = random.Random(seed)
        log = WildLog(stage, chance)
        several = [stage.scheduler(f"s{i}", Ballot(i + 1), log=log) for i in range(3)]
        for _ in range(60):
            stage.submit(f"j{stage.requests}", spec())
            at = chance.randrange(3)
            try:
                several[at].turn(0)
            except PortError:
                pass
            except (Crash, SchedulerExitError):
                several[at] = stage.scheduler("again", Ballot(stage.read().term + 1), log=log)
        log.deliver()
        reader = stage.read()
        voided += reader.voided
        terms += reader.term
    assert voided > 20
    assert terms > 20
