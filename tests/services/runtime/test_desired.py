"""What a node must run follows from the log alone, and travels as changes that prove themselves."""

from __future__ import annotations

import pytest

from services.runtime.desired import applied, changes, desired, full_set, set_digest
from statemachines import facts as f
from statemachines.cluster import Cluster
from statemachines.entry import GENESIS, Entry, Recorded
from statemachines.values import (
    Cause,
    Grant,
    Inventory,
    JobId,
    JobNext,
    JobSpec,
    NodeId,
    Placement,
    QueueId,
    Reason,
    Resources,
    ResumePoint,
    Role,
    RunId,
)
from tidemill.v1 import node_service_pb2 as wire

N1, N2 = NodeId("n1"), NodeId("n2")
JOB = JobId("abc")
R0, R1 = RunId("abc.1.0"), RunId("abc.1.1")


def token_of(job: str, attempt: int) -> str:
    return f"token of {job} {attempt}"


class Log:
    """Facts, an entry each."""

    def __init__(self) -> None:
        self.cluster = Cluster("test")
        self.say(f.QueueApplied(QueueId("default"), "", -1, -1, -1))
        for node in (N1, N2):
            self.say(f.NodeJoined(node, 1, Inventory(f"addr-{node}", 64_000, 65_536)))

    def say(self, *facts: f.Fact) -> None:
        cluster = self.cluster
        offset = cluster.offset + 1
        entry = Entry(
            offset, "test", 1, cluster.head, bytes([offset]) * 32, offset * 1_000, (),
            tuple([Recorded(fact) for fact in facts]),
        )  # fmt: skip
        assert cluster.fold(entry)

    def place(self, **spec: object) -> None:
        """A chief with two processes on n1 and a worker with four on n2."""
        roles = (
            Role("chief", 1, Resources(1000, 64, 1), 2),
            Role("worker", 1, Resources(2000, 128, 2), 4),
        )
        wanted = JobSpec("train", QueueId("default"), 0, roles, launch="d" * 64, **spec)  # type: ignore[arg-type]
        self.say(f.JobAdmitted(JOB, 1, 0, wanted, "user:alice/r1", b"x" * 32))
        placements = (
            Placement(R0, N1, 0, "chief", (Grant(0, 1000),), 1000, 64),
            Placement(R1, N2, 1, "worker", (Grant(0, 1000), Grant(3, 1000)), 2000, 128),
        )
        resume = ResumePoint(40, "/ckpt/40", "ab", 0)
        self.say(f.GangPlaced(JOB, 1, placements, resume, 29_500, Reason("fits")))

    def order(self, node: NodeId) -> wire.RunOrder:
        (order,) = desired(self.cluster, node, token_of).values()
        return order


@pytest.fixture
def log() -> Log:
    return Log()


def test_before_anything_a_node_runs_nothing(log: Log) -> None:
    assert desired(log.cluster, N1, token_of) == {}
    assert desired(log.cluster, NodeId("unknown"), token_of) == {}
    assert log.cluster.head != GENESIS


def test_each_member_is_told_its_place_in_the_gang(log: Log) -> None:
    log.place(grace_ms=7_000)
    chief, worker = log.order(N1), log.order(N2)
    assert (chief.rank, chief.processes, chief.first_global_rank) == (0, 2, 0)
    assert (worker.rank, worker.processes, worker.first_global_rank) == (1, 4, 2)
    for order in (chief, worker):
        assert (order.world_size, order.members, order.master_address, order.master_port) == (
            6, 2, "addr-n1", 29_500,
        )  # fmt: skip
        assert (list(order.gang_nodes), order.resume.step, order.token, order.grace_ms) == (
            ["n1", "n2"], 40, "token of abc 1", 7_000,
        )  # fmt: skip


