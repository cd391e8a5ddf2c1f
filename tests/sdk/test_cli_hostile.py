"""What others wrote, names and messages above all, on the operator's terminal: every character is seen, none is obeyed."""

from __future__ import annotations

import csv
import io
import json
import os
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message
from typer.testing import CliRunner, Result

from tests.fakes.gateway import TOKEN, FakeGateway, Fault
from tests.sdk import sample
from tidemill.cli.app import app
from tidemill.cli.frame import complete_job
from tidemill.cli.text import visible

# Writes the clipboard, retitles the window, turns the line around, starts a sequence in one character, forges a line.
HOSTILE = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\u202e\u2066\x9b2J\x7f\U000e0041\r\nnext: rm -rf"
SEEN = "\\x1b]52;c;cm0gLXJm\\x07\\x1b[2J\\u202e\\u2066\\x9b2J\\x7f\\U000e0041"


def poison(message: Message) -> None:
    """Appends HOSTILE to every text in it."""
    for field, value in list(message.ListFields()):
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            number = next(iter(value.values()))
            if isinstance(number, (int, float)):
                value[HOSTILE] = number
        elif field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                poison(each)
        elif field.type == field.TYPE_STRING and field.is_repeated:
            value[:] = [text + HOSTILE for text in value]
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, value + HOSTILE)


@pytest.fixture
def cell(gateway: FakeGateway) -> FakeGateway:
    sample.fill(gateway)
    gateway.verified[-1].ok, gateway.verified[-1].problem = False, "broken"
    gateway.cell.incident = "i-1"
    everything: list[Any] = [
        *gateway.jobs.values(), *gateway.nodes.values(), *gateway.queues.values(), *gateway.explained.values(),
        *gateway.entries, *gateway.lines, *gateway.verified, gateway.cell, gateway.replayed,
    ]  # fmt: skip
    for message in everything:
        poison(message)
    return gateway


@pytest.fixture
def env(cell: FakeGateway) -> dict[str, str]:
    return {"TIDEMILL_GATEWAY": cell.address, "TIDEMILL_TOKEN": TOKEN, "COLUMNS": "10000"}


def run(env: dict[str, str], *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin, env=env, prog_name="tidemill")


def obeyed(text: str) -> Iterator[str]:
    """Characters that a terminal acts upon, other than the ends of our own lines."""
    return (
        char for char in text if char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Cs"}
    )


COMMANDS = [
    ["jobs", "--all"], ["show", "42"], ["why", "m4"], ["history", "42"], ["nodes"], ["queues"],
    ["cancel", "42"], ["hold", "42"], ["cordon", "node-2"], ["uncordon", "node-2"],
]  # fmt: skip


@pytest.mark.parametrize("form", ["table", "wide", "csv"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_whatever_is_in_a_view_the_terminal_obeys_none_of_it(
    env: dict[str, str], arguments: list[str], form: str
) -> None:
    result = run(env, *arguments, "-o", form)
    assert result.exit_code == 0
    assert SEEN in result.stdout
    assert list(obeyed(result.output)) == []
    assert not any(line.startswith("next: rm") for line in result.output.splitlines())


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["log", "tail", "--void"], ["log", "verify"], ["replay"]], ids=" ".join
)  # fmt: skip
def test_answers_about_the_cell_are_no_commands_to_the_terminal(
    env: dict[str, str], arguments: list[str]
) -> None:
    result = run(env, *arguments)
    assert not isinstance(result.exception, Exception), result.exception
    assert "\\x1b]52;" in result.stdout
    assert list(obeyed(result.output)) == []


def test_errors_and_refusals_show_what_they_quote(env: dict[str, str], cell: FakeGateway) -> None:
    cell.fail("ReleaseJob", Fault("FAILED_PRECONDITION", HOSTILE, reason=HOSTILE))
    error = run(env, "release", "43")
    cell.refuse = lambda _: Fault("INVALID_ARGUMENT", HOSTILE, reason="unknown_queue")
    line = json.dumps({"command": ["true"], "name": HOSTILE})
    refusals = run(env, "submit", "-", stdin=line + "\n")
    for result in (error, refusals):
        assert result.exit_code == 3
        assert "\\x1b]52;" in result.stderr
        assert list(obeyed(result.output)) == []
    assert len(refusals.stderr.splitlines()) == 2


@pytest.mark.parametrize("form", ["table", "csv"])
def test_what_was_submitted_is_shown_and_read_back(env: dict[str, str], form: str) -> None:
    name = f'a,"b"{HOSTILE}'
    one = run(env, "submit", "--name", name, "-o", form, "--", "true")
    stream = run(env, "submit", "-", "-o", "csv", stdin=json.dumps({"command": "x", "name": name}))
    for result in (one, stream):
        assert result.exit_code == 0
        assert list(obeyed(result.output)) == []
    assert SEEN in one.stdout
    [row] = csv.reader(io.StringIO(stream.stdout))
    assert row[3] == visible(name)


def test_programs_read_every_character_as_it_was(env: dict[str, str], cell: FakeGateway) -> None:
    shown = json.loads(run(env, "show", "42", "-o", "json").stdout)
    assert shown["spec"]["name"] == cell.jobs["kq3vz7m2ab5c"].spec.name
    assert HOSTILE in shown["spec"]["name"]


def test_completions_show_names_too(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found = complete_job(typer.Context(typer.main.get_command(app)), "")
    assert any(SEEN in pair[1] for pair in found)
    assert [char for pair in found for text in pair for char in obeyed(text)] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("训练 🚀 Ünï é", "训练 🚀 Ünï é"),
        ("a\tb\nc", "a\\x09b\\x0ac"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b\xad", "\\x9b\\xad"),
        ("\u202e\u200d\ufeff\u2028", "\\u202e\\u200d\\ufeff\\u2028"),
        ("\U000e0001", "\\U000e0001"),
        (os.fsdecode(b"\xff"), "\\udcff"),
    ],
)
def test_controls_and_invisible_characters_are_written_out_and_nothing_else(
    text: str, shown: str
) -> None:
    assert visible(text) == shown
