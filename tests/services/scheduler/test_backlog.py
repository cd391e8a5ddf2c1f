"""Nobody is held to a deadline before what came in ahead of it is decided."""

from __future__ import annotations

from google.protobuf.message import Message

from services.runtime.ports import Outgoing, PortError
from services.scheduler.backlog import ASK_EVERY_MS, PATIENCE_MS, Backlog
from services.scheduler.driver import Scheduler
from tests.fakes.memory import MemoryCell, MemoryInputs
from tests.services.scheduler.cell import spec
from tests.services.scheduler.stage import Stage, settle, turns
from tidemill.v1 import common_pb2, reports_pb2

REPORTS = ("reports", 0)


class Ends(MemoryInputs):
    """Inputs that end where the test says, or cannot be asked."""

    def __init__(self, **ends: int | PortError) -> None:
        super().__init__(MemoryCell())
        self.ends = ends
        self.asked = 0

    def end(self, topic: str, partition: int) -> int:
        self.asked += 1
        said = self.ends.get(topic, 0)
        if isinstance(said, PortError):
            raise said
        return said


def test_what_is_decided_to_the_end_is_asked_for_once() -> None:
    inputs = Ends(reports=3)
    backlog = Backlog(inputs, print)
    assert not backlog.decided({REPORTS: 2}, 0)
    assert backlog.decided({REPORTS: 3}, 1)
    inputs.ends["reports"] = 9
    assert backlog.decided({REPORTS: 3}, 2)
    assert inputs.asked == 1


def test_an_end_that_is_never_reached_is_waited_for_while_something_moves() -> None:
    """The last offsets may hold no record."""
    backlog = Backlog(Ends(reports=9), print)
    assert not backlog.decided({REPORTS: 2}, 0)
    assert not backlog.decided({REPORTS: 8}, PATIENCE_MS)
    assert backlog.again_in_ms(PATIENCE_MS + 1) == PATIENCE_MS - 1
    assert not backlog.decided({REPORTS: 8}, 2 * PATIENCE_MS - 1)
    assert backlog.decided({REPORTS: 8}, 2 * PATIENCE_MS)
    assert backlog.again_in_ms(2 * PATIENCE_MS) == 0


def test_a_partition_that_cannot_be_reached_holds_up_deadlines_only_so_long() -> None:
    heard: list[PortError] = []
    backlog = Backlog(Ends(reports=PortError("away")), heard.append)
    assert not backlog.decided({REPORTS: 2}, 0)
    assert backlog.again_in_ms(0) == ASK_EVERY_MS
    assert not backlog.decided({REPORTS: 2}, PATIENCE_MS - 1)
    assert backlog.again_in_ms(PATIENCE_MS - 1) == 1
    assert backlog.decided({REPORTS: 2}, PATIENCE_MS)
    assert backlog.again_in_ms(PATIENCE_MS) == 0
    assert backlog.decided({REPORTS: 2}, PATIENCE_MS + ASK_EVERY_MS)
    assert [str(error) for error in heard] == ["away", "away"]


def test_a_partition_that_comes_back_is_waited_for_like_any_other() -> None:
    inputs = Ends(reports=PortError("away"))
    backlog = Backlog(inputs, lambda _error: None)
    assert not backlog.decided({REPORTS: 2}, 0)
    inputs.ends["reports"] = 3
    assert not backlog.decided({REPORTS: 2}, ASK_EVERY_MS - 1)
    assert inputs.asked == 1
    assert not backlog.decided({REPORTS: 2}, ASK_EVERY_MS)
    assert backlog.decided({REPORTS: 3}, ASK_EVERY_MS + 1)


def test_what_cannot_be_asked_is_given_up_while_the_rest_is_being_decided() -> None:
    """Asking may take as long as a turn may last: it must not hold up every turn of a long backlog."""
    inputs = Ends(reports=PortError("away"), requests=100)
    backlog = Backlog(inputs, lambda _error: None)
    for turn in range(10):
        at_ms = turn * PATIENCE_MS
        assert not backlog.decided({("requests", 0): turn * 10, REPORTS: 0}, at_ms)
    assert inputs.asked == 2
    assert backlog.decided({("requests", 0): 100, REPORTS: 0}, 10 * PATIENCE_MS)


def test_a_turn_is_held_up_by_one_place_that_cannot_be_asked() -> None:
    """The others have their turn before it is asked again."""
    inputs = Ends(reports=PortError("away"), requests=PortError("away"), verdicts=0)
    backlog = Backlog(inputs, lambda _error: None)
    positions = {REPORTS: 0, ("requests", 0): 0, ("verdicts", 0): 0}
    assert not backlog.decided(positions, 0)
    assert inputs.asked == 1
    inputs.ends["requests"] = 0
    assert not backlog.decided(positions, ASK_EVERY_MS)
    assert inputs.asked == 4
    inputs.ends["reports"] = 0
    assert backlog.decided(positions, 2 * ASK_EVERY_MS)


def report(stage: Stage, kind: Message) -> None:
    said = reports_pb2.Report(
        principal=common_pb2.Principal(name="node:n1"), node="n1", incarnation=1
    )
    field = next(
        each.name
        for each in said.DESCRIPTOR.oneofs_by_name["kind"].fields
        if each.message_type is kind.DESCRIPTOR
    )
    getattr(said, field).CopyFrom(kind)
    stage.publisher.publish([Outgoing("reports", b"", said.SerializeToString())])


def running(stage: Stage) -> Scheduler:
    """A leader under which job a runs, within a limit of a minute."""
    leader = stage.leader("one", 1)
    inventory = common_pb2.Inventory(
        cpu_milli=8_000, memory_mib=8_192, devices=[common_pb2.Device(index=0, model="H100")]
    )
    report(stage, reports_pb2.NodeAttached(inventory=inventory))
    stage.submit("a", spec(max_run_ms=60_000))
    settle(leader, stage)
    report(stage, reports_pb2.RunBegan(run="a.1.0"))
    settle(leader, stage)
    assert stage.read().jobs["a"].state == "running"  # type: ignore[index]
    return leader


def test_a_job_that_was_done_in_time_while_nobody_led_has_succeeded() -> None:
    stage = Stage()
    running(stage)
    for _ in range(5):
        report(stage, reports_pb2.RunBegan(run="a.1.0"))  # Said again, as agents do.
    report(stage, reports_pb2.RunFinished(run="a.1.0", evidence=common_pb2.EVIDENCE_EXIT_STATUS))
    stage.clock.advance(120_000)
    leader = stage.leader("two", 2, inputs_per_step=1)
    settle(leader, stage)
    assert stage.read().jobs["a"].state == "succeeded"  # type: ignore[index]


def test_a_job_that_was_not_done_is_stopped_once_the_rest_is_decided() -> None:
    stage = Stage()
    running(stage)
    for number in range(5):
        stage.submit(f"later-{number}", spec())
    stage.clock.advance(120_000)
    leader = stage.leader("two", 2, inputs_per_step=1)
    turns(leader, until=lambda: leader.cluster.jobs["a"].state == "stopping")  # type: ignore[index]
    assert len(leader.cluster.jobs) == 6