def test_an_order_says_run_until_its_attempt_stops(log: Log) -> None:
    log.place()
    placed = log.order(N1)
    log.say(f.RunStarted(R0))
    log.say(f.RunStarted(R1))
    log.say(f.AttemptStarted(JOB, 1))
    running = log.order(N1)
    log.say(f.AttemptStopping(JOB, 1, Cause.CANCELLED, "", JobNext.CANCELLED, 99_000))
    stopping = log.order(N1)
    run, stop = wire.RUN_ACTION_RUN, wire.RUN_ACTION_STOP
    assert [(each.action, each.started) for each in (placed, running, stopping)] == [
        (run, False), (run, True), (stop, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "spec_ms", "grace_ms"),
    [
        (Cause.HUNG, 0, 5_000), (Cause.NIC_FAULT, 0, 5_000), (Cause.HUNG, 60_000, 60_000), (Cause.CANCELLED, 0, 30_000),
    ],
)  # fmt: skip
def test_a_gang_that_stands_still_gets_little_grace_unless_its_job_asks_for_more(
    log: Log, cause: Cause, *, spec_ms: int, grace_ms: int
) -> None:
    log.place(grace_ms=spec_ms)
    log.say(f.AttemptStopping(JOB, 1, cause, "", JobNext.QUEUED, 99_000))
    assert log.order(N1).grace_ms == grace_ms


def test_a_lost_node_is_ordered_nothing_and_told_to_stop_when_it_is_back(log: Log) -> None:
    log.place()
    log.say(f.NodeLost(N1, 1, "silent"))
    log.say(f.AttemptStopping(JOB, 1, Cause.NODE_LOST, "", JobNext.QUEUED, 99_000))
    lost = desired(log.cluster, N1, token_of)
    log.say(f.NodeJoined(N1, 2, Inventory("addr-n1", 64_000, 65_536)))
    back = log.order(N1)
    assert lost == {}
    assert (back.action, back.started) == (wire.RUN_ACTION_STOP, True)  # It may have lived.


@pytest.mark.parametrize(
    ("overlap_safe", "spec_ms", "fence_ms"),
    [(False, 0, 600_000), (False, 5_000, 5_000), (False, -1, 0), (True, 5_000, 0)],
)
def test_a_run_fences_itself_as_its_job_and_the_cell_say(
    log: Log, *, overlap_safe: bool, spec_ms: int, fence_ms: int
) -> None:
    log.place(overlap_safe=overlap_safe, fence_after_ms=spec_ms)
    assert log.order(N1).fence_after_ms == fence_ms


def test_the_digest_depends_on_the_set_and_not_on_its_order(log: Log) -> None:
    log.place()
    one, two = log.order(N1), log.order(N2)
    forwards = set_digest({one.run: one, two.run: two})
    backwards = set_digest({two.run: two, one.run: one})
    assert forwards == backwards
    assert (
        len({forwards, set_digest({one.run: one}), set_digest({two.run: two}), set_digest({})}) == 4
    )


def test_a_change_of_any_field_changes_the_digest(log: Log) -> None:
    log.place()
    order = log.order(N1)
    before = set_digest({order.run: order})
    order.started = True
    assert set_digest({order.run: order}) != before


def test_changes_lead_from_one_set_to_the_other(log: Log) -> None:
    log.place()
    orders = desired(log.cluster, N1, token_of)
    full = full_set(N1, 1, 7, {})
    added = changes(N1, 1, 8, before={}, after=orders)
    removed = changes(N1, 1, 9, before=orders, after={})
    assert added is not None
    assert removed is not None
    first = applied({"left over": wire.RunOrder(run="left over")}, full)
    assert first == {}
    second = applied(first, added)
    assert second == orders
    assert applied(second, removed) == {}


def test_equal_sets_have_no_change(log: Log) -> None:
    log.place()
    orders = desired(log.cluster, N1, token_of)
    assert changes(N1, 1, 8, before=orders, after=desired(log.cluster, N1, token_of)) is None


def test_a_change_of_another_set_does_not_apply(log: Log) -> None:
    log.place()
    orders = desired(log.cluster, N1, token_of)
    stray = wire.RunOrder(run="stray.1.0")
    removed = changes(N1, 1, 9, before=orders, after={})
    assert removed is not None
    assert applied({**orders, stray.run: stray}, removed) is None
