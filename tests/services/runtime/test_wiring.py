"""Settings choose the adapters; what they cannot choose is said."""

from pathlib import Path

import pytest

from services.runtime import topics
from services.runtime.ports import Outgoing
from services.runtime.settings import CellSettings
from services.runtime.wiring import open_cell


def test_an_embedded_cell_opens_every_port_in_its_directory(tmp_path: Path) -> None:
    cell = open_cell(CellSettings(directory=str(tmp_path / "deep" / "cell")))
    log, publisher = cell.event_log(), cell.publisher()
    inputs = cell.inputs([topic.suffix for topic in topics.LEADER_INPUTS])
    snapshots, blobs, leadership = cell.snapshots(), cell.blobs(), cell.leadership("a")
    log.append(b"entry")
    publisher.publish([Outgoing("requests", b"k", b"v")])
    assert [record.value for record in log.read(0, limit=1, timeout_s=0)] == [b"entry"]
    assert [record.value for record in inputs.read({("requests", 0): 0}, limit=1, timeout_s=0)] == [
        b"v"
    ]
    assert list(snapshots.load()) == []
    assert blobs.get(blobs.put([b"b"])[0]) == b"b"
    assert leadership.campaign(0) == 1
    for port in (log, publisher, inputs, snapshots, blobs, leadership):
        port.close()
    cell.close()
    assert {path.name for path in (tmp_path / "deep" / "cell").iterdir()} == {
        "cell.db",
        "leader.lock",
        "bells",
    }
    assert list((tmp_path / "deep" / "cell" / "bells").iterdir()) == []


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "cell"
    cell = open_cell(CellSettings(directory=str(home)))
    cell.leadership("a").close()
    assert home.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in home.iterdir())
    cell.close()


@pytest.mark.parametrize("leaders", [2, 3])
def test_the_test_switch_elects_everyone_with_growing_terms(tmp_path: Path, leaders: int) -> None:
    cell = open_cell(CellSettings(directory=str(tmp_path), leadership="always"))
    standing = [cell.leadership(f"leader-{i}") for i in range(leaders)]
    assert [leadership.campaign(0) for leadership in standing] == list(range(1, leaders + 1))
    assert all(leadership.holds() for leadership in standing)
    standing[0].resign()
    assert not standing[0].holds()
    assert standing[0].campaign(0) is None
    for leadership in standing:
        leadership.close()
    cell.close()
