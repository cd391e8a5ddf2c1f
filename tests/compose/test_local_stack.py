"""A real broker and a real etcd member: started, hurt, found again, and never mistaken."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compose.local.stack import Condition, Stack, StackError, process
from compose.local.stack.cli import main
from compose.local.stack.provision import ROOM_OF_MEMBER, check_machine

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.etcd,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pair"),  # Where nothing can be launched, all skip, or fail in CI.
]
BOTH = ["etcd-1", "kafka-1"]
WAIT_S = 90.0


@pytest.fixture(scope="module")
def pair(launch_stack: Callable[[int, int], Stack]) -> Stack:
    return launch_stack(1, 1)


@pytest.fixture
def stack(pair: Stack) -> Stack:
    pair.up()
    return pair


def put(stack: Stack, key: str, value: str) -> None:
    etcd(stack, "put", {"key": encoded(key), "value": encoded(value)})


def get(stack: Stack, key: str) -> list[str]:
    found = etcd(stack, "range", {"key": encoded(key)}).get("kvs", [])
    return [b64decode(pair["value"]).decode() for pair in found]


def etcd(stack: Stack, call: str, body: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    url = f"http://127.0.0.1:{stack.layout.etcd[0].http}/v3/kv/{call}"
    request = urllib.request.Request(url, data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        parsed: dict[str, list[dict[str, str]]] = json.load(answer)
        return parsed


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def produce(stack: Stack, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": stack.layout.bootstrap, "acks": "all"})
    failures: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    producer.flush(WAIT_S)
    assert failures == [None]


def consume(stack: Stack, topic: str, count: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": stack.layout.bootstrap, "group.id": "unused"}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, WAIT_S)]
    finally:
        consumer.close()


def create_topic(stack: Stack, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": stack.layout.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1)]).values():
        made.result(WAIT_S)


def test_both_serve_and_keep_what_they_acknowledged_through_kill(stack: Stack) -> None:
    create_topic(stack, "kept")
    produce(stack, "kept", b"before")
    put(stack, "kept", "before")
    assert [stack.kill(name) for name in BOTH] == [True, True]
    assert [stack.condition(name) for name in BOTH] == [Condition.DOWN, Condition.DOWN]
    assert stack.start() == BOTH
    stack.wait_healthy()
    produce(stack, "kept", b"after")
    assert consume(stack, "kept", 2) == [b"before", b"after"]
    assert get(stack, "kept") == ["before"]


def test_up_on_a_running_stack_changes_nothing(stack: Stack) -> None:
    before = [stack.pid(name) for name in BOTH]
    stack.up()
    assert [stack.pid(name) for name in BOTH] == before
    assert None not in before


def test_a_second_launcher_finds_the_same_members(stack: Stack) -> None:
    again = Stack.open(stack.root, brokers=1, etcd=1)
    assert again.layout == stack.layout
    assert [again.pid(name) for name in BOTH] == [stack.pid(name) for name in BOTH]
    assert [row.trouble for row in again.status()] == ["", ""]


def test_the_environment_file_names_the_addresses(stack: Stack) -> None:
    assert stack.environment_file == stack.root.parent / "stack.env"
    assert stack.environment_file.read_text() == (
        f"TIDEMILL_KAFKA={stack.layout.bootstrap}\nTIDEMILL_ETCD={stack.layout.endpoints}\n"
    )


def test_a_member_restarts_as_another_process_with_its_data(stack: Stack) -> None:
    put(stack, "restarted", "yes")
    before = stack.pid("etcd-1")
    stack.restart("etcd-1")
    assert stack.pid("etcd-1") not in {None, before}
    assert get(stack, "restarted") == ["yes"]


def test_a_paused_member_serves_nobody_until_it_is_resumed(stack: Stack) -> None:
    stack.pause("etcd-1")
    assert stack.condition("etcd-1") is Condition.PAUSED
    with pytest.raises(StackError, match=r"(?s)not healthy after 0 s: etcd-1: no health from port"):
        stack.wait_healthy("etcd-1", timeout_s=0)
    stack.resume("etcd-1")
    stack.wait_healthy("etcd-1")


def test_up_thaws_what_is_paused(stack: Stack) -> None:
    stack.pause("kafka-1")
    stack.up()
    assert stack.condition("kafka-1") is Condition.RUNNING


def test_a_stale_identity_file_hits_no_foreign_process(stack: Stack) -> None:
    stack.kill("etcd-1")
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        stat = Path(f"/proc/{bystander.pid}/stat").read_text()
        fields = stat.split(" ")
        fields[21] = str(int(fields[21]) - 1)  # Same pid, another start time.
        boot = process.BOOT_ID.read_text()
        (stack.folder("etcd-1") / "pid").write_text(f"{' '.join(fields)}{boot}")
        assert stack.condition("etcd-1") is Condition.DOWN
        assert stack.kill("etcd-1") is False
        with pytest.raises(StackError, match="etcd-1 is down; start it first"):
            stack.pause("etcd-1")
        assert stack.start("etcd-1") == ["etcd-1"]
        stack.wait_healthy("etcd-1")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("content", ["", "garbage", "1 (init) S\n\n"])
def test_a_damaged_identity_file_counts_as_down(stack: Stack, content: str) -> None:
    stack.kill("etcd-1")
    (stack.folder("etcd-1") / "pid").write_text(content)
    assert stack.start("etcd-1") == ["etcd-1"]
    stack.wait_healthy("etcd-1")


def test_a_taken_port_is_named_and_nothing_is_started(stack: Stack) -> None:
    for name in BOTH:
        stack.kill(name)
    port = stack.layout.etcd[0].peer
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(StackError, match=rf"port {port} of etcd-1 is taken .*\n.*ss -ltnp"):
            stack.up()
        assert [stack.condition(name) for name in BOTH] == [Condition.DOWN, Condition.DOWN]
    stack.up()


def test_a_member_that_cannot_start_shows_the_end_of_its_log(stack: Stack) -> None:
    stack.terminate("kafka-1")
    meta = stack.folder("kafka-1") / "data" / "meta.properties"
    whole = meta.read_text()
    meta.write_text(whole.replace("node.id=1", "node.id=7"))
    stack.start("kafka-1")
    with pytest.raises(StackError, match=r"(?s)kafka-1 ended:\n.*node.id.*whole log: "):
        stack.wait_healthy("kafka-1")
    meta.write_text(whole)
    stack.up()


def test_members_outlive_a_launcher_that_is_killed_while_it_starts_them(stack: Stack) -> None:
    stack.kill("kafka-1")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "compose.local.stack", "up", "--dir", str(stack.root)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    with launcher.stdout:
        assert launcher.stdout.readline() == "started kafka-1\n"
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    assert stack.condition("kafka-1") is Condition.RUNNING
    assert stack.start() == []
    stack.wait_healthy()


def test_each_command_says_what_it_did(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--dir", str(stack.root)]
    for command, state in [
        (["stop", "etcd-1"], "paused"),
        (["cont", "etcd-1"], "running"),
        (["terminate", "etcd-1"], "down"),
        (["start", "etcd-1"], "running"),
        (["kill", "etcd-1"], "down"),
        (["restart", "etcd-1"], "running"),
    ]:
        assert main([*command, *folder]) == 0
        assert capsys.readouterr().out == f"etcd-1 is {state}\n"
    assert main(["status", *folder]) == 0
    assert f"kafka-1   {stack.layout.bootstrap}" in capsys.readouterr().out


def test_status_fails_while_a_member_is_down(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.kill("etcd-1")
    assert main(["status", "--dir", str(stack.root)]) == 1
    assert main(["kill", "etcd-1", "--dir", str(stack.root)]) == 1
    assert "etcd-1 is down already" in capsys.readouterr().err


def test_an_unknown_member_is_answered_with_those_there_are(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kill", "kafka-9", "--dir", str(stack.root)]) == 1
    assert "there are etcd-1, kafka-1" in capsys.readouterr().err


def test_another_size_is_refused_for_a_saved_stack(stack: Stack) -> None:
    with pytest.raises(StackError, match="holds a stack of 1 brokers and 1 etcd members"):
        Stack.open(stack.root, brokers=3)


def test_data_of_running_members_is_not_deleted(stack: Stack) -> None:
    with pytest.raises(StackError, match="etcd-1, kafka-1 still run; first: down"):
        stack.wipe()
    assert stack.folder("kafka-1").is_dir()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StackError, match="holds other files"):
        Stack.open(tmp_path, brokers=0, etcd=1)


def test_down_wipe_deletes_the_folder_and_down_again_says_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--dir", str(tmp_path / "stack")]
    assert main(["up", "--brokers", "0", "--etcd", "1", *folder]) == 0
    environment = tmp_path / "stack.env"
    assert environment.read_text().startswith("TIDEMILL_KAFKA=\nTIDEMILL_ETCD=127.0.0.1:")
    assert main(["down", "--wipe", *folder]) == 0
    assert list(tmp_path.iterdir()) == []
    assert main(["down", *folder]) == 1
    assert f"no stack in {tmp_path / 'stack'}; start one" in capsys.readouterr().err


def test_a_guard_ends_the_stack_when_the_process_that_it_watches_is_killed(tmp_path: Path) -> None:
    stack = Stack.open(tmp_path / "stack", brokers=0, etcd=1)
    watched = subprocess.Popen(["sleep", "600"])
    stack.up()
    member = process.current(stack.pid("etcd-1") or 0)
    command = ["down", "--wipe", "--after", str(watched.pid), "--dir", str(stack.root)]
    guard = subprocess.Popen(
        [sys.executable, "-m", "compose.local.stack", *command], cwd=Path(__file__).parents[2]
    )
    assert process.condition(member) is Condition.RUNNING
    assert guard.poll() is None
    watched.kill()
    watched.wait()
    assert guard.wait(WAIT_S) == 0
    assert process.condition(member) is Condition.DOWN
    assert list(tmp_path.iterdir()) == []


def test_etcd_takes_no_setting_from_the_environment(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_MAX_TXN_OPS", "not a number")
    stack.restart("etcd-1")
    environ = Path(f"/proc/{stack.pid('etcd-1')}/environ").read_bytes()
    assert b"ETCD_" not in environ
    assert os.environ["ETCD_MAX_TXN_OPS"] == "not a number"


def test_members_that_need_more_room_than_there_is_are_not_started(stack: Stack) -> None:
    free = shutil.disk_usage(stack.root).free
    etcd_member = stack.layout.etcd[0]
    stack.kill(etcd_member.name)
    too_many = [etcd_member] * (free // ROOM_OF_MEMBER + 1)
    with pytest.raises(StackError, match=r"MiB free under .*\n.*--dir PATH"):
        check_machine(stack.root, too_many)


def test_an_interrupted_start_leaves_nothing_running(stack: Stack) -> None:
    stack.kill("kafka-1")
    up = [sys.executable, "-m", "compose.local.stack", "up", "--dir", str(stack.root)]
    launcher = subprocess.Popen(
        ["env", "--default-signal=INT", *up],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "started kafka-1\n"
    launcher.send_signal(signal.SIGINT)
    _, complaint = launcher.communicate(timeout=WAIT_S)
    assert (launcher.returncode, complaint.split(";")[0]) == (130, "interrupted")
    assert stack.condition("kafka-1") is Condition.DOWN
    assert stack.condition("etcd-1") is Condition.RUNNING
