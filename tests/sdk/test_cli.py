"""The command line against a fake cell: what it prints, which code it ends with, and what it says comes next.

Set TIDEMILL_GOLDEN=write to write the golden texts anew; look at the difference before you commit it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.fakes.gateway import TOKEN, FakeGateway, Fault
from tests.sdk import sample
from tidemill.cli.app import app
from tidemill.cli.frame import EXIT_CODES
from tidemill.cli.output import moment
from tidemill.v1 import job_service_pb2 as job_pb

GOLDEN = Path(__file__).parent / "golden"
# Read now: the fixture that hides the developer's own cell hides this too.
WRITE_GOLDEN = os.environ.get("TIDEMILL_GOLDEN") == "write"
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.delenv("TZ")
    time.tzset()


@pytest.fixture
def cell(gateway: FakeGateway) -> FakeGateway:
    sample.fill(gateway)
    return gateway


@pytest.fixture
def run(cell: FakeGateway) -> Run:
    def run_(*arguments: str, stdin: str = "", columns: int | None = None, **env: str) -> Result:
        given = {
            "TIDEMILL_GATEWAY": cell.address,
            "TIDEMILL_TOKEN": TOKEN,
            "COLUMNS": str(columns or 120),
            **env,
        }
        return CliRunner().invoke(
            app, list(arguments), input=stdin, env=given, prog_name="tidemill"
        )

    return run_


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if WRITE_GOLDEN:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


# ---------------------------------------------------------------- what people see

SCREENS = {
    "jobs": ["jobs", "--all"],
    "show": ["show", "42"],
    "why": ["why", "m4"],
    "history": ["history", "42"],
    "nodes": ["nodes"],
    "queues": ["queues"],
    "doctor": ["doctor"],
    "log-tail": ["log", "tail", "--void"],
    "log-verify": ["log", "verify"],
    "replay": ["replay", "--at", "92"],
}


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", sorted(SCREENS))
def test_screens(run: Run, cell: FakeGateway, name: str, columns: int) -> None:
    result = run(*SCREENS[name], columns=columns)
    began = moment(cell.jobs["kq3vz7m2ab5c"].attempts[1].started_at_ms)
    shown = result.output.replace(cell.address, "HOST:PORT").replace(began, "190 seconds ago...")
    golden(f"{name}-{columns}", re.sub(r"answers in \d+ ms", "answers in N ms", shown))
    assert result.exit_code == 0


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ["jobs", "nodes", "queues", "history"])
def test_tables_stay_within_the_width(run: Run, name: str, columns: int) -> None:
    lines = run(*SCREENS[name], columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    "arguments", [[], ["submit"], ["jobs"], ["log"], ["log", "tail"]], ids=" ".join
)
def test_help_starts_with_an_example(run: Run, arguments: list[str]) -> None:
    result = run(*arguments, "--help")
    golden("-".join(["help", *arguments]), result.stdout)
    assert result.stdout.startswith("Example: tidemill")


def test_wide_has_all_columns_and_cuts_nothing(run: Run) -> None:
    text = run("jobs", "-o", "wide", columns=40).stdout
    assert "wide-job-with-a-long-name-for-a-table" in text
    assert all(title in text for title in ("NUMBER", "PRIORITY", "BY", "ADMITTED"))


def test_in_a_pipe_nothing_is_cut(run: Run) -> None:
    assert "16 devices are missing" in run("jobs", COLUMNS="").stdout


def test_colour_is_for_terminals_and_never_with_no_color(run: Run) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert "\x1b" not in run("jobs").stdout
    assert colour.search(run("jobs", FORCE_COLOR="1").stdout)
    assert not colour.search(run("jobs", FORCE_COLOR="1", NO_COLOR="1").stdout)


def test_simulated_devices_are_labelled(run: Run) -> None:
    assert "7/8 H100 (simulated)" in run("nodes").stdout
    assert "7 of 24 devices free (simulated)" in run("doctor").stdout


# ---------------------------------------------------------------- what programs read


def test_json_has_every_field_numbers_as_numbers_and_states_as_words(run: Run) -> None:
    (job,) = json.loads(run("jobs", "kq3", "-o", "json").stdout)
    assert (job["job"], job["number"], job["state"], job["seen_step"]) == (
        "kq3vz7m2ab5c",
        42,
        "running",
        437,
    )
    assert job["metrics"] == {"loss": 1.875}
    assert job["reason"] is None
    assert job["spec"]["roles"][0]["resources"]["device_models"] == ["H100"]
    assert sorted(job) == sorted(field.name for field in sample.training().DESCRIPTOR.fields)


def test_json_stays_json_whatever_a_trainer_measures(run: Run, cell: FakeGateway) -> None:
    cell.jobs["kq3vz7m2ab5c"].metrics["loss"] = float("nan")
    cell.jobs["kq3vz7m2ab5c"].metrics["scale"] = float("inf")

    def no_json(constant: str) -> None:
        raise AssertionError(constant)

    job = json.loads(run("show", "42", "-o", "json").stdout, parse_constant=no_json)
    assert job["metrics"] == {"loss": None, "scale": None}


def test_one_job_is_an_object_several_are_a_list(run: Run) -> None:
    assert json.loads(run("show", "42", "-o", "json").stdout)["number"] == 42
    assert [job["number"] for job in json.loads(run("show", "42", "43", "-o", "json").stdout)] == [
        42,
        43,
    ]


def test_csv_has_the_same_columns_whatever_the_width(run: Run) -> None:
    narrow, broad = (run("jobs", "-o", "csv", columns=columns).stdout for columns in (40, 200))
    assert narrow == broad
    rows = list(csv.DictReader(io.StringIO(narrow)))
    assert [row["id"] for row in rows] == ["kq3vz7m2ab5c", "m4tte2xq7yzd", "p9crashloop1"]
    assert rows[0]["step"] == "437"


def test_names_are_for_pipes(run: Run) -> None:
    assert run("jobs", "-o", "name").stdout == "kq3vz7m2ab5c\nm4tte2xq7yzd\np9crashloop1\n"
    assert run("nodes", "--state", "lost", "-o", "name").stdout == "node-1\n"


def test_nothing_found_is_said_on_stderr_and_prints_nothing(run: Run) -> None:
    result = run("jobs", "--name", "none-like-this")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "no jobs" in result.stderr
    assert run("jobs", "--name", "none-like-this", "-o", "json").stdout == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [["why", "43"], ["log", "tail"], ["doctor"], ["replay"], ["log", "verify"]],
    ids=" ".join,
)
def test_every_answer_exists_as_json(run: Run, arguments: list[str]) -> None:
    text = run(*arguments, "-o", "json").stdout
    assert json.loads(
        text.splitlines()[0]
        if arguments[0] in {"why", "log"} and arguments[-1] != "verify"
        else text
    )


# ---------------------------------------------------------------- submit


def only(cell: FakeGateway) -> job_pb.SubmitJobRequest:
    (request,) = cell.submitted.values()
    return request


def test_a_command_after_two_dashes_is_taken_whole(run: Run, cell: FakeGateway) -> None:
    result = run(
        "submit", "--gpus", "8", "--nodes", "2", "--gpu-model", "H100", "--cpu", "500m", "--memory", "64GiB",
        "--queue", "research", "--priority", "-3", "--array", "4", "--hold", "--overlap-safe", "--name", "train",
        "--time-limit", "2h", "--hang-after", "10m", "--max-attempts", "5", "--env", "A=1=2", "--label", "team=x",
        "--checkpoints", "/shared", "--id", "key", "--workdir", "/w", "--", "python", "t.py", "--gpus", "9", "--", "-x",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "job000000001  1  admitted  train\n")
    assert result.stderr == "next: tidemill why job000000001\n"
    request = only(cell)
    assert list(request.launch.argv) == ["python", "t.py", "--gpus", "9", "--", "-x"]
    assert (request.request_id, request.count, request.spec.priority) == ("key", 4, -3)
    role = request.spec.roles[0]
    assert (
        role.count,
        role.resources.devices,
        role.resources.cpu_milli,
        role.resources.memory_mib,
    ) == (2, 8, 500, 65_536)
    assert (request.spec.held, request.spec.overlap_safe, request.spec.max_run_ms) == (
        True,
        True,
        7_200_000,
    )
    assert dict(request.launch.env) == {"A": "1=2"}
    assert (request.launch.workdir, request.launch.checkpoint_root) == ("/w", "/shared")
    assert request.spec.retry.max_attempts == 5


def test_the_current_directory_is_where_a_job_runs_by_default(run: Run, cell: FakeGateway) -> None:
    run("submit", "--", "true")
    assert only(cell).launch.workdir == str(Path.cwd())


def test_flags_override_a_job_file_and_add_to_its_mappings(
    run: Run, cell: FakeGateway, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ncommand: python t.py\ngpus: 1\nenv: {A: '1', B: '2'}\n")
    assert run("submit", str(file), "--name", "b", "--env", "B=3").exit_code == 0
    request = only(cell)
    assert (request.spec.name, request.spec.roles[0].resources.devices) == ("b", 1)
    assert dict(request.launch.env) == {"A": "1", "B": "3"}


def test_a_script_is_sent_with_its_arguments(run: Run, cell: FakeGateway, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\necho $1\n")
    assert run("submit", str(script), "--", "hello").exit_code == 0
    request = only(cell)
    assert (request.launch.script, list(request.launch.argv)) == (
        b"#!/bin/bash\necho $1\n",
        ["hello"],
    )
    assert request.spec.name == "train"


def test_a_stream_of_jobs_is_submitted_and_counted(run: Run, cell: FakeGateway) -> None:
    cell.refuse = lambda job: (
        Fault("INVALID_ARGUMENT", "no", reason="unknown_queue") if job.spec.name == "b" else None
    )
    lines = "".join(json.dumps({"command": ["true"], "name": name}) + "\n" for name in "abc")
    result = run("submit", "-", "-o", "name", stdin=lines)
    assert (result.exit_code, len(result.stdout.splitlines())) == (3, 2)
    assert result.stderr == "refused: b: no (unknown_queue)\n2 submitted, 1 refused\n"
    assert [job.durable_only for job in cell.submitted.values()] == [True, True]


def test_a_faulty_line_ends_the_stream_after_those_before_it(run: Run, cell: FakeGateway) -> None:
    result = run("submit", "-", stdin='{"command": "a"}\n{"cmd": "b"}\n')
    assert (result.exit_code, len(cell.submitted)) == (2, 1)
    assert "stdin:2:1: unknown key 'cmd'; did you mean 'command'?" in result.stderr
    assert result.stderr.startswith("1 submitted, 0 refused\n")


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("table", "job000000001  1  admitted  a\n"),
        ("csv", "job000000001,1,admitted,a\n"),
        ("name", "job000000001\n"),
    ],
)
def test_of_several_documents_those_submitted_before_a_refusal_are_told(
    run: Run, cell: FakeGateway, tmp_path: Path, form: str, shown: str
) -> None:
    refused = Fault("FAILED_PRECONDITION", "no queue 'x'", reason="unknown_queue")
    cell.refuse = lambda job: refused if job.spec.name == "b" else None
    file = tmp_path / "jobs.yaml"
    file.write_text("---\n".join(f"{{name: {name}, command: 'true'}}\n" for name in "abc"))
    result = run("submit", str(file), "--watch", "-o", form)
    assert (result.exit_code, result.stdout) == (3, shown)
    assert "job 'b' was not submitted" in result.stderr
    assert len(cell.submitted) == 1


def test_when_nothing_was_submitted_nothing_is_told(run: Run, cell: FakeGateway) -> None:
    cell.refuse = lambda _: Fault("FAILED_PRECONDITION", "no", reason="unknown_queue")
    result = run("submit", "-o", "json", "--", "true")
    assert (result.exit_code, result.stdout) == (3, "")


def test_a_dry_run_sends_nothing(run: Run, cell: FakeGateway) -> None:
    result = run("submit", "--dry-run", "--", "true")
    assert json.loads(result.stdout)["launch"]["argv"] == ["true"]
    assert cell.calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit"], "nothing to submit"),
        (["submit", "-", "--gpus", "1"], "flags do not go with jobs from stdin"),
        (["submit", "-", "--watch"], "flags do not go with jobs from stdin"),
        (["submit", "/nowhere.sh"], "cannot read the script /nowhere.sh"),
        (["submit", "/nowhere.yaml"], "cannot read /nowhere.yaml"),
        (["submit", "--gpus", "many", "--", "x"], "the command line: gpus: must be a whole number, not 'many'"),
        (["submit", "--env", "NOT_SET_HERE", "--", "x"], "NOT_SET_HERE is not set here"),
        (["jobs", "--state", "sleeping"], "no job state 'sleeping'"),
        (["why", "42", "--at", "soon"], "'soon' is no time"),
        (["drain", "node-1", "--within", "soon"], "'soon' is no duration"),
        (["confirm-dead", "node-1"], "say --yes when you have made sure"),
        (["apply", "/nowhere.yaml"], "cannot read /nowhere.yaml"),
        (["jobs", "--nonsense"], "No such option"),
        (["nonsense"], "No such command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_usage_sends_nothing_and_is_explained(
    run: Run, cell: FakeGateway, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, cell.calls) == (2, [])
    assert message in result.stderr


def test_a_job_is_followed_to_its_end(run: Run, cell: FakeGateway) -> None:
    cell.jobs.clear()
    import threading

    def end() -> None:
        assert cell.saw(lambda: any(name == "WatchJobs" for name, _ in cell.calls))
        view = sample.training()
        view.job, view.state, view.offset = "job000000001", "failed", 200
        view.reason.code, view.reason.message = "program_failed", "exit code 3"
        cell.put_job(view)

    ending = threading.Thread(target=end)
    ending.start()
    result = run("submit", "--watch", "--", "true")
    ending.join()
    assert result.exit_code == 1
    assert re.search(r"job000000001 +queued", result.stdout)
    assert re.search(r"job000000001 +failed .*exit code 3", result.stdout)
    assert result.stderr.endswith("next: tidemill why job000000001\n")


def test_a_job_that_only_a_person_can_move_is_not_waited_for(run: Run, cell: FakeGateway) -> None:
    cell.jobs.clear()
    import threading

    def hold() -> None:
        assert cell.saw(lambda: any(name == "WatchJobs" for name, _ in cell.calls))
        view = sample.training()
        view.job, view.state, view.offset = "job000000001", "held", 200
        view.reason.code, view.reason.message = "crash_loop", "3 attempts without a checkpoint"
        cell.put_job(view)

    holding = threading.Thread(target=hold)
    holding.start()
    result = run("submit", "--watch", "--", "true")
    holding.join()
    assert result.exit_code == 1
    assert "tidemill release job000000001" in result.stderr


# ---------------------------------------------------------------- change


@pytest.mark.parametrize(
    ("verb", "state"), [("cancel", "cancelled"), ("hold", "held"), ("requeue", "queued")]
)
def test_many_ids_a_call_and_one_that_fails_does_not_stop_the_rest(
    run: Run, cell: FakeGateway, verb: str, state: str
) -> None:
    result = run(verb, "42", "nope", "43", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["number"], row["state"]) for row in rows] == [("42", state), ("43", state)]
    assert result.exit_code == 4
    assert "no job 'nope'" in result.stderr


def test_ids_come_from_stdin_too(run: Run, cell: FakeGateway) -> None:
    result = run(
        "cancel",
        "-",
        "-m",
        "all wrong",
        "-o",
        "name",
        stdin="kq3vz7m2ab5c\nm4tte2xq7yzd p9crashloop1\n",
    )
    assert result.stdout.split() == ["kq3vz7m2ab5c", "m4tte2xq7yzd", "p9crashloop1"]
    assert {request.message for name, request in cell.calls if name == "CancelJob"} == {"all wrong"}


def test_nodes_are_cordoned_drained_and_put_back(run: Run, cell: FakeGateway) -> None:
    assert run("cordon", "node-2").exit_code == 0
    assert run("drain", "node-2", "--within", "30m", "-m", "firmware").exit_code == 0
    assert run("uncordon", "node-2").exit_code == 0
    assert run("confirm-dead", "node-1", "--yes").exit_code == 0
    drained = next(request for name, request in cell.calls if name == "DrainNode")
    assert (drained.within_ms, drained.message) == (1_800_000, "firmware")


def test_queues_are_applied_from_a_file(run: Run, cell: FakeGateway, tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text("queues: [{queue: a, gpus: 8}, {queue: b, parent: a}]\n")
    result = run("apply", str(tmp_path / "q.yaml"), "-o", "name")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n")
    assert cell.queues["a"].device_limit == 8


def test_logs_are_written_as_they_are(run: Run) -> None:
    assert run("logs", "42").stdout == "step 1\nstep 2\n"


# ---------------------------------------------------------------- exit codes and what comes next


def test_a_log_that_does_not_hold_is_exit_code_1(run: Run, cell: FakeGateway) -> None:
    cell.verified[-1].ok, cell.verified[-1].problem = False, "entry 12: digest differs"
    result = run("log", "verify")
    assert result.exit_code == 1
    assert "the log does NOT hold: entry 12: digest differs" in result.stdout


def test_a_verification_without_an_end_is_no_success(run: Run, cell: FakeGateway) -> None:
    cell.verified.pop()
    assert run("log", "verify").exit_code == 1


def test_a_replay_that_differs_from_the_live_state_is_exit_code_1(
    run: Run, cell: FakeGateway
) -> None:
    cell.replayed.live_digest = b"\xee" * 32
    result = run("replay")
    assert result.exit_code == 1
    assert "DIFFERS" in result.stdout


def test_a_cell_without_a_leader_fails_the_doctor(run: Run, cell: FakeGateway) -> None:
    cell.cell.leader = ""
    cell.cell.nodes_ready = 0
    cell.cell.incident, cell.cell.parked, cell.cell.lag_ms = "i-1", 3, 60_000
    result = run("doctor")
    golden(
        "doctor-ill",
        re.sub(
            r"answers in \d+ ms",
            "answers in N ms",
            result.output.replace(cell.address, "HOST:PORT"),
        ),
    )
    assert result.exit_code == 1


def test_without_a_cell_the_doctor_says_how_to_get_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"HOME": str(tmp_path), "COLUMNS": "120"})
    assert result.exit_code == 1
    assert "no cell to talk to" in result.stdout
    assert "next: tidemilld up" in result.stdout


FAILURES = {
    3: Fault("FAILED_PRECONDITION", "job 43 is queued, not held", reason="bad_state"),
    4: Fault("NOT_FOUND", "no job 43", reason="unknown_job"),
    5: Fault("PERMISSION_DENIED", "user:bob may not", reason="permission"),
    6: Fault("RESOURCE_EXHAUSTED", "too many calls"),
    70: Fault("INTERNAL", "a defect"),
}


@pytest.mark.parametrize("code", sorted(FAILURES))
def test_exit_codes_tell_kinds_of_failure_apart(run: Run, cell: FakeGateway, code: int) -> None:
    cell.fail("ReleaseJob", FAILURES[code])
    result = run("release", "43")
    golden(f"error-{code}", result.stderr.replace(cell.address, "HOST:PORT"))
    assert result.exit_code == code
    assert code in EXIT_CODES


def test_a_gateway_that_is_away_is_exit_code_6(run: Run, cell: FakeGateway) -> None:
    cell.fail("GetJob", *[Fault("UNAVAILABLE", "gone")] * 1000)
    cell.stop()
    result = CliRunner().invoke(
        app, ["doctor"], env={"TIDEMILL_GATEWAY": cell.address, "COLUMNS": "120"}
    )
    assert result.exit_code == 1
    assert "cannot answer now" in result.stdout or "no answer" in result.stdout


SDK = Path(__file__).resolve().parents[2] / "sdk" / "tidemill"
# What stands for something in a printed command, and what the sample cell has of it.
STANDS_FOR = {
    "job": "42",
    "failed": "42",
    "view.job": "42",
    "node": "node-2",
    "file": "true",
    "items": "42",
}


def printed_commands() -> set[str]:
    """Every literal command in the SDK's messages, with its placeholders filled."""
    found = set()
    for path in sorted(SDK.rglob("*.py")):
        if "v1" not in path.parts:
            found |= set(
                re.findall(
                    r"[\"`'](?:[^\"`'\n]*(?:next|with): )?(tidemilld? [a-z-][^\"`\n]*)[\"`]",
                    path.read_text(),
                )
            )
    return {re.sub(r"\{(.*?)\}", _filled, command) for command in found}


