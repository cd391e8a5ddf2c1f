"""Hostile input over the wire: each gets a clear answer, and the gateway goes on serving others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from services.gateway.gate import METADATA_BYTES_MAX, RECEIVE_BYTES_MAX
from services.gateway.pending import MARGIN_MAX_MS
from services.gateway.service import check_listen
from services.gateway.settings import GatewaySettings
from services.runtime.settings import SettingsError
from services.runtime.tokens import job_token
from tests.services.gateway.served import WITHIN_S, Served, as_, details, read, refused
from tests.services.gateway.world import inventory, submission
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire

ALICE, BOB, EYES, ROOT, AGENT = (as_(name) for name in ("alices", "bobs", "eyes", "root", "agents"))
SUBMIT = "/tidemill.v1.JobService/SubmitJob"
GARBAGE = (b"\xff" * 64, b"\x0a\xff\xff\xff\xff\x0f", b"GET / HTTP/1.1\r\n\r\n", b"\x08" * 1000)


async def still_serves(served: Served) -> bool:
    answer = await served.jobs.SubmitJob(submission("still"), **ALICE)
    return bool(answer.status == jobs.SUBMIT_STATUS_ADMITTED)


def raw(served: Served, method: str = SUBMIT) -> Any:
    return served.channel.unary_unary(method)


# --- bytes


@pytest.mark.parametrize("number", range(len(GARBAGE)))
async def test_bytes_that_are_no_message_are_refused_as_such(served: Served, number: int) -> None:
    error = await refused(raw(served)(GARBAGE[number], **ALICE))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details(error)[0] in {"not_a_message", "invalid"}
    assert await still_serves(served)


async def test_bytes_of_a_stranger_are_not_parsed(served: Served) -> None:
    error = await refused(raw(served)(GARBAGE[0], timeout=WITHIN_S))
    assert (error.code(), details(error)[0]) == (grpc.StatusCode.UNAUTHENTICATED, "no_token")


async def test_no_bytes_are_a_message_without_its_fields(served: Served) -> None:
    error = await refused(raw(served)(b"", **ALICE))
    reason, fields, _ = details(error)
    assert (reason, fields) == ("invalid", ["spec", "launch"])


async def test_garbage_in_a_stream_ends_that_stream_alone(served: Served) -> None:
    watch = served.jobs.WatchJobs(jobs.WatchJobsRequest(), **EYES)
    assert (await read(watch)).current
    stream: Any = served.channel.stream_stream("/tidemill.v1.JobService/SubmitJobs")
    good = jobs.SubmitJobsRequest(submit=submission("good")).SerializeToString()
    call = stream(iter([good, GARBAGE[0], good]), **ALICE)
    first = jobs.SubmitJobsResponse.FromString(await read(call))
    error = await refused(read(call))
    assert (details(error)[0], first.result.number) == ("not_a_message", 1)
    assert (await read(watch)).job.spec.name == "train"
    watch.cancel()


async def test_a_message_larger_than_any_of_ours_is_refused_unread(served: Served) -> None:
    error = await refused(raw(served)(b"\x00" * (RECEIVE_BYTES_MAX + 1), **ALICE))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await still_serves(served)


async def test_metadata_without_end_is_refused(served: Served) -> None:
    huge = (("authorization", "Bearer " + "x" * METADATA_BYTES_MAX),)
    error = await refused(
        served.fleet.GetCell(fleet.GetCellRequest(), metadata=huge, timeout=WITHIN_S)
    )
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await still_serves(served)


@pytest.mark.parametrize(
    "method",
    [
        "/tidemill.v1.JobService/DropEverything",
        "/tidemill.v1.AdminService/Shutdown",
        "/etc/passwd",
        "/grpc.channelz.v1.Channelz/GetServers",
    ],
)
async def test_a_method_that_is_not_ours_does_not_exist(served: Served, method: str) -> None:
    error = await refused(raw(served, method)(b"", **ROOT))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


# --- content


async def test_a_megabyte_of_environment_is_taken_or_refused_with_advice(served: Served) -> None:
    value = "v" * 100_000
    fits = submission("fits", env={f"V{i}": value for i in range(9)})
    answer = await served.jobs.SubmitJob(fits, **ALICE)
    error = await refused(
        served.jobs.SubmitJob(submission("not", env={f"V{i}": value for i in range(10)}), **ALICE)
    )
    assert answer.status == jobs.SUBMIT_STATUS_ADMITTED
    assert (details(error)[1], "into a file" in (error.details() or "")) == (["launch.env"], True)


async def test_an_unknown_queue_is_not_found_with_its_field(served: Served) -> None:
    error = await refused(served.jobs.SubmitJob(submission(queue="nope"), **ALICE))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert details(error)[:2] == ("unknown_queue", ["spec.queue"])


async def test_every_faulty_field_is_told_at_once(served: Served) -> None:
    request = submission(priority=2_000_000_000, queue="..")
    request.spec.roles[0].resources.cpu_milli = -1
    error = await refused(served.jobs.SubmitJob(request, **ALICE))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert set(details(error)[1]) == {
        "spec.queue",
        "spec.priority",
        "spec.roles[0].resources.cpu_milli",
    }


async def test_unicode_comes_back_as_it_was(served: Served) -> None:
    request = submission(name="训练 🚀 Ünï\u202e", argv=["日本語"])
    request.spec.labels["ключ"] = "значение"
    job = (await served.jobs.SubmitJob(request, **ALICE)).job
    spec = (await served.jobs.GetJob(jobs.GetJobRequest(job=job), **EYES)).job.spec
    assert (spec.name, dict(spec.labels)) == (request.spec.name, {"ключ": "значение"})


async def test_one_request_id_with_other_content_already_exists(served: Served) -> None:
    await served.jobs.SubmitJob(submission("r1"), **ALICE)
    error = await refused(served.jobs.SubmitJob(submission("r1", priority=1), **ALICE))
    assert (error.code(), details(error)[:2]) == (
        grpc.StatusCode.ALREADY_EXISTS,
        ("request_id_reused", ["request_id"]),
    )


async def test_one_request_id_sent_fifty_times_at_once_is_one_job(served: Served) -> None:
    answers = await asyncio.gather(
        *[served.jobs.SubmitJob(submission("r1"), **ALICE) for _ in range(50)]
    )
    listed = await served.jobs.ListJobs(jobs.ListJobsRequest(), **EYES)
    assert ({(each.job, each.number) for each in answers}, listed.total) == (
        {(listed.jobs[0].job, 1)},
        1,
    )


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/", "a\x00b", "%2e%2e", "' or 1=1 --", "{{7*7}}", "🚀"]
)
async def test_an_id_like_a_path_names_nothing(served: Served, name: str) -> None:
    error = await refused(served.jobs.GetJob(jobs.GetJobRequest(job=name), **ALICE))
    assert (error.code(), details(error)[0]) == (grpc.StatusCode.NOT_FOUND, "unknown_job")


async def test_an_id_longer_than_any_is_invalid(served: Served) -> None:
    error = await refused(served.jobs.GetJob(jobs.GetJobRequest(job="x" * 129), **ALICE))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("digest", ["../../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n"])
async def test_a_blob_is_named_by_a_digest_and_nothing_else(served: Served, digest: str) -> None:
    error = await refused(served.nodes.GetBlob(wire.GetBlobRequest(digest=digest), **AGENT))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- callers


@pytest.mark.parametrize(
    "token",
    ["", "wrong", "alices ", "ALICES", "tmj.abc.1." + "0" * 64, job_token(b"x" * 32, "a", 1)],
)
async def test_a_wrong_token_is_no_token(served: Served, token: str) -> None:
    error = await refused(served.fleet.GetCell(fleet.GetCellRequest(), **as_(token)))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not token or token not in (error.details() or "")


async def test_anothers_job_is_not_changed_nor_its_output_read(served: Served) -> None:
    job = (await served.jobs.SubmitJob(submission(), **ALICE)).job
    denied = [
        await refused(served.jobs.CancelJob(jobs.CancelJobRequest(job=job), **BOB)),
        await refused(served.jobs.HoldJob(jobs.HoldJobRequest(job=job), **BOB)),
        await refused(read(served.jobs.ReadLogs(jobs.ReadLogsRequest(job=job), **BOB))),
        await refused(served.jobs.RequeueJob(jobs.RequeueJobRequest(job=job), **EYES)),
    ]
    shown = await served.jobs.GetJob(jobs.GetJobRequest(job=job), **BOB)
    assert [error.code() for error in denied] == [grpc.StatusCode.PERMISSION_DENIED] * 4
    assert shown.job.state == "queued"


async def test_a_submitter_is_no_operator_and_an_operator_no_agent(served: Served) -> None:
    denied = [
        await refused(served.fleet.CordonNode(fleet.CordonNodeRequest(node="n1"), **ALICE)),
        await refused(served.nodes.GetBlob(wire.GetBlobRequest(digest="0" * 64), **ROOT)),
        await refused(served.jobs.SubmitJob(submission(), **EYES)),
        await refused(served.jobs.SubmitJob(submission(), **AGENT)),
        await refused(read(served.nodes.Attach(metadata=ROOT["metadata"]))),
    ]
    assert {error.code() for error in denied} == {grpc.StatusCode.PERMISSION_DENIED}


async def test_a_deadline_that_has_passed_is_over_and_one_that_is_near_gets_an_answer(
    served: Served,
) -> None:
    over = await refused(served.jobs.SubmitJob(submission("r1"), **{**ALICE, "timeout": 0.000001}))
    near = await served.jobs.SubmitJob(
        submission("r2"), **{**ALICE, "timeout": 4 * MARGIN_MAX_MS / 1000}
    )
    assert over.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert near.status in {jobs.SUBMIT_STATUS_ADMITTED, jobs.SUBMIT_STATUS_DURABLE}


# --- streams


async def test_a_watcher_that_does_not_read_holds_up_nobody(served: Served) -> None:
    asleep = served.jobs.WatchJobs(jobs.WatchJobsRequest(), **EYES)
    awake = served.jobs.WatchJobs(jobs.WatchJobsRequest(), **EYES)
    assert (await read(awake)).current

    async def submissions() -> AsyncIterator[jobs.SubmitJobsRequest]:
        for i in range(1_000):
            yield jobs.SubmitJobsRequest(submit=submission(f"r{i}", name="x" * 200))

    answers = [each async for each in served.jobs.SubmitJobs(submissions(), **ALICE)]
    seen: set[str] = set()
    while len(seen) < 1_000:
        seen.add((await read(awake)).job.job)
    for call in (asleep, awake):
        call.cancel()
    assert len(answers) == 1_000


async def test_an_agent_that_talks_nonsense_loses_its_stream_and_no_other_does(
    served: Served,
) -> None:
    attached = reports_pb2.NodeAttached(inventory=inventory())
    hello = wire.AttachRequest(attach=wire.AttachNode(node="n1", incarnation=1, attached=attached))
    good = served.nodes.Attach(metadata=AGENT["metadata"])
    await good.write(hello)
    assert (await read(good)).HasField("welcome")
    ended = {}
    for name, message in {
        "nothing": wire.AttachRequest(),
        "a beat of a stranger": wire.AttachRequest(beat=telemetry_pb2.Beat(node="n9")),
        "a name like a path": wire.AttachRequest(
            attach=wire.AttachNode(node="../n1", incarnation=1, attached=attached)
        ),
        "incarnation 0": wire.AttachRequest(
            attach=wire.AttachNode(node="n2", incarnation=0, attached=attached)
        ),
        "memory without end": wire.AttachRequest(
            attach=wire.AttachNode(
                node="n2",
                incarnation=1,
                attached=reports_pb2.NodeAttached(inventory=common_pb2.Inventory(memory_mib=2**62)),
            )
        ),
    }.items():
        bad = served.nodes.Attach(metadata=AGENT["metadata"])
        await bad.write(message)
        ended[name] = (await refused(read(bad))).code().name
    await good.write(
        wire.AttachRequest(beat=telemetry_pb2.Beat(node="n1", incarnation=1, sequence=1))
    )
    while not (await read(good)).HasField("beat_ack"):
        pass
    good.cancel()
    assert ended == {
        "nothing": "INVALID_ARGUMENT",
        "a beat of a stranger": "FAILED_PRECONDITION",
        "a name like a path": "INVALID_ARGUMENT",
        "incarnation 0": "INVALID_ARGUMENT",
        "memory without end": "INVALID_ARGUMENT",
    }


# --- limits and addresses


@pytest.mark.parametrize(
    "fields",
    [
        {"listen": "0.0.0.0:7170"},
        {"listen": "10.0.0.1:7170", "tokens": "t", "key": "k"},
        {"listen": "[::]:7170", "tokens": "t", "tls_certificate": "c", "tls_key": "k"},
        {"listen": "127.0.0.1:0", "tls_certificate": "c"},
        {"listen": "nonsense"},
    ],
    ids=["no keys", "no tls", "no key", "half of tls", "no address"],
)
def test_a_gateway_that_strangers_could_reach_unprotected_does_not_start(
    fields: dict[str, str],
) -> None:
    with pytest.raises(SettingsError):
        check_listen(GatewaySettings(**fields))  # type: ignore[arg-type]


def test_a_gateway_with_keys_of_the_operators_choice_may_be_reached() -> None:
    check_listen(
        GatewaySettings(
            listen="0.0.0.0:7170", tokens="t", key="k", tls_certificate="c", tls_key="k"
        )
    )
