"""Every fact and value goes to the wire and back unchanged; what is not ours is told apart from what is newer."""

import typing
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.runtime import chain, codec
from statemachines.cluster import FOLD_VERSION
from statemachines.entry import GENESIS, Entry, Position, Recorded
from statemachines.facts import Fact, JobAdmitted, RunEnded, RunStarted
from statemachines.values import Cause, Evidence, JobId, JobSpec, QueueId, Resources, Role, RunId
from tidemill.v1 import common_pb2, facts_pb2, log_pb2

FACTS: tuple[type, ...] = typing.get_args(Fact)
LABELS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3).map(
    lambda labels: tuple(sorted(labels.items()))
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, as a leader could write it."""
    kind = getattr(hint, "__supertype__", hint)
    if hint == tuple[tuple[str, str], ...]:
        return LABELS
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if kind is int:
        return st.integers(0, 2**31 - 1)
    if kind in {str, bytes, bool}:
        return st.from_type(kind)
    if issubclass(kind, StrEnum):
        return st.sampled_from(list(kind))
    return st.builds(
        kind, **{name: values(field) for name, field in typing.get_type_hints(kind).items()}
    )


def entry_of(body: bytes, *, term: int = 3, prev: bytes = GENESIS) -> bytes:
    return codec.encode_entry(cell="c", term=term, prev=prev, at_ms=5, body=body)


@pytest.mark.parametrize("kind", FACTS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_fact_comes_back_as_it_went(kind: type, data: st.DataObject) -> None:
    recorded = Recorded(
        data.draw(values(kind)), data.draw(st.text(max_size=5)), data.draw(st.integers(0, 9))
    )
    body = codec.encode_body((), [recorded])
    assert codec.decode_body(body) == ((), (recorded,))
    assert body == codec.encode_body((), [recorded])


def test_every_fact_of_the_wire_is_one_of_ours_and_the_other_way_round() -> None:
    wire = {
        field.message_type.name
        for field in facts_pb2.Fact.DESCRIPTOR.oneofs_by_name["kind"].fields
        if field.message_type is not None
    }
    assert wire == {kind.__name__ for kind in FACTS}
    assert set(codec._FACT_ENCODERS) == set(FACTS)


def test_an_entry_carries_its_positions_and_the_digest_of_its_stored_bytes() -> None:
    consumed = (Position("requests", 0, 3, 9), Position("reports", 2, 0, 1))
    facts = (Recorded(RunStarted(RunId("a.1.0")), "user:a", 4),)
    body = codec.encode_body(consumed, facts)
    digest = chain.entry_digest(prev=GENESIS, cell="c", term=3, at_ms=5, body=body)
    assert codec.decode_entry(7, entry_of(body)) == Entry(
        7, "c", 3, GENESIS, digest, 5, consumed, facts
    )


def test_a_negative_limit_and_a_negative_time_survive() -> None:
    stored = codec.encode_entry(cell="c", term=0, prev=GENESIS, at_ms=-1, body=b"")
    assert codec.decode_entry(0, stored).at_ms == -1


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xff\xff", id="not protobuf"),
        pytest.param(b"\0" * 100, id="zeros"),
        pytest.param(entry_of(b"\xff\xff"), id="a body that is not protobuf"),
        pytest.param(entry_of(b"", prev=b"short"), id="prev that is no digest"),
        pytest.param(entry_of(b"")[:-1] + b"\xff", id="cut off"),
        pytest.param(
            entry_of(
                log_pb2.Body(
                    facts=[facts_pb2.Fact(run_ended=facts_pb2.RunEnded(run="a"))]
                ).SerializeToString()
            ),
            id="an enum that is not given",
        ),
        pytest.param(
            # JobWaiting{job: "a", reason: not protobuf}: a shared value is bytes until somebody asks for it.
            entry_of(b"\x12\x0b\xfa\x01\x08" + b"\x0a\x01a" + b"\x12\x03\x0a\xff\xff"),
            id="a shared value that is not protobuf",
        ),
    ],
)
def test_what_no_version_wrote_is_void(stored: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode_entry(0, stored)


def newer_bodies() -> dict[str, bytes]:
    unknown_kind = b"\x12\x05" + b"\xa2\x06\x02\x0a\x00"  # Fact{field 100: ...}
    unknown_cause = log_pb2.Body(
        facts=[
            facts_pb2.Fact(run_ended=facts_pb2.RunEnded(run="a", evidence=typing.cast("Any", 99)))
        ]
    )
    newer_fold = log_pb2.Body(
        facts=[facts_pb2.Fact(term_opened=facts_pb2.TermOpened(fold_version=FOLD_VERSION + 1))]
    )
    return {
        "a fact": unknown_kind,
        "an enum": unknown_cause.SerializeToString(),
        "another meaning of facts": newer_fold.SerializeToString(),
    }


@pytest.mark.parametrize("what", newer_bodies())
def test_what_a_newer_version_wrote_stops_the_reader_with_the_header_at_hand(what: str) -> None:
    stored = entry_of(newer_bodies()[what])
    with pytest.raises(codec.UnknownFactError, match="at offset 4, which this version") as caught:
        codec.decode_entry(4, stored)
    header = caught.value.entry
    assert header is not None
    assert (header.offset, header.cell, header.term, header.prev, header.facts) == (
        4,
        "c",
        3,
        GENESIS,
        (),
    )


def test_a_newer_format_stops_the_reader() -> None:
    stored = log_pb2.Entry(format=2, cell="c", term=1, prev=GENESIS).SerializeToString()
    with pytest.raises(codec.UnknownFactError, match="format 2"):
        codec.decode_entry(0, stored)


def test_values_of_requests_are_converted_by_the_same_rules() -> None:
    spec = JobSpec(
        "n", QueueId("q"), -5, (Role("w", 2, Resources(1, 2, 3, ("H100",))),), labels=(("a", "b"),)
    )
    message = common_pb2.JobSpec(**codec.encode_value(spec))
    assert codec.decode_value(JobSpec, message) == spec


def test_enums_are_converted_by_number() -> None:
    assert codec.decode_enum(Cause, common_pb2.CAUSE_HUNG) is Cause.HUNG
    with pytest.raises(codec.CodecError, match="no Cause is given"):
        codec.decode_enum(Cause, 0)
    with pytest.raises(codec.UnknownFactError, match="Cause number 77"):
        codec.decode_enum(Cause, 77)


def test_equal_specs_become_one_object() -> None:
    spec = JobSpec("n", QueueId("q"), 0, (Role("w", 1, Resources()),))
    facts = [Recorded(JobAdmitted(JobId(f"j{i}"), i, 0, spec, "", b"")) for i in range(2)]
    _, (first, second) = codec.decode_body(codec.encode_body((), facts))
    assert isinstance(first.fact, JobAdmitted)
    assert isinstance(second.fact, JobAdmitted)
    assert first.fact.spec is second.fact.spec


def test_a_fact_that_the_wire_cannot_hold_is_a_bug() -> None:
    ended = RunEnded(RunId("a.1.0"), 2**40, 0, Evidence.EXIT_STATUS, "")
    with pytest.raises(ValueError, match="range"):
        codec.encode_body((), [Recorded(ended)])
