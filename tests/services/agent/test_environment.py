"""What a run finds in its environment: ranks, devices, resume point; and that the reference page lists it all."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from services.agent.environment import (
    PASSED,
    Surroundings,
    checkpoint_directory,
    environments,
    host_environment,
)
from statemachines.values import DeviceSpec, Grant, Inventory, ResumePoint
from tests.services.agent.world import order

ROOT = Path(__file__).resolve().parents[3]
# Set by the executor, which owns the files that they name.
BY_EXECUTOR = {"TIDEMILL_RUN", "TIDEMILL_AGENT", "TIDEMILL_ASK_FILE", "TIDEMILL_SPOOL_DIR"}
DEVICES = (
    DeviceSpec(0, "H100", "GPU-aaaa"),
    DeviceSpec(1, "H100", ""),
    DeviceSpec(2, "Ascend910B", "x"),
    DeviceSpec(3, "H100", "SIMULATED-3", simulated=True),
)
AROUND = Surroundings(
    cell="c",
    node="n2",
    gateway="10.0.0.9:7170",
    inventory=Inventory("10.0.0.2", 1000, 1000, DEVICES),
    checkpoint_root="/ckpt",
    checkpoint_reach="node",
    host=(("PATH", "/bin"), ("HOME", "/root")),
)


def test_ranks_are_named_as_torchrun_names_them() -> None:
    member = order(
        "job.1.1",
        role="worker",
        members=3,
        processes=2,
        world_size=6,
        first_global_rank=2,
        master_address="10.0.0.1",
        master_port=29_500,
    )
    first, second = (
        dict(each) for each in environments(member, AROUND, job={}, checkpoint_root="")
    )
    assert {name: second[name] for name in ("RANK", "LOCAL_RANK", "TIDEMILL_RANK")} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "TIDEMILL_RANK": "3",
    }
    assert (first["RANK"], first["LOCAL_RANK"]) == ("2", "0")
    shared = (
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    assert [first[name] for name in shared] == ["6", "2", "1", "1", "10.0.0.1", "29500"]
    assert all(first[name] == second[name] for name in shared)


def test_granted_devices_are_visible_and_no_others() -> None:
    grants = tuple(Grant(index, 1000) for index in range(4))
    [found] = environments(order("job.1.0", devices=grants), AROUND, job={}, checkpoint_root="")
    seen = dict(found)
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa,1,3"
    assert seen["ASCEND_RT_VISIBLE_DEVICES"] == "2"
    assert (seen["TIDEMILL_DEVICES"], seen["TIDEMILL_SIMULATED_DEVICES"]) == ("0,1,2,3", "3")
    [found] = environments(order("job.1.0"), AROUND, job={}, checkpoint_root="")
    seen = dict(found)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["ASCEND_RT_VISIBLE_DEVICES"]) == ("", "")
    assert "TIDEMILL_SIMULATED_DEVICES" not in seen


def test_the_jobs_variables_beat_the_hosts_and_ours_beat_the_jobs() -> None:
    job = {
        "HOME": "/job",
        "RANK": "99",
        "TIDEMILL_TOKEN": "forged",
        "CUDA_VISIBLE_DEVICES": "7",
        "X": "1",
    }
    [found] = environments(order("job.1.0", token="t"), AROUND, job=job, checkpoint_root="")
    seen = dict(found)
    assert (seen["HOME"], seen["X"], seen["PATH"]) == ("/job", "1", "/bin")
    assert (seen["RANK"], seen["TIDEMILL_TOKEN"], seen["CUDA_VISIBLE_DEVICES"]) == ("0", "t", "")


def test_an_attempt_writes_below_a_prefix_of_its_own_and_is_told_where_to_resume() -> None:
    resumed = order("job.3.0", resume=ResumePoint(70, "/ckpt/job/a2/step-70", "ab" * 32, 2))
    [found] = environments(resumed, AROUND, job={}, checkpoint_root="")
    seen = dict(found)
    assert seen["TIDEMILL_CHECKPOINT_DIR"] == "/ckpt/job/a3"
    assert seen["TIDEMILL_CHECKPOINT_REACH"] == "node"
    assert seen["TIDEMILL_RESUME_STEP"] == "70"
    assert seen["TIDEMILL_RESUME_URI"] == "/ckpt/job/a2/step-70"
    [found] = environments(resumed, AROUND, job={}, checkpoint_root="/shared/")
    seen = dict(found)
    assert seen["TIDEMILL_CHECKPOINT_DIR"] == checkpoint_directory(resumed, "/shared")
    assert seen["TIDEMILL_CHECKPOINT_REACH"] == "cell"


def test_of_the_agents_own_environment_a_job_gets_only_what_is_listed() -> None:
    own = {"PATH": "/bin", "TIDEMILL_AGENT_TOKEN_FILE": "/secret", "AWS_SECRET": "x", "LANG": "C"}
    assert dict(host_environment(own)) == {"PATH": "/bin", "LANG": "C"}
    assert dict(host_environment({}))["PATH"]


def test_where_the_gateway_speaks_tls_a_run_is_told_whom_to_trust_and_elsewhere_it_is_not() -> None:
    secure = replace(AROUND, gateway="tls://10.0.0.9:7170", ca="/etc/ca.pem")
    plain = replace(AROUND, ca="/etc/ca.pem")
    for around, ca in ((secure, "/etc/ca.pem"), (plain, ""), (AROUND, "")):
        theirs = {"TIDEMILL_CA": "/their/own"}
        [found] = environments(order("job.1.0"), around, job=theirs, checkpoint_root="")
        assert (dict(found)["TIDEMILL_GATEWAY"], dict(found)["TIDEMILL_CA"]) == (around.gateway, ca)


def test_the_reference_page_lists_exactly_what_is_set() -> None:
    page = (ROOT / "docs/reference/environment.md").read_text()
    listed = set()
    for row in re.findall(r"(?m)^\| (`[A-Z].*?) \|", page):
        listed |= set(re.findall(r"`([A-Z_]+)`", row))
    grants = (Grant(3, 1000),)
    [found] = environments(order("job.1.0", devices=grants), AROUND, job={}, checkpoint_root="")
    given = dict(found).keys() | BY_EXECUTOR
    assert listed == given - {"PATH", "HOME"}
    assert set(re.findall(r"`([A-Z_]+)`", page.split("\n\n")[1])) == set(PASSED)
