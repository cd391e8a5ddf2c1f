"""What every FactSink keeps. A subclass gives `facts_of`, one cell's sinks and what they hold."""

from typing import Protocol

import pytest

from services.runtime.projection import FactSink, FlatFact, Mark, ParkedInput


class FactsOf(Protocol):
    """One cell: a sink opened anew at each call, and all that is stored, in order."""

    def sink(self) -> FactSink: ...
    def facts(self) -> list[FlatFact]: ...
    def parked(self) -> list[ParkedInput]: ...


def fact(offset: int, index: int = 0, key: str = "job-a") -> FlatFact:
    mark = Mark(offset, index, bytes([offset % 256]) * 32)
    return FlatFact(mark, 7, 1_700_000_000_000 + offset, "JobHeld", key, b"\0fact\xff%d" % offset)


def parked(offset: int) -> ParkedInput:
    mark = fact(offset).mark
    return ParkedInput(
        mark, "requests", 0, 5 + offset, "cannot be read: ü", b"k", b"\xff\0", whole=True
    )


class FactSinkContract:
    @pytest.fixture
    def facts_of(self) -> FactsOf:
        raise NotImplementedError

    def test_an_empty_sink_begins_at_the_start(self, facts_of: FactsOf) -> None:
        assert facts_of.sink().resume() is None

    def test_facts_come_back_whole_and_in_order(self, facts_of: FactsOf) -> None:
        sink = facts_of.sink()
        written = [fact(0), fact(0, 1, "node-b"), fact(3, 0, "queue-ü"), fact(4)]
        sink.write(written[:2], [])
        sink.write(written[2:], [])
        assert facts_of.facts() == written

    def test_a_sink_goes_on_after_its_last_fact(self, facts_of: FactsOf) -> None:
        facts_of.sink().write([fact(0), fact(2), fact(2, 1)], [])
        assert facts_of.sink().resume() == fact(2, 1).mark

    def test_what_is_written_again_is_left_out(self, facts_of: FactsOf) -> None:
        facts_of.sink().write([fact(0), fact(2)], [parked(2)])
        again = facts_of.sink()
        again.resume()
        again.write([fact(0), fact(2), fact(2, 1), fact(9)], [parked(2), parked(9)])
        assert facts_of.facts() == [fact(0), fact(2), fact(2, 1), fact(9)]
        assert facts_of.parked() == [parked(2), parked(9)]

    def test_writing_without_asking_where_to_resume_repeats_nothing_either(
        self, facts_of: FactsOf
    ) -> None:
        facts_of.sink().write([fact(0)], [])
        facts_of.sink().write([fact(0), fact(1)], [])
        assert facts_of.facts() == [fact(0), fact(1)]

    def test_copies_of_parked_inputs_come_back_whole(self, facts_of: FactsOf) -> None:
        facts_of.sink().write([fact(1), fact(2)], [parked(1), parked(2)])
        assert facts_of.parked() == [parked(1), parked(2)]
        assert facts_of.sink().resume() == fact(2).mark

    def test_nothing_to_write_is_no_error(self, facts_of: FactsOf) -> None:
        facts_of.sink().write([], [])
        assert facts_of.facts() == []
