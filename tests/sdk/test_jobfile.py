"""Job and queue files: what they mean, and every fault of them with its place and a suggestion."""

from pathlib import Path

import pytest

from tidemill import jobfile
from tidemill.source import FileError
from tidemill.v1 import common_pb2 as common_pb
from tidemill.v1 import job_service_pb2 as job_pb
from tidemill.v1 import requests_pb2

FULL_YAML = """\
id: nightly
name: train
queue: research
priority: 5
array: 3
command: python train.py --lr "3e-4"
workdir: /data
env:
  LR: 0.1
labels: {team: vision}
roles:
  - name: trainer
    count: 2
    gpus: 8
    gpu_model: H100
    cpu: 16
    memory: 64GiB
    processes: 8
  - name: reader
    cpu: 500m
retry:
  max_attempts: -1
  max_attempts_without_progress: 4
  backoff: 10s
  only_infrastructure: true
checkpoints:
  root: /shared
  keep: 2
  watch: {preset: dcp, directory: /shared/dcp}
overlap_safe: true
hold: true
fence_after: never
grace: 30s
hang_after: 10m
time_limit: 2h
"""
FULL_TOML = """\
id = "nightly"
name = "train"
queue = "research"
priority = 5
array = 3
command = ["python", "train.py", "--lr", "3e-4"]
workdir = "/data"
overlap_safe = true
held = true
fence_after = "never"
grace = 30
hang_after = "10m"
time_limit = "2h"
[env]
LR = "0.1"
[labels]
team = "vision"
[[roles]]
name = "trainer"
count = 2
gpus = 8
gpu_models = ["H100"]
cpu = 16
memory = "64GiB"
processes = 8
[[roles]]
name = "reader"
cpu = 0.5
[retry]
max_attempts = -1
max_attempts_without_progress = 4
backoff = "10s"
only_infrastructure = true
[checkpoints]
root = "/shared"
keep = 2
[checkpoints.watch]
preset = "dcp"
directory = "/shared/dcp"
"""


def full() -> job_pb.SubmitJobRequest:
    trainer = common_pb.Resources(
        cpu_milli=16_000, memory_mib=65_536, devices=8, device_models=["H100"]
    )
    spec = common_pb.JobSpec(
        name="train", queue="research", priority=5, overlap_safe=True, held=True, fence_after_ms=-1,
        grace_ms=30_000, hang_after_ms=600_000, max_run_ms=7_200_000, labels={"team": "vision"}, keep_checkpoints=2,
        roles=[common_pb.Role(name="trainer", count=2, resources=trainer, processes=8),
               common_pb.Role(name="reader", count=1, resources=common_pb.Resources(cpu_milli=500))],
        retry=common_pb.RetryPolicy(max_attempts=-1, max_attempts_without_progress=4, backoff_ms=10_000,
                                    only_infrastructure=True),
    )  # fmt: skip
    launch = common_pb.Launch(
        argv=["python", "train.py", "--lr", "3e-4"],
        env={"LR": "0.1"},
        workdir="/data",
        checkpoint_root="/shared",
        marker=common_pb.MarkerWatch(preset="dcp", directory="/shared/dcp"),
    )
    return job_pb.SubmitJobRequest(request_id="nightly", spec=spec, launch=launch, count=3)


