"""`tidemilld topics` on a real broker: made once, checked, changed where nothing is lost."""

import secrets
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from services.runtime import topics
from services.runtime.cli import run
from services.runtime.exits import ExitCode
from services.runtime.topic_admin import main

pytestmark = pytest.mark.kafka
ONE_BROKER = ("--replicas", "1")


@pytest.fixture
def flags(kafka_bootstrap: str) -> Iterator[list[str]]:
    """The flags that name a new cell; its topics are deleted at the end."""
    cell = f"t{secrets.token_hex(5)}"
    yield ["--cell", cell, "--kafka", kafka_bootstrap, *ONE_BROKER]
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    there = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(cell)]
    for future in (admin.delete_topics(there) if there else {}).values():
        future.result(timeout=10)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_topics_are_made_once_and_are_then_as_declared(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(main, ["check", *flags]) == ExitCode.FAILED
    assert all(line.startswith("+ ") for line in lines(capsys))
    assert run(main, ["apply", *flags]) == ExitCode.STOPPED
    assert len(lines(capsys)) == len(topics.TOPICS)
    for action in ("check", "apply"):
        assert run(main, [action, *flags]) == ExitCode.STOPPED
        assert all(line.startswith("= ") for line in lines(capsys))


def test_what_differs_is_shown_and_changed(
    flags: list[str], kafka_bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = flags[1]
    short = NewTopic(f"{cell}.log", 1, 1, config={"retention.ms": "3600000"})
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for future in admin.create_topics([short]).values():
        future.result(timeout=10)
    assert run(main, ["apply", *flags]) == ExitCode.STOPPED
    assert f"~ {cell}.log".ljust(27) + "retention.ms 3600000 -> -1" in lines(capsys)
    more = [*flags, "--partitions", "requests=3"]
    assert run(main, ["apply", *more]) == ExitCode.STOPPED
    assert any("partitions 1 -> 3" in line for line in lines(capsys))
    assert run(main, ["check", *more]) == ExitCode.STOPPED


def test_what_would_lose_records_is_refused_and_the_rest_is_done(
    flags: list[str], kafka_bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = flags[1]
    wrong = [
        NewTopic(f"{cell}.log", 2, 1),
        NewTopic(f"{cell}.blobs", 1, 1, config={"cleanup.policy": "delete"}),
    ]
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for future in admin.create_topics(wrong).values():
        future.result(timeout=10)
    assert run(main, ["apply", *flags]) == ExitCode.FAILED
    said = lines(capsys)
    assert {line[2:].split()[0] for line in said if line.startswith("! ")} == {
        f"{cell}.log",
        f"{cell}.blobs",
    }
    assert said[-1].startswith("2 difference(s) left as they are")
    assert run(main, ["check", *flags]) == ExitCode.FAILED
    assert {line[0] for line in lines(capsys)} == {"!", "="}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], ExitCode.USAGE, "usage: tidemilld topics check|apply"),
        (["make"], ExitCode.USAGE, "usage: tidemilld topics check|apply"),
        (["check"], ExitCode.SETTINGS, "setting kafka is required"),
        (["check", "--kafka", "h:1", "--partitions", "requests"], ExitCode.SETTINGS, "NAME=VALUE"),
        (["check", "--kafka", "h:1", "--partitions", "requests=x"], ExitCode.SETTINGS, "TOPIC=N"),
    ],
)
def test_a_wrong_command_line_says_what_is_wanted(
    arguments: list[str],
    code: ExitCode,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TIDEMILL_KAFKA", raising=False)
    assert run(main, arguments) == code
    assert said in capsys.readouterr().err


def test_more_copies_than_brokers_are_refused_before_anything_is_made(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(main, ["apply", *flags[:-2], "--replicas", "9"]) == ExitCode.SETTINGS
    assert "9 copies need as many brokers" in capsys.readouterr().err


def test_no_broker_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["check", "--kafka", "127.0.0.1:1"]) == ExitCode.UNAVAILABLE
    assert "no broker of 127.0.0.1:1 answered" in capsys.readouterr().err
