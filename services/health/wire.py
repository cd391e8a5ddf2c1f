"""Records of the topics to and from the detector's values. Protobuf stops here; nothing is judged here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never

from google.protobuf.message import DecodeError

from services.health.messages import (
    Beat,
    DeviceJudged,
    JobHung,
    MassSilence,
    NicJudged,
    NodeBack,
    NodeGone,
    NodeSuspect,
    NodeUnfit,
    PathHeard,
    Progressed,
    Published,
    SignalKind,
    Signalled,
    SilenceOver,
    Telemetry,
)
from services.runtime import topics
from services.runtime.codec import encode_value
from services.runtime.ports import InputRecord, Outgoing
from tidemill.v1 import common_pb2, telemetry_pb2, verdicts_pb2


class UnreadableError(Exception):
    """A record of telemetry that no version of ours wrote, or that is about nothing: dropped and counted."""


# As the wire's rules have it; kept here too, because not all that is read came by a gateway.
PHASE_CHARS: Final = 32
_KINDS: Final = {
    telemetry_pb2.SignalKind.Value(f"SIGNAL_KIND_{kind.name}"): kind for kind in SignalKind
}


def progress(record: InputRecord) -> telemetry_pb2.Progress:
    """A record of progress as it is stored. Raises UnreadableError."""
    try:
        return telemetry_pb2.Progress.FromString(record.value)
    except DecodeError as error:
        raise _unreadable(record, error) from error


def read(record: InputRecord, age_ms: Callable[[int], int]) -> list[Telemetry]:
    """What a record says; `age_ms` answers how old something stamped so is. Raises UnreadableError."""
    try:
        return _READERS[record.topic](record, age_ms)
    except DecodeError as error:
        raise _unreadable(record, error) from error


def _unreadable(record: InputRecord, error: DecodeError) -> UnreadableError:
    return UnreadableError(f"{record.topic}/{record.partition}@{record.offset}: {error}")


def _beats(record: InputRecord, _age_ms: Callable[[int], int]) -> list[Telemetry]:
    batch = telemetry_pb2.BeatBatch.FromString(record.value)
    return [
        PathHeard(record.partition),
        *[Beat(beat.node, beat.incarnation, max(beat.stall_ms, 0)) for beat in batch.beats],
    ]


def _progress(record: InputRecord, _age_ms: Callable[[int], int]) -> list[Telemetry]:
    said = progress(record)
    phase = said.phase[:PHASE_CHARS]
    return [Progressed(said.job, said.attempt, said.rank, said.step, phase, said.busy_us)]


def _signal(record: InputRecord, age_ms: Callable[[int], int]) -> list[Telemetry]:
    said = telemetry_pb2.Signal.FromString(record.value)
    kind = _KINDS.get(said.kind)
    if kind is None:
        raise UnreadableError(f"a signal of kind {said.kind} from node {said.node}")
    return [
        Signalled(
            said.node,
            said.incarnation,
            kind,
            said.device,
            said.nic,
            said.code,
            said.message,
            age_ms(said.at_ms),
        )
    ]


_READERS: Final[dict[str, Callable[[InputRecord, Callable[[int], int]], list[Telemetry]]]] = {
    topics.BEATS.suffix: _beats,
    topics.PROGRESS.suffix: _progress,
    topics.SIGNALS.suffix: _signal,
}


def write(verdict: Published, *, at_ms: int, judge: str) -> Outgoing:
    """The record of a verdict, keyed by what it is about."""
    key, kind = _kind(verdict)
    message = verdicts_pb2.Verdict(at_ms=at_ms, judge=judge, **kind)
    return Outgoing(topics.VERDICTS.suffix, key.encode(), message.SerializeToString())


def _kind(verdict: Published) -> tuple[str, dict[str, Any]]:
    """(key, the message's field)."""
    match verdict:
        case NodeSuspect(node=node):
            return node, {"node_suspect": verdicts_pb2.NodeSuspect(**_fields(verdict))}
        case NodeGone(node=node):
            return node, {"node_gone": verdicts_pb2.NodeGone(**_fields(verdict))}
        case NodeBack(node=node):
            return node, {"node_back": verdicts_pb2.NodeBack(**_fields(verdict))}
        case MassSilence(incident=incident):
            return incident, {"mass_silence": verdicts_pb2.MassSilence(**_fields(verdict))}
        case SilenceOver(incident=incident):
            return incident, {"silence_over": verdicts_pb2.SilenceOver(**_fields(verdict))}
        case NodeUnfit(node=node):
            return node, {"node_unfit": verdicts_pb2.NodeUnfit(**_fields(verdict))}
        case JobHung(job=job):
            return job, {"job_hung": verdicts_pb2.JobHung(**_fields(verdict))}
        case DeviceJudged(node=node):
            return node, {"device": verdicts_pb2.DeviceVerdict(**_condition(verdict))}
        case NicJudged(node=node):
            return node, {"nic": verdicts_pb2.NicVerdict(**_condition(verdict))}
        case _:
            assert_never(verdict)


def _fields(verdict: Published) -> dict[str, Any]:
    return {field: getattr(verdict, field) for field in verdict.__struct_fields__}


def _condition(verdict: DeviceJudged | NicJudged) -> dict[str, Any]:
    condition = verdicts_pb2.Condition.Value(f"CONDITION_{verdict.condition.name}")
    reason = common_pb2.Reason(**encode_value(verdict.reason))
    return _fields(verdict) | {"condition": condition, "reason": reason}
