"""A log written by an embedded cell, imported into Kafka, folds to the same digest; and back."""

from pathlib import Path

import pytest

from services.runtime.cli import run
from services.runtime.exits import ExitCode
from services.runtime.log_transfer import main
from services.runtime.settings import CellSettings
from services.runtime.wiring import open_cell
from tests.fixtures.kafka_cell import kafka_cell
from tests.statemachines.golden import FOLDER, read

pytestmark = [pytest.mark.kafka, pytest.mark.etcd]


@pytest.mark.parametrize("name", ["tour", "history-7"])
def test_an_embedded_log_goes_to_kafka_and_back_with_the_same_digest(
    name: str,
    kafka_bootstrap: str,
    etcd_endpoints: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with kafka_cell(kafka_bootstrap, cell="test") as _:
        kafka = [
            "--log", "kafka", "--kafka", kafka_bootstrap,
            "--leadership", "etcd", "--etcd", ",".join(etcd_endpoints),
        ]  # fmt: skip
        values = read(FOLDER / f"{name}.bin")
        cell = open_cell(CellSettings(cell="test", directory=str(tmp_path / "old")))
        log = cell.event_log()
        for value in values:
            log.append(value)
        log.close()
        cell.close()
        first, second = str(tmp_path / "first"), str(tmp_path / "second")
        said = []
        for arguments in (
            ["export", first, "--directory", str(tmp_path / "old")],
            ["import", first, *kafka],
            ["import", first, *kafka],  # Again: all is there, nothing is repeated.
            ["export", second, *kafka],
            ["import", second, "--directory", str(tmp_path / "new")],
        ):
            assert run(main, [*arguments, "--cell", "test"]) == ExitCode.STOPPED
            said.append(capsys.readouterr().out.partition(": ")[2])
        assert len(set(said)) == 1
        assert f"{len(values)} records" in said[0]
        assert Path(first).read_bytes() == Path(second).read_bytes()