def _filled(placeholder: re.Match[str]) -> str:
    name = placeholder[1].split("[")[0]
    known = [value for key, value in STANDS_FOR.items() if key in name]
    return known[0] if known else "x"


def test_every_command_that_is_printed_exists_and_understands_its_words(
    run: Run, tmp_path: Path
) -> None:
    commands = sorted(command for command in printed_commands() if command.startswith("tidemill "))
    assert {"tidemill doctor", "tidemill queues", "tidemill why 42", "tidemill release 42"} <= set(
        commands
    )
    wrong = {}
    for command in commands:
        words = shlex.split(command.removeprefix("tidemill "))
        if words in (["submit"], ["release"]):
            continue  # Named in a sentence, not as something to type.
        # What follows, what reads stdin or files of the reader's, and what names a cell: only its grammar is tried.
        if {"-w", "--watch", "-f", "-", "FILE", "--cell"} & set(words) or any(
            word.endswith(".yaml") for word in words
        ):
            words = [word for word in words if word != "FILE"]
            words = (
                words[2:]
                if words[0] == "--cell"
                else words[: words.index("--")]
                if "--" in words
                else words
            ) + ["--help"]
        result = run(*words)
        if result.exit_code == 2 or "Traceback" in result.output:
            wrong[command] = result.output[-300:]
    assert wrong == {}


def test_every_service_command_that_is_printed_is_one() -> None:
    project = tomllib.loads((SDK.parents[1] / "pyproject.toml").read_text())["project"]
    known = set(project["entry-points"]["tidemilld.commands"])
    printed = {
        command.split()[1] for command in printed_commands() if command.startswith("tidemilld ")
    }
    assert printed
    assert printed <= known
