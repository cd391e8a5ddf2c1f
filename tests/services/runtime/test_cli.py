"""The command finds commands, says what it can do, and turns errors into exit codes."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from services.runtime import cli
from services.runtime.codec import UnknownFactError
from services.runtime.exits import FINAL, ExitCode, exit_code_of
from services.runtime.ports import DamagedError, InputGapError, PortError, StorageFullError
from services.runtime.settings import SettingsError
from statemachines.lifecycle import IllegalTransition


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for point in entry_points(group=cli.GROUP):
        assert f"  {point.name}" in text
    assert "(not installed)" not in text


def test_a_summary_is_what_follows_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--help"])
    assert "`: " not in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(point.name for point in entry_points(group=cli.GROUP)))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = cli.main([command, "--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0
    assert capsys.readouterr().out.startswith(f"usage: tidemilld {command} ")


def test_no_command_is_a_usage_error_that_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == ExitCode.USAGE
    assert "usage: tidemilld COMMAND" in capsys.readouterr().out


def test_an_unknown_command_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gatewaay"]) == ExitCode.USAGE
    assert "no command 'gatewaay'" in capsys.readouterr().err


def test_versions_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "tidemilld 0.1.0\n"
    assert cli.main(["--version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "0.1.0"
    assert cli.main(["--version", "-o", "xml"]) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("no"), ExitCode.SETTINGS),
        (InputGapError("requests", 0, 1, 2), ExitCode.INPUT_GAP),
        (DamagedError("no"), ExitCode.LOG_DAMAGED),
        (StorageFullError("no"), ExitCode.UNAVAILABLE),
        (PortError("no"), ExitCode.UNAVAILABLE),
        (UnknownFactError("a fact"), ExitCode.LOG_NEWER),
        (IllegalTransition("job a", "queued", object()), ExitCode.FOLD_BROKEN),
        (OSError("no"), ExitCode.UNAVAILABLE),
        (ValueError("no"), ExitCode.FAILED),
        (KeyError(), ExitCode.FAILED),
    ],
)
def test_an_error_that_ends_a_process_has_a_code_and_is_said(
    error: Exception, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(_: Sequence[str]) -> int:
        raise error

    assert cli.run(command, []) == code == exit_code_of(error)
    text = capsys.readouterr().err
    assert text.splitlines()[-1].startswith("tidemilld: ")
    assert ("Traceback" in text) == (code is ExitCode.FAILED)


def test_an_error_may_carry_its_own_code() -> None:
    class DeposedError(Exception):
        code = ExitCode.DEPOSED

    assert exit_code_of(DeposedError()) is ExitCode.DEPOSED


def test_starting_again_helps_exactly_from_75_to_77() -> None:
    again = {code for code in ExitCode if code not in FINAL}
    assert again == {ExitCode.STOPPED, ExitCode.FAILED, 75, 76, 77}


def test_every_exit_code_is_documented_with_what_to_do() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "tidemilld.md"
    rows = re.findall(
        r"^\| (\d+) \| (\w+) \| .+ \| (no|yes|as you like)", page.read_text(), re.MULTILINE
    )
    assert [(int(code), name, again != "no") for code, name, again in rows] == [
        (code.value, code.name, code not in FINAL) for code in ExitCode
    ]


def test_operations_has_a_runbook_for_every_exit_code_and_alarms_on_metrics_that_exist() -> None:
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "operations.md").read_text()
    runbooks = re.findall(r"^### (\d+) (\w+)$", page, re.MULTILINE)
    assert [(int(code), name) for code, name in runbooks] == [(c.value, c.name) for c in ExitCode]
    alarmed = set(re.findall(r"tidemill_\w+", page))
    known = set(re.findall(r"`(tidemill_\w+)`", (docs / "reference" / "metrics.md").read_text()))
    assert len(alarmed) > 10
    assert alarmed <= known
    finals = re.search(r"RestartPreventExitStatus=([\d ]+)", page)
    assert finals is not None
    assert {int(code) for code in finals[1].split()} == set(FINAL)


def test_the_command_line_loads_nothing_heavy() -> None:
    heavy = ["grpc", "google.protobuf", "msgspec", "structlog", "numpy", "sqlite3", "asyncio"]
    code = (
        "import sys; from services.runtime import cli; cli.main(['--help']); "
        f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
