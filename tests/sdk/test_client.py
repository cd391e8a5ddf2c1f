"""The client against a real server: repeats only what is safe, streams across cuts, errors with what, why and next."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.fakes.gateway import FakeGateway, Fault
from tidemill import Client, TidemillError, job_request
from tidemill.calls import PAGE, Patience
from tidemill.errors import (
    CallTimeoutError,
    NotAllowedError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from tidemill.v1 import (
    job_service_pb2 as job_pb,
)
from tidemill.v1 import (
    log_service_pb2 as log_pb,
)
from tidemill.v1 import (
    requests_pb2,
    views_pb2,
)


def job(name: str = "train", request_id: str = "") -> job_pb.SubmitJobRequest:
    request = job_request({"command": "true", "name": name})
    request.request_id = request_id
    return request


def view(name: str, state: str = "running", offset: int = 1) -> views_pb2.JobView:
    return views_pb2.JobView(job=name, state=state, offset=offset, seen_step=-1)


def names(gateway: FakeGateway) -> list[str]:
    return [name for name, _ in gateway.calls]


# ---------------------------------------------------------------- submit


def test_a_submission_is_repeated_under_the_id_that_it_was_given_once(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.fail("SubmitJob", Fault("UNAVAILABLE", "no leader"), Fault("UNAVAILABLE", "no leader"))
    answer = client.submit(job())
    ids = {request.request_id for name, request in gateway.calls if name == "SubmitJob"}
    assert (answer.status, len(ids), names(gateway).count("SubmitJob")) == (
        job_pb.SUBMIT_STATUS_ADMITTED,
        1,
        3,
    )
    assert len(next(iter(ids))) == 32


def test_the_callers_own_id_and_request_are_left_alone(
    gateway: FakeGateway, client: Client
) -> None:
    request = job(request_id="nightly")
    client.submit(request)
    unnamed = job()
    client.submit(unnamed)
    assert "nightly" in gateway.submitted
    assert unnamed.request_id == ""


def test_a_refusal_has_code_field_reason_and_a_next_command(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.refuse = lambda _: Fault(
        "FAILED_PRECONDITION", "no queue 'x'", reason="unknown_queue", field="spec.queue"
    )
    with pytest.raises(RefusedError) as caught:
        client.submit(job())
    error = caught.value
    assert (error.what, error.why) == ("job 'train' was not submitted", "no queue 'x'")
    assert (error.code, error.field, error.next_command) == (
        "unknown_queue",
        "spec.queue",
        "tidemill queues",
    )
    assert str(error) == "job 'train' was not submitted\nno queue 'x'\nnext: tidemill queues"
    assert names(gateway).count("SubmitJob") == 1


def test_a_thousand_submissions_are_answered_in_order(gateway: FakeGateway, client: Client) -> None:
    answered = list(client.submit_many((job(f"j{i}") for i in range(1000)), window=50))
    assert [request.spec.name for request, _ in answered] == [f"j{i}" for i in range(1000)]
    assert {answer.status for _, answer in answered} == {job_pb.SUBMIT_STATUS_ADMITTED}
    assert len(gateway.submitted) == 1000


def test_a_stream_that_is_cut_goes_on_and_submits_nothing_twice(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.cut_stream_after.extend([3, 0, 10])
    answered = list(client.submit_many((job(f"j{i}") for i in range(40)), window=8))
    assert [request.spec.name for request, _ in answered] == [f"j{i}" for i in range(40)]
    assert names(gateway).count("SubmitJobs") == 4
    assert sorted(request.spec.name for request in gateway.submitted.values()) == sorted(
        f"j{i}" for i in range(40)
    )


def test_in_a_stream_a_refusal_is_an_answer(gateway: FakeGateway, client: Client) -> None:
    bad = Fault("INVALID_ARGUMENT", "too big", reason="impossible", field="spec")
    gateway.refuse = lambda request: bad if request.spec.name == "j1" else None
    answers = [answer for _, answer in client.submit_many(job(f"j{i}") for i in range(3))]
    assert [answer.status for answer in answers] == [
        job_pb.SUBMIT_STATUS_ADMITTED, job_pb.SUBMIT_STATUS_REFUSED, job_pb.SUBMIT_STATUS_ADMITTED,
    ]  # fmt: skip
    assert (answers[1].reason.code, answers[1].field) == ("impossible", "spec")


def test_a_source_that_fails_ends_the_stream_after_the_answers(
    gateway: FakeGateway, client: Client
) -> None:
    def source() -> Iterator[job_pb.SubmitJobRequest]:
        yield job("j0")
        raise UsageError("line 2 is wrong")

    with pytest.raises(UsageError, match="line 2"):
        list(client.submit_many(source()))
    assert len(gateway.submitted) == 1


def test_a_stream_gives_up_when_the_gateway_stays_away(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.stop()
    with pytest.raises(UnavailableError) as caught:
        list(client.submit_many([job()], give_up_after_s=0.0))
    assert caught.value.next_command == "tidemill doctor"


def test_a_stream_is_given_up_for_being_away_and_not_for_having_been_quiet_before(
    gateway: FakeGateway, client: Client
) -> None:
    """Whatever the patience, it is counted from the loss: the time since the last answer may be any."""
    gateway.cut_stream_after.extend([3, 5])
    answered = list(client.submit_many((job(f"j{i}") for i in range(10)), give_up_after_s=1e-9))
    assert (len(answered), names(gateway).count("SubmitJobs")) == (10, 3)


# ---------------------------------------------------------------- calls


def test_the_clock_of_a_lost_stream_ends_with_an_answer() -> None:
    now = iter([0.0, 10.0, 11.0, 60.0, 61.0, 119.0])
    patience = Patience(60.0, clock=lambda: next(now))
    patience.opened()
    assert patience.lost()
    patience.opened()
    patience.answered()
    assert patience.lost()
    patience.opened()
    assert patience.lost(), "59 s after the loss, 109 s after the one before"


def test_a_stream_that_was_up_for_longer_than_the_patience_was_not_lost() -> None:
    """The server ends a quiet stream at its deadline, again and again; nothing is wrong with it."""
    now = iter([0.0, 3600.0, 3601.0, 7201.0, 7202.0, 10_802.0])
    patience = Patience(300.0, clock=lambda: next(now))
    for _ in range(3):
        patience.opened()
        assert patience.lost()


@pytest.mark.parametrize("patience_s", [10.0, 60.0])
def test_a_stream_to_a_gateway_that_froze_is_given_up_however_long_that_takes_to_show(
    patience_s: float,
) -> None:
    """Each try hangs until keepalive has found out, which may be longer than the patience."""
    now = iter([0.0, 30.0, 31.0, 61.0, 62.0, 92.0])
    patience = Patience(patience_s, clock=lambda: next(now))
    tries = 0
    while True:
        patience.opened()
        tries += 1
        if patience.lost() is None:
            break
    assert tries == (2 if patience_s == 10.0 else 3)


def test_reads_are_repeated_while_the_gateway_is_away_and_within_the_deadline(
    gateway: FakeGateway,
) -> None:
    gateway.put_job(view("job1"))
    gateway.fail("GetJob", Fault("UNAVAILABLE", "restarting"))
    with Client(gateway.address, token="good") as client:
        assert client.job("job1").state == "running"
        assert names(gateway) == ["GetJob", "GetJob"]
        gateway.stop()
        with pytest.raises((UnavailableError, CallTimeoutError)):
            client.cell(deadline_s=0.3)
        gateway.start()
        assert client.cell().leader == "s1"


def test_of_several_gateways_one_that_answers_is_used(gateway: FakeGateway) -> None:
    second = FakeGateway()
    second.start()
    addresses = f"localhost:{gateway.port},localhost:{second.port}"
    with Client(addresses, token="good", deadline_s=20.0) as client:
        assert client.cell().leader == "s1"
        (gateway if gateway.calls else second).stop()
        assert client.cell().leader == "s1"
    assert gateway.calls
    assert second.calls
    second.stop()


def test_a_gateway_that_asks_to_wait_is_asked_again_after_the_wait(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.fail(
        "GetCell", Fault("RESOURCE_EXHAUSTED", "slow down", reason="too_many", retry_ms=50)
    )
    assert client.cell().leader == "s1"
    assert names(gateway) == ["GetCell", "GetCell"]


def test_a_call_that_is_too_much_is_not_repeated(gateway: FakeGateway, client: Client) -> None:
    gateway.fail("GetCell", Fault("RESOURCE_EXHAUSTED", "message too large"))
    with pytest.raises(UnavailableError):
        client.cell()
    assert names(gateway) == ["GetCell"]


def test_no_answer_within_the_deadline_says_that_it_may_still_happen(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.answering.clear()
    with pytest.raises(CallTimeoutError, match="may still be carried out"):
        client.cell(deadline_s=0.3)


@pytest.mark.parametrize(
    ("fault", "kind", "exit_code"),
    [
        (Fault("NOT_FOUND", "no job"), NotFoundError, 4),
        (Fault("PERMISSION_DENIED", "not yours"), NotAllowedError, 5),
        (Fault("INVALID_ARGUMENT", "bad"), RefusedError, 3),
        (Fault("INTERNAL", "oops"), TidemillError, 70),
    ],
)
def test_every_status_is_a_typed_error_with_its_exit_code(
    gateway: FakeGateway, client: Client, fault: Fault, kind: type[TidemillError], exit_code: int
) -> None:
    gateway.fail("GetCell", fault)
    with pytest.raises(kind) as caught:
        client.cell()
    assert (type(caught.value), caught.value.exit_code) == (kind, exit_code)


def test_a_wrong_token_is_said_to_be_one(gateway: FakeGateway) -> None:
    with (
        Client(gateway.address, token="wrong") as client,
        pytest.raises(NotAllowedError, match="not known here"),
    ):
        client.cell()


def test_changes_carry_one_request_id_through_their_repeats(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.put_job(view("job1"))
    gateway.nodes["n1"] = views_pb2.NodeView(node="n1", state="ready")
    for method in (
        "CancelJob",
        "HoldJob",
        "ReleaseJob",
        "RequeueJob",
        "DrainNode",
        "ConfirmNodeDead",
    ):
        gateway.fail(method, Fault("UNAVAILABLE", "no leader"))
    client.cancel("job1", message="why")
    client.hold("job1")
    client.release("job1")
    client.requeue("job1", save_first=True)
    client.drain("n1", within_ms=1000)
    client.confirm_dead("n1")
    ids = [request.request_id for _, request in gateway.calls]
    assert (len(ids), len(set(ids)), "" in ids) == (12, 6, False)
    assert ids[::2] == ids[1::2]


def test_lists_are_read_page_by_page_up_to_a_limit(gateway: FakeGateway, client: Client) -> None:
    for number in range(2 * PAGE + 5):
        gateway.jobs[f"job{number:05d}"] = view(f"job{number:05d}")
    assert len(list(client.jobs())) == 2 * PAGE + 5
    assert [request.page_size for _, request in gateway.calls] == [PAGE] * 3
    assert [found.job for found in client.jobs(limit=2)] == ["job00000", "job00001"]


def test_fleet_and_queues(gateway: FakeGateway, client: Client) -> None:
    gateway.nodes["n1"] = views_pb2.NodeView(node="n1", state="ready")
    gateway.nodes["n2"] = views_pb2.NodeView(node="n2", state="lost")
    assert [node.node for node in client.nodes(["lost"])] == ["n2"]
    assert client.node("n1").state == "ready"
    assert client.cordon("n1").service == "cordoned"
    assert client.uncordon("n1").service == "in_service"
    client.remove_node("n2")
    assert list(gateway.nodes) == ["n1"]
    client.apply_queue(requests_pb2.ApplyQueue(queue="q", device_limit=8))
    assert [queue.device_limit for queue in client.queues()] == [8]
    client.remove_queue("q")
    assert client.queues() == []


# ---------------------------------------------------------------- streams


def test_a_watch_goes_on_after_a_cut_and_repeats_nothing_that_was_seen(
    gateway: FakeGateway, client: Client
) -> None:
    for number in range(4):
        gateway.put_job(view(f"job{number}"))
    gateway.cut_stream_after.append(2)
    watch = client.watch()
    seen = []
    for change in watch:
        seen.append(change.job.job or "current")
        if change.current:
            break
    assert seen == ["job0", "job1", "job2", "job3", "current"]
    gateway.put_job(view("job1", "succeeded", offset=9))
    change = next(watch)
    assert (change.job.job, change.job.state) == ("job1", "succeeded")
    watch.close()


def test_a_watch_outlives_a_loss_and_gives_up_when_it_stays_lost(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.put_job(view("job1"))
    gateway.fail("WatchJobs", Fault("DEADLINE_EXCEEDED", "an hour is over"))
    watch = client.watch(give_up_after_s=1e-9)
    assert next(watch).job.job == "job1"
    watch.close()
    gateway.fail("WatchJobs", *[Fault("UNAVAILABLE", "gone")] * 2)
    with pytest.raises(UnavailableError, match="cannot watch jobs"):
        next(client.watch(give_up_after_s=1e-9))


def test_waiting_for_a_job_ends_with_its_end(gateway: FakeGateway, client: Client) -> None:
    gateway.put_job(view("job1"))
    ending = threading.Timer(0.2, lambda: gateway.put_job(view("job1", "failed", offset=5)))
    ending.start()
    assert client.wait("job1", timeout_s=30).state == "failed"
    gateway.put_job(view("job2"))
    with pytest.raises(CallTimeoutError, match=r"has not ended within 0\.1 s"):
        client.wait("job2", timeout_s=0.1)


def test_the_log_is_read_on_after_a_cut_where_it_was(gateway: FakeGateway, client: Client) -> None:
    gateway.entries = [
        log_pb.ReadEntriesResponse(offset=offset, accepted=True) for offset in range(1, 9)
    ]
    gateway.cut_stream_after.append(3)
    assert [entry.offset for entry in client.entries(last=6)] == [3, 4, 5, 6, 7, 8]


def test_logs_come_as_they_are_written(gateway: FakeGateway, client: Client) -> None:
    gateway.put_job(view("job1"))
    gateway.written["job1"] = [b"one\n", b"\xfftwo"]
    assert b"".join(chunk.data for chunk in client.logs("job1")) == b"one\n\xfftwo"
    with pytest.raises(NotFoundError, match="logs of job 'none'"):
        list(client.logs("none"))
