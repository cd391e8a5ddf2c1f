"""Who may call what: every method of every service has its rule, and what has none is refused."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FileDescriptor

from services.gateway.auth import METHODS, TRAINER, Caller, authenticate, authorise
from services.gateway.refusal import Refusal, Status
from services.gateway.server import SERVICES, is_loopback
from services.runtime.tokens import Grantee, Role, job_token, token_digest
from tidemill.v1 import (
    fleet_service_pb2,
    job_service_pb2,
    log_service_pb2,
    node_service_pb2,
    queue_service_pb2,
    training_service_pb2,
)

KEY = b"k" * 32
FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        fleet_service_pb2, job_service_pb2, log_service_pb2, node_service_pb2,
        queue_service_pb2, training_service_pb2,
    )
)  # fmt: skip
GRANTEES = {
    token_digest("alices"): Grantee("user:alice", frozenset({Role.USER})),
    token_digest("agents"): Grantee("service:agent", frozenset({Role.NODE}), frozenset({"n1"})),
}


def declared() -> set[str]:
    return {
        f"/{service.full_name}/{method.name}"
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
    }


def test_every_method_of_the_protos_has_its_rule_and_no_other_has_one() -> None:
    reflection = {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}
    assert set(METHODS) == declared() | reflection


def test_every_service_of_the_protos_is_served() -> None:
    names = {service.full_name for file in FILES for service in file.services_by_name.values()}
    assert set(SERVICES) == names


def test_a_token_is_known_by_its_digest() -> None:
    caller = authenticate("Bearer alices", GRANTEES, KEY)
    agent = authenticate("bearer agents", GRANTEES, KEY)
    assert caller == Caller("user:alice", "token", frozenset({"user"}))
    assert agent == Caller("service:agent", "node-token", frozenset({"node"}), frozenset({"n1"}))


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("", "no_token"),
        ("Bearer ", "no_token"),
        ("Basic YTpi", "no_token"),
        ("alices", "no_token"),
        ("Bearer alices2", "unknown_token"),
        ("Bearer " + token_digest("alices"), "unknown_token"),
        ("Bearer " + "x" * 100_000, "unknown_token"),
        ("Bearer tmj.job.1." + "0" * 64, "unknown_token"),
        ("Bearer tmj.job.1", "unknown_token"),
    ],
)
def test_what_is_no_token_of_ours_is_refused(authorization: str, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        authenticate(authorization, GRANTEES, KEY)
    assert (caught.value.status, caught.value.code) == (Status.UNAUTHENTICATED, code)
    assert authorization.partition(" ")[2] not in {caught.value.message} - {""}


def test_a_job_token_opens_training_alone() -> None:
    caller = authenticate(f"Bearer {job_token(KEY, 'abc_1', 3)}", GRANTEES, KEY)
    assert (caller.principal, caller.attempt, caller.roles) == (
        "job:abc_1",
        ("abc_1", 3),
        frozenset({TRAINER}),
    )
    reached = {method for method in METHODS if may(caller, method)}
    assert reached == {
        method for method in METHODS if "TrainingService" in method or "reflection" in method
    }


def test_a_job_token_of_another_cell_is_worth_nothing() -> None:
    with pytest.raises(Refusal):
        authenticate(f"Bearer {job_token(b'z' * 32, 'abc', 1)}", GRANTEES, KEY)


def may(caller: Caller, method: str) -> bool:
    try:
        authorise(caller, method)
    except Refusal:
        return False
    return True


@pytest.mark.parametrize(
    ("role", "method", "allowed"),
    [
        ("viewer", "JobService/GetJob", True),
        ("viewer", "JobService/SubmitJob", False),
        ("viewer", "JobService/CancelJob", False),
        ("user", "JobService/SubmitJobs", True),
        ("user", "FleetService/DrainNode", False),
        ("user", "QueueService/ApplyQueue", False),
        ("user", "NodeService/Attach", False),
        ("user", "NodeService/GetBlob", False),
        ("user", "TrainingService/ReportCheckpoint", False),
        ("admin", "FleetService/ConfirmNodeDead", True),
        ("admin", "NodeService/GetBlob", False),
        ("node", "NodeService/Attach", True),
        ("node", "NodeService/GetBlob", True),
        ("node", "JobService/GetJob", False),
        ("node", "JobService/SubmitJob", False),
        ("trainer", "JobService/GetJob", False),
    ],
)
def test_a_role_may_call_what_its_rule_says(role: str, method: str, *, allowed: bool) -> None:
    caller = Caller("someone", "token", frozenset({role}))
    assert may(caller, f"/tidemill.v1.{method}") is allowed


def test_a_method_without_a_rule_is_refused_to_an_admin_too() -> None:
    caller = Caller("user:root", "token", frozenset({"admin"}))
    assert not may(caller, "/tidemill.v1.JobService/DropEverything")


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        ("127.0.0.1:0", True),
        ("localhost:1", True),
        ("[::1]:7170", True),
        ("0.0.0.0:7170", False),
        ("[::]:7170", False),
        ("10.1.2.3:7170", False),
        ("cell.example:7170", False),
    ],
)
def test_loopback_is_told_from_the_world(listen: str, *, local: bool) -> None:
    assert is_loopback(listen) is local
