"""Messages that make no sense are refused with the field and what to do; nothing of them is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from services.gateway.refusal import Refusal, Status
from services.gateway.validation import (
    LAUNCH_BYTES_MAX,
    MEMBERS_MAX,
    VIOLATIONS_MAX,
    check,
    check_submission,
)
from tests.services.gateway.world import World, submission
from tidemill.v1 import common_pb2
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire

Spoil = Callable[[jobs.SubmitJobRequest], object]


def refusal(request: jobs.SubmitJobRequest) -> Refusal:
    with pytest.raises(Refusal) as caught:
        check_submission(request)
    return caught.value


def test_a_sensible_submission_passes() -> None:
    check_submission(submission(members=3, argv=["a", "é世界", ""], env={"A": "x" * 100_000}))


def test_a_script_needs_no_arguments() -> None:
    request = submission(argv=[])
    request.launch.script = b"#!/bin/sh\n"
    check_submission(request)


def role(**fields: int) -> Spoil:
    def spoil(request: jobs.SubmitJobRequest) -> None:
        for field, value in fields.items():
            target = request.spec.roles[0]
            setattr(target if field == "count" else target.resources, field, value)

    return spoil


def marker(**fields: str) -> common_pb2.MarkerWatch:
    return common_pb2.MarkerWatch(**{"preset": "directory", "directory": "/a"} | fields)


SPOILED: Mapping[str, tuple[Spoil, str]] = {
    "negative devices": (role(devices=-1), "spec.roles[0].resources.devices"),
    "too many devices": (role(devices=2**31 - 1), "spec.roles[0].resources.devices"),
    "negative cpu": (role(cpu_milli=-1), "spec.roles[0].resources.cpu_milli"),
    "cpu that overflows": (role(cpu_milli=2**63 - 1), "spec.roles[0].resources.cpu_milli"),
    "memory below all": (role(memory_mib=-(2**63)), "spec.roles[0].resources.memory_mib"),
    "no members": (role(count=0), "spec.roles[0].count"),
    "negative members": (role(count=-5), "spec.roles[0].count"),
    "members that overflow": (role(count=2**31 - 1), "spec.roles[0].count"),
    "no roles": (lambda r: r.spec.ClearField("roles"), "spec.roles"),
    "no spec": (lambda r: r.ClearField("spec"), "spec"),
    "no launch": (lambda r: r.ClearField("launch"), "launch"),
    "no command": (lambda r: r.launch.ClearField("argv"), "launch"),
    "a queue like a path": (lambda r: setattr(r.spec, "queue", "../../etc"), "spec.queue"),
    "a queue with a newline": (lambda r: setattr(r.spec, "queue", "a\n"), "spec.queue"),
    "no queue": (lambda r: setattr(r.spec, "queue", ""), "spec.queue"),
    "no name": (lambda r: setattr(r.spec, "name", ""), "spec.name"),
    "a long name": (lambda r: setattr(r.spec, "name", "x" * 300), "spec.name"),
    "priority": (lambda r: setattr(r.spec, "priority", 2_000_000_000), "spec.priority"),
    "an id with a space": (lambda r: setattr(r, "request_id", "a b"), "request_id"),
    "a long id": (lambda r: setattr(r, "request_id", "x" * 257), "request_id"),
    "an id with a hash": (lambda r: setattr(r, "request_id", "a#1"), "request_id"),
    "a negative array": (lambda r: setattr(r, "count", -1), "count"),
    "a huge array": (lambda r: setattr(r, "count", 1_000_000), "count"),
    "an empty label": (lambda r: r.spec.labels.update({"": "x"}), 'spec.labels[""]'),
    "an odd variable": (lambda r: r.launch.env.update({"9A": "x"}), 'launch.env["9A"]'),
    "a huge variable": (
        lambda r: r.launch.env.update({"A": "x" * 131_072}), 'launch.env["A"]',
    ),
    "a NUL in a variable": (lambda r: r.launch.env.update({"A": "a\0b"}), "launch"),
    "a NUL in an argument": (lambda r: r.launch.argv.append("a\0b"), "launch"),
    "a NUL in the working directory": (lambda r: setattr(r.launch, "workdir", "/a\0b"), "launch"),
    "a NUL in the checkpoints' root": (
        lambda r: setattr(r.launch, "checkpoint_root", "/a\0b"), "launch",
    ),
    "a NUL in the watched directory": (
        lambda r: r.launch.marker.MergeFrom(marker(directory="/a\0b")), "launch",
    ),
    "a NUL in the marker": (lambda r: r.launch.marker.MergeFrom(marker(marker="a\0b")), "launch"),
    "a NUL in the name": (lambda r: setattr(r.spec, "name", "a\0b"), "spec.name"),
    "a NUL in a role's name": (
        lambda r: setattr(r.spec.roles[0], "name", "a\0b"), "spec.roles[0].name",
    ),
    "a huge script": (
        lambda r: setattr(r.launch, "script", b"x" * ((1 << 20) + 1)), "launch.script",
    ),
    "negative retries": (
        lambda r: setattr(r.spec.retry, "max_attempts", -2), "spec.retry.max_attempts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILED)
def test_a_field_that_makes_no_sense_is_named(how: str) -> None:
    spoil, field = SPOILED[how]
    request = submission()
    spoil(request)
    found = refusal(request)
    assert (found.status, found.code) == (Status.INVALID_ARGUMENT, "invalid")
    assert field in [violation.field for violation in found.violations]


def test_a_gang_larger_than_one_fact_can_place_is_refused() -> None:
    request = submission(members=MEMBERS_MAX)
    check_submission(request)
    request.spec.roles.add(name="more", count=1).resources.devices = 1
    assert refusal(request).violations[0].field == "spec.roles"


def test_two_roles_of_one_name_are_refused() -> None:
    request = submission()
    request.spec.roles.append(request.spec.roles[0])
    assert "same name" in refusal(request).message


def test_a_launch_that_no_blob_can_hold_is_refused_with_advice_where_it_is_largest() -> None:
    part = LAUNCH_BYTES_MAX // 10
    env = {f"V{i}": "x" * part for i in range(4)}
    argv = ["x" * part] * 4
    for field, request in {
        "launch.env": submission(env=env | {"B": "x" * part}, argv=argv),
        "launch.argv": submission(env=env, argv=[*argv, "x" * part]),
    }.items():
        request.launch.script = b"x" * part
        found = refusal(request)
        assert (found.violations[0].field, "into a file" in found.message) == (field, True)
    request = submission()
    request.launch.script = b"x" * (LAUNCH_BYTES_MAX - request.launch.ByteSize() - 4)
    assert request.launch.ByteSize() == LAUNCH_BYTES_MAX
    check_submission(request)
    request.launch.script += b"x"
    assert refusal(request).violations[0].field == "launch.script"


def test_many_faults_are_told_at_once_but_not_without_bound() -> None:
    request = submission()
    for _ in range(30):
        request.spec.roles.add(name="!", count=0)
    found = refusal(request)
    assert len(found.violations) == VIOLATIONS_MAX
    assert "more)" in found.message


def test_a_message_without_its_kind_is_refused() -> None:
    with pytest.raises(Refusal, match="exactly one field"):
        check(wire.AttachRequest())


def test_a_refused_submission_stores_nothing() -> None:
    world = World()
    call = world.submit(submission(priority=2_000_000_000))
    world.store()
    assert (world.refusal(call).code, world.stored, world.blobs) == ("invalid", [], [])


def test_unicode_survives_to_the_log_and_back() -> None:
    world = World()
    job = world.admitted(name="训练-🚀-Ünï", argv=["echo", "日本語"])
    (blob,) = world.blobs
    assert world.gateway.reads.job(job).spec.name == "训练-🚀-Ünï"
    assert list(common_pb2.Launch.FromString(blob).argv) == ["echo", "日本語"]
