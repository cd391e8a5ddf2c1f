"""The projector's core on golden logs: exactly the accepted facts, each under its entity, from any place on."""

import typing

import pytest

from services.projector.core import Flattened, Projection, entity
from services.runtime import codec
from services.runtime.ports import DamagedError, LogRecord
from services.runtime.projection import Mark
from statemachines import facts
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.values import RunId
from tests.statemachines.golden import FOLDER, read
from tests.statemachines.world import CELL
from tidemill.v1 import facts_pb2

GOLDEN = ["tour", "history-7"]


def records(name: str) -> list[LogRecord]:
    return [LogRecord(offset, value) for offset, value in enumerate(read(FOLDER / f"{name}.bin"))]


def accepted(stored: list[LogRecord]) -> list[Entry]:
    """What the whole fold takes."""
    cluster = Cluster(CELL)
    entries = [codec.decode_entry(record.offset, record.value) for record in stored]
    return [entry for entry in entries if cluster.fold(entry)]


def project(
    stored: list[LogRecord], mark: Mark | None = None
) -> tuple[Projection, list[Flattened]]:
    projection = Projection(CELL, mark)
    first = projection.position
    return projection, [projection.take(record) for record in stored if record.offset >= first]


@pytest.mark.parametrize("name", GOLDEN)
def test_exactly_the_facts_of_accepted_entries_come_out_in_order(name: str) -> None:
    stored = records(name)
    projection, out = project(stored)
    wanted = [
        (Mark(entry.offset, index, entry.digest), entry.term, entry.at_ms, recorded)
        for entry in accepted(stored)
        for index, recorded in enumerate(entry.facts)
    ]
    flat = [fact for each in out for fact in each.facts]
    assert [(fact.mark, fact.term, fact.at_ms) for fact in flat] == [each[:3] for each in wanted]
    assert [fact.value for fact in flat] == [codec.fact_message(each[3]) for each in wanted]
    assert projection.voided == len(stored) - len(accepted(stored))
    assert projection.position == len(stored)


def test_a_value_is_a_fact_by_itself_and_its_type_is_named() -> None:
    _, out = project(records("tour"))
    for fact in (fact for each in out for fact in each.facts):
        message = facts_pb2.Fact.FromString(fact.value)
        kind = message.WhichOneof("kind")
        assert kind is not None
        assert getattr(message, kind).DESCRIPTOR.name == fact.kind


@pytest.mark.parametrize("name", GOLDEN)
def test_going_on_from_any_mark_gives_its_entry_again_and_then_the_same(name: str) -> None:
    stored = records(name)
    _, whole = project(stored)
    flat = [fact for each in whole for fact in each.facts]
    for mark in [fact.mark for fact in flat][:: max(1, len(flat) // 20)]:
        _, again = project(stored, mark)
        rest = [fact for each in again for fact in each.facts]
        assert rest == [fact for fact in flat if fact.mark.offset >= mark.offset]


def test_a_log_that_is_not_the_one_projected_before_stops_with_what_to_do() -> None:
    stored = records("tour")
    other = Mark(3, 0, b"\x01" * 32)
    with pytest.raises(DamagedError, match=r"projected from another log.*Empty the facts"):
        project(stored, other)
    with pytest.raises(DamagedError, match="projected from another log"):
        Projection(CELL, other).take(LogRecord(3, b"no entry"))
    with pytest.raises(DamagedError, match="projected from another log"):
        Projection(CELL, other).take(LogRecord(4, stored[4].value))


def test_records_that_cannot_be_read_are_void_and_nothing_stops() -> None:
    stored = records("tour")
    torn = [LogRecord(0, b"\xff"), *(LogRecord(r.offset + 1, r.value) for r in stored)]
    projection, out = project(torn)
    assert projection.voided == 1 + len(stored) - len(accepted(stored))
    assert sum(len(each.facts) for each in out) == sum(len(e.facts) for e in accepted(stored))


def test_parked_inputs_are_told_with_the_place_of_their_fact() -> None:
    _, out = project(records("tour"))
    parked = [each for all_of in out for each in all_of.parked]
    assert parked
    for each in parked:
        (flat,) = [f for all_of in out for f in all_of.facts if f.mark == each.mark]
        assert flat.kind == "InputParked"


# --- entities


def test_every_kind_of_fact_has_an_entity() -> None:
    """By its type alone: the field that names it is text, and there is one."""
    for kind in typing.get_args(facts.Fact):
        hints = typing.get_type_hints(kind)
        first = kind.__struct_fields__[0]
        named = kind in {facts.TermOpened, facts.PolicyApplied}
        assert named or first in {
            "job", "run", "node", "queue", "request", "topic", "incident",
        }, kind  # fmt: skip
        assert named or getattr(hints[first], "__supertype__", hints[first]) is str, kind


@pytest.mark.parametrize(
    ("fact", "key"),
    [
        (facts.TermOpened(1, "a", "n", 1), "cell-1"),
        (facts.RunStarted(RunId("job_3.2.0")), "job_3"),
        (facts.RequestAccepted("u/1", b"d", "CordonNode", "n1"), "n1"),
        (facts.RequestRefused("u/1", b"d", "SubmitJob", "", "bad", "", "no"), "u/1"),
        (facts.QueueRemoved("team"), "team"),  # type: ignore[arg-type]
        (facts.InputParked("requests", 0, 4, "why", b""), "requests"),
        (facts.BreakerClosed("i-1"), "i-1"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_all_that_concerns_one_thing_has_one_key(fact: facts.Fact, key: str) -> None:
    assert entity(fact, "cell-1") == key
