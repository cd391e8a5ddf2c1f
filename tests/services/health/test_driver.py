"""The loop around the detector: log and telemetry in, verdicts out, on ports in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from services.health import driver, judge
from services.runtime import topics
from services.runtime.ports import LogRecord, Outgoing, PortError
from services.runtime.recovery import take_snapshot
from statemachines import facts
from statemachines.values import Cause, JobId, JobNext, NodeId, Reason
from tests.fakes.memory import MemoryEventLog, MemoryPublisher, MemorySnapshots
from tests.services.health.stage import Stage
from tests.statemachines.world import spec
from tidemill.v1 import telemetry_pb2, verdicts_pb2

N1 = NodeId("n1")


def test_a_node_of_the_log_that_never_beats_is_suspect_and_then_gone() -> None:
    stage = Stage()
    processor = stage.processor()
    stage.run(processor, 10_000)
    assert set(stage.kinds()) == {"node_suspect"}
    stage.world.record(facts.NodeSuspected(N1, 6_000))
    stage.run(processor, 7_000)
    (key, gone) = stage.verdicts()[-1]
    assert key == b"n1"
    assert gone == verdicts_pb2.Verdict(
        at_ms=stage.clock.wall_ms() - 1_000,
        judge="judge-1",
        node_gone=verdicts_pb2.NodeGone(
            node="n1", incarnation=1, silent_ms=15_000, message="silent for 15 s"
        ),
    )
    stage.world.record(facts.NodeLost(N1, 1, "silent"))
    count = len(stage.verdicts())
    stage.run(processor, 10_000)
    assert len(stage.verdicts()) == count


def test_a_node_that_beats_is_left_alone_and_a_suspect_is_back() -> None:
    stage = Stage()
    stage.world.record(facts.NodeSuspected(N1, 6_000))
    processor = stage.processor()
    stage.run(processor, 3_000, beating=["n1"])
    assert stage.kinds() == ["node_back"]
    stage.world.record(facts.NodeRecovered(N1))
    stage.run(processor, 60_000, beating=["n1"])
    assert stage.kinds() == ["node_back"]
    assert stage.notes.counts["beats"] == 31


def test_nodes_that_join_and_leave_are_followed() -> None:
    stage = Stage()
    processor = stage.processor()
    stage.world.node("n2")
    stage.world.record(facts.NodeRemoved(N1))
    stage.run(processor, 10_000, beating=["n2"])
    assert stage.kinds() == []
    assert processor.detector.silence.watched == 1


def test_beats_of_before_our_start_are_no_signs_of_life() -> None:
    stage = Stage()
    for _ in range(5):
        stage.beat("n1")
    processor = stage.processor()
    processor.turn(0)
    assert stage.notes.counts == {}


def test_a_running_job_is_watched_until_its_attempt_ends() -> None:
    stage = Stage()
    stage.world.admit("j", replace(spec(), hang_after_ms=30_000))
    stage.world.start("j", 1, [("n1", [0])])
    processor = stage.processor()
    for step in range(10):
        stage.step("j", step)
        stage.run(processor, 5_000, beating=["n1"])
    assert stage.kinds() == []
    stage.run(processor, 30_000, beating=["n1"])
    (key, verdict) = stage.verdicts()[0]
    assert (key, verdict.job_hung.step, verdict.job_hung.attempt) == (b"j", 9, 1)
    stage.world.record(facts.AttemptStopping(JobId("j"), 1, Cause.HUNG, "", JobNext.QUEUED, 0))
    stage.run(processor, 2_000, beating=["n1"])
    assert processor.detector.progress.watched == 0


def test_signals_become_verdicts_with_their_reasons() -> None:
    stage = Stage()
    processor = stage.processor()
    stage.signal("XID", device=2, code="79", message="gone")
    stage.signal("NIC_LINK", nic="ib0", code="down")
    stage.run(processor, 1_000, beating=["n1"])
    (key, verdict) = stage.verdicts()[0]
    assert key == b"n1"
    assert (verdict.device.index, verdict.device.condition) == (2, verdicts_pb2.CONDITION_FAULTY)
    assert verdict.device.reason.code == "xid_79"
    stage.world.record(facts.DeviceFaulted(N1, 2, Reason("xid_79")))
    stage.run(processor, 40_000, beating=["n1"])
    nic = stage.verdicts()[-1][1].nic
    assert (nic.nic, nic.condition) == ("ib0", verdicts_pb2.CONDITION_FAULTY)


def test_after_a_restart_signals_are_read_again_with_their_age() -> None:
    stage = Stage()
    now_ms = stage.clock.wall_ms()
    stage.signal("NIC_LINK", nic="ib0", code="down", at_ms=now_ms - 40_000)
    stage.signal("XID", device=1, code="79", at_ms=now_ms - 2 * judge.LOOK_BACK_MS)
    processor = stage.processor()
    stage.run(processor, 2_000, beating=["n1"])
    assert stage.kinds() == ["nic"]


def test_a_nodes_clock_that_is_wrong_ages_no_signal_of_now() -> None:
    stage = Stage()
    processor = stage.processor()
    stage.signal("NIC_LINK", nic="ib0", code="down", at_ms=1)
    stage.run(processor, 30_000, beating=["n1"])
    assert stage.kinds() == []


def test_what_cannot_be_read_is_dropped_and_counted() -> None:
    stage = Stage()
    processor = stage.processor()
    stage.publisher.publish([Outgoing("beats", b"", b"\xff\xff", 0)])
    stage.publish("signals", telemetry_pb2.Signal(node="n1"))
    stage.run(processor, 1_000)
    assert sorted(topic for topic, _ in stage.notes.dropped) == ["beats", "signals"]
    assert "beats/0@0" in dict(stage.notes.dropped)["beats"]


def test_telemetry_that_is_gone_is_skipped_and_said() -> None:
    stage = Stage()
    processor = stage.processor()
    for _ in range(10):
        stage.beat("n1")
    stage.cell.drop("beats", 0, before=8)
    processor.turn(0)
    (gap,) = stage.notes.gaps
    assert (gap.position, gap.oldest) == (0, 8)
    processor.turn(0)
    assert stage.notes.counts["beats"] == 2


def test_a_backlog_is_read_before_anyone_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RECORDS_PER_READ", 4)
    stage = Stage()
    processor = stage.processor()
    stage.beat()
    processor.turn(0)
    for _ in range(7):
        stage.beat()
    stage.beat("n1")
    stage.clock.advance(2_900)
    for _ in range(2):  # Two full reads: there may be more.
        stage.clock.advance(2_900)
        processor.turn(0)
    processor.turn(0)
    assert processor.lag() == 0
    assert stage.kinds() == []


def test_partitions_that_are_added_later_are_read_from_their_beginning() -> None:
    stage = Stage()
    processor = stage.processor()
    stage.run(processor, 2_000, beating=["n1"])
    stage.cell.records["beats", 1] = []
    stage.cell.oldest["beats", 1] = 0
    stage.beat("n1", partition=1)
    before = stage.notes.counts["beats"]
    stage.run(processor, 62_000)
    assert stage.notes.counts["beats"] == before + 1


class Down(MemoryPublisher):
    """A broker that is away."""

    away = True

    def publish(self, records: Sequence[Outgoing]) -> None:
        if self.away:
            raise PortError("no broker: start it")
        super().publish(records)


def test_a_verdict_that_was_not_published_is_said_again() -> None:
    stage = Stage()
    publisher = Down(stage.cell)
    processor = stage.processor(publisher=publisher)
    failures = 0
    for _ in range(10):
        try:
            stage.run(processor, 1_000)
        except PortError:
            failures += 1
    assert failures >= 1
    assert stage.kinds() == []
    publisher.away = False
    stage.run(processor, 1_000)
    assert set(stage.kinds()) == {"node_suspect"}


class Broken(MemoryEventLog):
    """A log that cannot be read now."""

    away = False

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        if self.away:
            raise PortError("no log: wait")
        return super().read(offset, limit=limit, timeout_s=timeout_s)


def test_beats_count_though_the_log_cannot_be_read() -> None:
    stage = Stage()
    log = Broken(stage.cell)
    processor = stage.processor(log=log)
    stage.run(processor, 5_000)
    log.away = True
    stage.beat("n1")
    with pytest.raises(PortError):
        processor.turn(0)
    log.away = False
    stage.run(processor, 5_000)
    assert stage.kinds() == []


def test_an_incident_of_the_log_is_the_processors() -> None:
    stage = Stage()
    stage.world.record(facts.BreakerOpened("incident-1", "all silent", 3))
    processor = stage.processor()
    assert processor.detector.silence.incident == "incident-1"
    stage.run(processor, 20_000)
    assert set(stage.kinds()) == {"node_suspect", "mass_silence", "silence_over"}
    stage.world.record(facts.BreakerClosed("incident-1"))
    stage.run(processor, 20_000)
    assert stage.kinds()[-1] == "node_gone"


def test_it_starts_from_a_snapshot_like_any_reader() -> None:
    stage = Stage()
    MemorySnapshots(stage.cell).save(take_snapshot(stage.world.cluster))
    stage.world.node("n2")
    processor = stage.processor()
    assert processor.judge.recovered.snapshot_offset >= 0
    assert processor.judge.recovered.records == 1
    assert processor.detector.silence.watched == 2


def test_every_topic_that_it_reads_is_declared_for_it() -> None:
    for topic in judge.TOPICS:
        assert "health" in topic.readers
    assert "health" in topics.VERDICTS.writers
