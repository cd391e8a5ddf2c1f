"""Requests: answered exactly once, by key; submissions that make sense, and those that do not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from google.protobuf.message import Message

from services.runtime import codec, ids
from statemachines import facts
from statemachines.values import JobId, QueueId, Reason, Resources, RetryPolicy, Role
from tests.services.scheduler.cell import ALICE, A, Cell, apply, spec
from tidemill.v1 import common_pb2, requests_pb2


def submission(job: str = "a", **rest: object) -> requests_pb2.SubmitJob:
    wanted = common_pb2.JobSpec(**codec.encode_value(spec(**rest)))  # type: ignore[arg-type]
    return requests_pb2.SubmitJob(job=job, spec=wanted)


# --- keys


def test_the_same_request_again_gets_its_first_answer_and_records_nothing() -> None:
    cell = Cell()
    cell.submit("a", key="alice/1")
    cell.step()
    cell.submit("a", key="alice/1")
    assert cell.step() == []
    assert cell.weather() == {"repeated_request": 1}
    assert cell.cluster.positions["requests", 0] == 2


def test_the_same_request_twice_in_one_step_is_decided_once() -> None:
    cell = Cell()
    cell.submit("a", key="alice/1")
    cell.submit("a", key="alice/1")
    assert [type(fact) for fact in cell.step()] == [facts.JobAdmitted, facts.JobWaiting]


def test_another_request_under_a_used_key_is_refused_beside_the_first_answer() -> None:
    cell = Cell()
    cell.submit("a", key="alice/1")
    cell.step()
    other = submission("b")
    for _ in range(2):
        cell.ask(other, key="alice/1")
    (refused,) = [fact for fact in cell.step() if isinstance(fact, facts.RequestRefused)]
    beside = ids.reused_key("alice/1", ids.request_digest(other))
    assert refused == facts.RequestRefused(
        beside,
        ids.request_digest(other),
        "SubmitJob",
        "b",
        "request_id_reused",
        "",
        "the request id of alice/1 was used before, for something else: use a new one",
    )
    assert (cell.answer("alice/1"), list(cell.cluster.jobs)) == ("", ["a"])


def test_a_refusal_is_an_answer_too_and_stays() -> None:
    cell = Cell()
    cell.ask(submission(queue="none"), key="alice/1")
    cell.step()
    cell.ask(apply("none"))
    cell.ask(submission(queue="none"), key="alice/1")
    cell.step()
    assert (cell.answer("alice/1"), list(cell.cluster.jobs)) == ("unknown_queue", [])


def test_a_submission_whose_answer_was_forgotten_is_recognised_by_its_job() -> None:
    cell = Cell()
    cell.submit("a", spec(held=True), key="alice/1")
    cell.step()
    cell.now_ms += 25 * 3_600_000
    cell.submit("b")
    cell.step()
    assert "alice/1" not in cell.cluster.answers
    cell.submit("a", spec(held=True), key="alice/1")
    cell.submit("a", spec(held=True, name="other"), key="alice/2")
    cell.submit("a", spec(held=True), key="eve/1", by="user:eve")
    cell.step()
    answers = [cell.answer(key) for key in ("alice/1", "alice/2", "eve/1")]
    assert answers == ["", "request_id_reused", "request_id_reused"]


# --- illegible requests


def test_what_is_not_a_request_is_parked_and_never_stops_the_cell() -> None:
    cell = Cell()
    cell.raw("requests", b"\xff\xff garbage")
    cell.raw("reports", b"\xff" * 5000)
    cell.raw("verdicts", b"")
    cell.submit("a")
    *parked, admitted, _ = cell.step()
    assert [
        (fact.topic, fact.offset, len(fact.record))
        for fact in parked
        if isinstance(fact, facts.InputParked)
    ] == [("requests", 0, 10), ("reports", 0, 4096), ("verdicts", 0, 0)]
    assert isinstance(admitted, facts.JobAdmitted)
    assert cell.cluster.parked == 3


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda r: r.ClearField("request"), "the request's key is missing or too long"),
        (lambda r: setattr(r, "request", "k" * 321), "the request's key is missing or too long"),
        (lambda r: r.principal.ClearField("name"), "the principal is missing or longer than 256"),
        (lambda r: r.ClearField("cancel_job"), "a request of no kind that this version knows"),
    ],
    ids=["no_key", "long_key", "no_principal", "no_kind"],
)
def test_a_request_without_key_principal_or_kind_is_parked(
    spoil: Callable[[requests_pb2.Request], object], reason: str
) -> None:
    request = requests_pb2.Request(
        request="alice/1",
        principal=common_pb2.Principal(name=ALICE),
        cancel_job=requests_pb2.CancelJob(job="a"),
    )
    spoil(request)
    cell = Cell()
    cell.raw("requests", request.SerializeToString())
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked == facts.InputParked("requests", 0, 0, reason, request.SerializeToString())


def test_an_oversized_input_is_parked_unread() -> None:
    cell = Cell()
    cell.raw("requests", b"x" * (512 * 1024 + 1))
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked.reason == "524289 bytes are more than 524288"


# --- submissions


def test_a_job_for_which_no_node_has_room_waits_with_the_reason() -> None:
    cell = Cell()
    cell.submit("a")
    _, waiting = cell.step()
    assert isinstance(waiting, facts.JobWaiting)
    assert (waiting.job, waiting.reason.code) == (A, "no_capable_nodes")
    assert cell.step(after_ms=60_000) == []


def test_a_reason_is_recorded_again_only_when_its_code_changes() -> None:
    cell = Cell()
    cell.submit("a", spec(devices=8))
    cell.step()
    cell.nodes("n1")
    cell.submit("b", spec(devices=8))
    codes = [f.reason.code for f in cell.step() if isinstance(f, facts.JobWaiting)]
    cell.submit("c", spec(devices=8))
    codes += [f.reason.code for f in cell.step() if isinstance(f, facts.JobWaiting)]
    assert codes == ["waiting_for_capacity", "waiting_for_capacity"]


def test_a_held_submission_waits_to_be_released() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.submit("a", spec(held=True))
    assert [type(fact) for fact in cell.step()] == [facts.JobAdmitted]
    cell.ask(requests_pb2.ReleaseJob(job="a"))
    assert [type(fact) for fact in cell.step()] == [
        facts.JobReleased,
        facts.RequestAccepted,
        facts.GangPlaced,
    ]


def test_an_array_is_one_fact_and_many_jobs() -> None:
    cell = Cell()
    cell.submit("a", count=3)
    admitted = cell.step()[0]
    assert isinstance(admitted, facts.JobAdmitted)
    assert (admitted.number, admitted.count) == (1, 3)
    assert list(cell.cluster.jobs) == ["a_0", "a_1", "a_2"]
    cell.submit("b")
    cell.step()
    assert cell.job("b").number == 4


def role(**changes: int) -> Role:
    need = Resources(
        changes.pop("cpu_milli", 1000), changes.pop("memory_mib", 1), changes.pop("devices", 1)
    )
    return Role("worker", changes.pop("count", 1), need, **changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "spec.name"),
        ({"name": "n" * 254}, "spec.name"),
        ({"launch": "f" * 65}, "spec.launch"),
        ({"labels": tuple((f"k{i}", "v") for i in range(65))}, "spec.labels"),
        ({"priority": 1_000_001}, "spec.priority"),
        ({"roles": ()}, "spec.roles"),
        ({"roles": (role(), role())}, "spec.roles"),
        ({"roles": (role(count=0),)}, "spec.roles[0].count"),
        ({"roles": (role(count=16_385),)}, "spec.roles[0].count"),
        ({"roles": (role(count=16_000, devices=0),)}, "spec.roles"),
        ({"roles": (role(devices=-1),)}, "spec.roles[0].resources.devices"),
        ({"roles": (role(devices=257),)}, "spec.roles[0].resources.devices"),
        ({"roles": (role(cpu_milli=-1),)}, "spec.roles[0].resources.cpu_milli"),
        ({"roles": (role(cpu_milli=2**62),)}, "spec.roles[0].resources.cpu_milli"),
        ({"roles": (role(memory_mib=-5),)}, "spec.roles[0].resources.memory_mib"),
        ({"roles": (role(processes=257),)}, "spec.roles[0].processes"),
        ({"grace_ms": -1}, "spec.grace_ms"),
        ({"max_run_ms": 2**62}, "spec.max_run_ms"),
        ({"hang_after_ms": -1}, "spec.hang_after_ms"),
        ({"fence_after_ms": -2}, "spec.fence_after_ms"),
        ({"retry": RetryPolicy(backoff_ms=2**60)}, "spec.retry.backoff_ms"),
        ({"retry": RetryPolicy(max_attempts=-2)}, "spec.retry.max_attempts"),
        (
            {"retry": RetryPolicy(max_attempts_without_progress=-1)},
            "spec.retry.max_attempts_without_progress",
        ),
        ({"keep_checkpoints": -1}, "spec.keep_checkpoints"),
    ],
)
def test_arithmetic_nonsense_is_refused_with_the_field(
    changes: dict[str, object], field: str
) -> None:
    cell = Cell()
    key = cell.submit("a", msgspec.structs.replace(spec(), **changes))
    (refused,) = cell.step()
    assert isinstance(refused, facts.RequestRefused)
    assert (refused.request, refused.code, refused.field) == (key, "impossible", field)


@pytest.mark.parametrize("job", ["", "A", "a_1", "a.1", "-a", "a" * 65, "é"])
def test_a_job_id_that_is_none_is_refused(job: str) -> None:
    cell = Cell()
    cell.submit(job)
    (refused,) = cell.step()
    assert isinstance(refused, facts.RequestRefused)
    assert (refused.code, refused.field) == ("impossible", "job")


def test_an_array_of_too_many_is_refused() -> None:
    cell = Cell()
    keys = [cell.submit("a", count=100_001), cell.submit("b", count=-1)]
    cell.step()
    assert [cell.answer(key) for key in keys] == ["impossible", "impossible"]


def test_the_largest_gang_that_is_admitted_fits_one_entry() -> None:
    cell = Cell()
    members = 6_000
    for batch in range(0, members, 500):
        for i in range(batch, min(batch + 500, members)):
            cell.attach(f"node-with-a-name-that-people-give-{i:05d}", devices=1)
        cell.step()
    key = cell.submit("a", spec(members=members))
    step = cell.step()
    assert cell.answer(key) == ""
    assert isinstance(step[-1], facts.GangPlaced)
    assert max(len(each.value) for each in cell.steps[-1].sealed) < 900_000


def test_a_gang_that_does_not_fit_an_entry_after_all_is_held_with_the_reason() -> None:
    cell = Cell()
    members = 4_000
    for batch in range(0, members, 400):
        for i in range(batch, batch + 400):
            cell.attach(f"{i:05d}-" + "n" * 240, devices=1)
        cell.step()
    key = cell.submit("a", spec(members=members))
    held = cell.step()[-1]
    assert isinstance(held, facts.JobHeld)
    assert (cell.answer(key), held.reason.code, cell.state("a")) == ("", "too_large", "held")


def test_an_unknown_queue_is_refused_with_those_there_are() -> None:
    cell = Cell()
    key = cell.submit("a", spec(queue="nope"))
    (refused,) = cell.step()
    assert isinstance(refused, facts.RequestRefused)
    digest = refused.digest
    assert refused == facts.RequestRefused(
        key, digest, "SubmitJob", "a", "unknown_queue", "spec.queue", "there is no queue nope; there is: default"
    )  # fmt: skip


def test_a_queue_takes_no_more_live_jobs_than_its_limit() -> None:
    cell = Cell()
    cell.ask(apply("team", job_limit=2))
    cell.ask(apply("small", parent="team", job_limit=-1))
    keys = [cell.submit("a", spec(queue="small")), cell.submit("b", spec(queue="small"), count=2)]
    keys += [cell.submit("c", spec(queue="team")), cell.submit("d", spec(queue="small"))]
    cell.step()
    assert [cell.answer(key) for key in keys] == ["", "job_limit", "", "job_limit"]
    cell.ask(requests_pb2.CancelJob(job="a"))
    key = cell.submit("e", spec(queue="small"))
    cell.step()
    assert cell.answer(key) == ""


# --- queues


def test_a_queue_is_applied_changed_and_removed() -> None:
    cell = Cell()
    cell.ask(apply("team"))
    cell.ask(apply("team", device_limit=4))
    cell.ask(apply("team", device_limit=4))
    cell.ask(requests_pb2.RemoveQueue(queue="team"))
    applied = [fact for fact in cell.step() if not isinstance(fact, facts.RequestAccepted)]
    team = QueueId("team")
    assert applied == [
        facts.QueueApplied(team, "", -1, -1, -1),
        facts.QueueApplied(team, "", 4, -1, -1),
        facts.QueueRemoved(team),
    ]


@pytest.mark.parametrize(
    ("asked", "code", "field"),
    [
        (apply("bad name"), "impossible", "queue"),
        (apply("x", job_limit=-2), "impossible", "job_limit"),
        (apply("x", "nowhere"), "unknown_queue", "parent"),
        (apply("x", "x"), "unknown_queue", "parent"),
        (apply("child"), "queue_parent_changed", "parent"),
        (requests_pb2.RemoveQueue(queue="nowhere"), "unknown_queue", "queue"),
        (requests_pb2.RemoveQueue(queue="team"), "queue_not_empty", "queue"),
        (requests_pb2.RemoveQueue(queue="child"), "queue_not_empty", "queue"),
    ],
    ids=[
        "name",
        "limit",
        "parent",
        "itself",
        "moved",
        "unknown",
        "has_queues",
        "has_jobs",
    ],
)
def test_a_tree_of_queues_stays_a_tree(asked: Message, code: str, field: str) -> None:
    cell = Cell()
    cell.ask(apply("team"))
    cell.ask(apply("child", "team"))
    cell.submit("a", spec(queue="child"))
    cell.step()
    cell.ask(asked)
    (refused,) = cell.step()
    assert isinstance(refused, facts.RequestRefused)
    assert (refused.code, refused.field) == (code, field)


def test_a_tree_of_queues_has_a_bound() -> None:
    cell = Cell()
    keys = [cell.ask(apply(f"q{i}", f"q{i - 1}" if i else "")) for i in range(17)]
    cell.step()
    assert [cell.answer(key) for key in keys] == [""] * 16 + ["impossible"]


# --- gaps


def test_accepting_a_gap_that_a_leader_has_not_met_is_refused() -> None:
    cell = Cell()
    key = cell.ask(requests_pb2.AcceptInputGap(topic="reports", to_offset=7, message="x"))
    (refused,) = cell.step()
    assert isinstance(refused, facts.RequestRefused)
    assert (refused.request, refused.code, refused.target) == (key, "bad_state", "reports/0")
    assert ("reports", 0) not in cell.cluster.positions


def test_every_kind_of_request_has_a_decision() -> None:
    kinds = requests_pb2.Request.DESCRIPTOR.oneofs_by_name["kind"].fields
    cell = Cell()
    for kind in kinds:
        assert kind.message_type is not None
        cell.ask(getattr(requests_pb2, kind.message_type.name)())
    answered = [fact for fact in cell.step() if isinstance(fact, facts.RequestRefused)]
    assert [fact.kind for fact in answered] == [
        kind.message_type.name for kind in kinds if kind.message_type
    ]
    assert Reason("x") == Reason("x", "", (), 0)
    assert JobId("a") == A
