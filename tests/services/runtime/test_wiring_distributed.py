"""Settings choose Kafka and etcd; what is missing or cannot be read is said."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.exits import ExitCode
from services.runtime.ports import Outgoing, PortError
from services.runtime.settings import CellSettings, SettingsError
from services.runtime.wiring import etcd_settings, kafka_settings, open_cell
from tests.fixtures.kafka_cell import kafka_cell


@pytest.mark.parametrize(
    ("setting", "package", "flags"),
    [
        ("log = kafka", "confluent_kafka", ["--log", "kafka", "--kafka", "127.0.0.1:1"]),
        ("leadership = etcd", "pyetcd", ["--leadership", "etcd", "--etcd", "127.0.0.1:1"]),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    tmp_path: Path, setting: str, package: str, flags: list[str]
) -> None:
    without = f"import sys; sys.modules[{package!r}] = None; from services.runtime.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", without, "scheduler", "--directory", str(tmp_path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.SETTINGS, done.stderr
    assert f"setting {setting} needs {package}" in done.stderr
    assert done.stderr.endswith("pip install 'tidemill-server[distributed]'\n")


def test_kafka_without_brokers_is_refused() -> None:
    with pytest.raises(SettingsError, match="setting kafka is required"):
        open_cell(CellSettings(log="kafka"))


def test_etcd_without_members_is_refused(tmp_path: Path) -> None:
    cell = open_cell(CellSettings(directory=str(tmp_path), leadership="etcd"))
    with pytest.raises(SettingsError, match="setting etcd is required"):
        cell.leadership("a")
    cell.close()


def test_options_of_the_client_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# login\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b#c\n")
    told = kafka_settings(CellSettings(kafka="h:1", kafka_options=str(file)), "gateway")
    assert told.options == {"security.protocol": "SASL_SSL", "sasl.password": "a=b#c"}
    assert (told.bootstrap, told.cell, told.client) == ("h:1", "main", "gateway")


def test_a_line_that_is_no_option_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("security.protocol=SSL\nsecret\n")
    with pytest.raises(SettingsError, match="line 2: write name=value"):
        kafka_settings(CellSettings(kafka="h:1", kafka_options=str(file)), "gateway")


@pytest.mark.parametrize("option", ["acks", "enable.idempotence", "group.id", "isolation.level"])
def test_an_option_that_correctness_rests_on_is_refused(tmp_path: Path, option: str) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(f"{option}=1\n")
    cell = open_cell(CellSettings(log="kafka", kafka="h:1", kafka_options=str(file)))
    with pytest.raises(PortError, match=f"{option}: not an option of an operator"):
        cell.inputs(["requests"])


def test_an_option_that_the_library_does_not_know_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("security.protokol=SSL\n")
    log = open_cell(CellSettings(log="kafka", kafka="h:1", kafka_options=str(file))).event_log()
    with pytest.raises(PortError, match=r'No such configuration property: "security.protokol"'):
        log.append(b"x")
    log.close()


def test_the_password_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    told = etcd_settings(
        CellSettings(etcd=("a:1", "b:2"), etcd_user="u", etcd_password_file=str(file))
    )
    assert (told.endpoints, told.user, told.password) == (("a:1", "b:2"), "u", "secret")
    with pytest.raises(SettingsError, match=r"/no/such: .*Give a text file"):
        etcd_settings(CellSettings(etcd=("a:1",), etcd_password_file="/no/such"))


@pytest.mark.kafka
@pytest.mark.etcd
def test_a_distributed_cell_opens_every_port(
    kafka_bootstrap: str, etcd_endpoints: tuple[str, ...]
) -> None:
    with kafka_cell(kafka_bootstrap) as made:
        name = made.settings.cell
        cell = open_cell(
            CellSettings(
                cell=name,
                log="kafka",
                kafka=kafka_bootstrap,
                leadership="etcd",
                etcd=etcd_endpoints,
            ),
            "scheduler",
        )
        log, publisher, inputs = cell.event_log(), cell.publisher(), cell.inputs(["requests"])
        snapshots, blobs, leadership = cell.snapshots(), cell.blobs(), cell.leadership("a")
        assert leadership.campaign(30.0)
        log.append(b"entry")
        publisher.publish([Outgoing("requests", b"k", b"v")])
        assert [r.value for r in log.read(0, limit=1, timeout_s=30)] == [b"entry"]
        found = inputs.read({("requests", 0): 0}, limit=1, timeout_s=30)
        assert [record.value for record in found] == [b"v"]
        assert list(snapshots.load()) == []
        assert blobs.get(blobs.put([b"b"])[0]) == b"b"
        for port in (log, publisher, inputs, snapshots, blobs, leadership):
            port.close()
        cell.close()