@pytest.mark.parametrize(("name", "text"), [("job.yaml", FULL_YAML), ("job.toml", FULL_TOML)])
def test_a_file_with_everything_in_it(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert jobfile.read_jobs(tmp_path / name) == [full()]


def test_a_command_is_enough() -> None:
    job = jobfile.job_request({"command": "python -u src/train.py"})
    resources = common_pb.Resources(cpu_milli=1000)
    spec = common_pb.JobSpec(name="train", queue="default", retry=common_pb.RetryPolicy())
    spec.roles.append(common_pb.Role(count=1, resources=resources))
    assert job == job_pb.SubmitJobRequest(
        spec=spec, launch=common_pb.Launch(argv=["python", "-u", "src/train.py"])
    )


def test_a_script_without_an_interpreter_runs_in_the_shell() -> None:
    launch = jobfile.job_request({"script": "echo hi\n"}).launch
    assert (launch.script, list(launch.argv)) == (b"#!/bin/sh\necho hi\n", [])
    assert (
        jobfile.job_request({"script": "#!/usr/bin/perl\n"}).launch.script == b"#!/usr/bin/perl\n"
    )


def test_a_yaml_file_may_hold_several_jobs(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("command: a\n---\ncommand: b\n")
    assert [job.spec.name for job in jobfile.read_jobs(tmp_path / "jobs.yaml")] == ["a", "b"]


def faults(tmp_path: Path, name: str, text: str) -> list[str]:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError) as caught:
        jobfile.read_jobs(tmp_path / name)
    assert caught.value.exit_code == 2
    return [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def test_all_faults_of_a_yaml_file_are_found_at_once_with_line_and_column(tmp_path: Path) -> None:
    text = "name: t\nquue: default\ngpus: many\nretry:\n  max_atempts: 3\n  backoff: soon\ncommand: x\n"
    assert faults(tmp_path, "job.yaml", text) == [
        "job.yaml:2:1: unknown key 'quue'; did you mean 'queue'?",
        "job.yaml:3:1: gpus: must be a whole number, not 'many'",
        "job.yaml:5:3: unknown key 'max_atempts'; did you mean 'max_attempts'?",
        "job.yaml:6:3: retry.backoff: 'soon' is no duration; write 90s, 15m, 1h30m or 2d",
    ]


def test_all_faults_of_a_toml_file_are_found_at_once_with_line_and_column(tmp_path: Path) -> None:
    text = (
        'command = "x"\n'
        "prioritty = 1\n"
        "[retry]\n"
        '  backoff = "soon"\n'
        "[[roles]]\n"
        "cpu = 1\n"
        "[[roles]]\n"
        "memroy = 5  # typo\n"
    )
    assert faults(tmp_path, "job.toml", text) == [
        "job.toml:2:1: unknown key 'prioritty'; did you mean 'priority'?",
        "job.toml:4:3: retry.backoff: 'soon' is no duration; write 90s, 15m, 1h30m or 2d",
        "job.toml:8:1: unknown key 'memroy'; did you mean 'memory'?",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name: x\n", "job.yaml:1:1: 'command' (or 'script') is missing"),
        ("command: x\nname: [1]\n", "job.yaml:2:1: name: must be text, not [1]"),
        ("command: x\nname: a\nname: b\n", "job.yaml:3:1: 'name' is given twice"),
        ("command: x\ncpu: 1\ncpus: 2\n", "job.yaml:3:1: 'cpus' repeats 'cpu'"),
        ("command: x\ngpus: -1\n", "job.yaml:2:1: gpus: -1 is out of range; 0 to 2147483647 are possible"),
        ("command: x\ngpus: 99999999999\n",
         "job.yaml:2:1: gpus: 99999999999 is out of range; 0 to 2147483647 are possible"),
        ("command: x\nmemory: 99999999999999TiB\n",
         "job.yaml:2:1: memory: '99999999999999TiB' is more than any cell can have"),
        ("command: x\ngpus: true\n", "job.yaml:2:1: gpus: must be a whole number, not True"),
        ("command: x\noverlap_safe: yes please\n",
         "job.yaml:2:1: overlap_safe: must be true or false, not 'yes please'"),
        ("command: x\nenv: {A: yes}\n",
         "job.yaml:2:1: env: A is True; put it in quotes to say which text is meant"),
        ("command: x\nenv: [A]\n", "job.yaml:2:1: env: must map names to texts, not ['A']"),
        ("command: x\nretry: 3\n", "job.yaml:2:1: retry must be a mapping, not 3"),
        ("command: x\nroles: 3\n", "job.yaml:2:1: roles must be a list, not 3"),
        ("command: x\nroles: []\n", "job.yaml:2:1: 'roles' is empty"),
        ("command: x\nroles: [{cpu: 1}]\nnodes: 2\n", "job.yaml:3:1: 'nodes' is given by each of 'roles' instead"),
        ("command: x\ncheckpoints: {watch: {preset: dcp}}\n",
         "job.yaml:2:15: 'directory' is missing in checkpoints.watch"),
        ("command: 'a\n", "job.yaml:2:1: found unexpected end of stream"),
        ("command: x\nzzz: 1\n", "job.yaml:2:1: unknown key 'zzz'; known here: "),
        ("- command: x\n", "job.yaml:1:1: write key: value lines"),
        ("a: [\n", "job.yaml:2:1: expected the node content, but found '<stream end>'"),
    ],
)  # fmt: skip
def test_one_fault(tmp_path: Path, text: str, fault: str) -> None:
    found = faults(tmp_path, "job.yaml", text)
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_a_toml_syntax_error_has_its_place(tmp_path: Path) -> None:
    assert faults(tmp_path, "job.toml", 'command = "x"\nname = \n') == [
        "job.toml:2:8: Invalid value"
    ]


def test_a_file_of_unknown_kind_or_not_there_or_not_text(tmp_path: Path) -> None:
    assert faults(tmp_path, "job.ini", "x") == ["its name must end in .yaml, .yml, .toml or .json"]
    with pytest.raises(FileError, match="No such file"):
        jobfile.read_jobs(tmp_path / "none.yaml")
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="not UTF-8"):
        jobfile.read_jobs(tmp_path / "bin.yaml")


def test_json_lines_are_read_as_they_come_up_to_the_first_fault() -> None:
    lines = iter(
        [
            '{"command": "a"}\n',
            "\n",
            '{"command": "b"}\n',
            '{"command": "c", "gpuz": 1}\n',
            "never read",
        ]
    )
    jobs = jobfile.read_json_lines("stdin", lines)
    assert [next(jobs).spec.name, next(jobs).spec.name] == ["a", "b"]
    with pytest.raises(FileError) as caught:
        next(jobs)
    assert caught.value.problems == ["stdin:4:1: unknown key 'gpuz'; did you mean 'gpus'?"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [('{"command": }', "stdin:1:13: Expecting value"), ("[1]", "stdin:1:1: not an object")],
)
def test_a_line_that_is_no_json_object(line: str, problem: str) -> None:
    with pytest.raises(FileError) as caught:
        next(jobfile.read_json_lines("stdin", [line]))
    assert caught.value.problems == [problem]


def test_queues_come_as_a_list_or_one_a_document(tmp_path: Path) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text('[[queues]]\nqueue = "a"\ngpus = 8\n[[queues]]\nname = "b"\nparent = "a"\n')
    single = tmp_path / "one.yaml"
    single.write_text("queue: a\ngpus: 8\n---\nqueue: b\nparent: a\n")
    expected = [
        requests_pb2.ApplyQueue(queue="a", device_limit=8, cpu_milli_limit=-1, job_limit=-1),
        requests_pb2.ApplyQueue(
            queue="b", parent="a", device_limit=-1, cpu_milli_limit=-1, job_limit=-1
        ),
    ]
    assert jobfile.read_queues(listed) == expected
    assert jobfile.read_queues(single) == expected
