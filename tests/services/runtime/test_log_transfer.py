"""A log to a file and back: the same bytes, the same digest; a torn file, another log and an interruption are said."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from services.runtime.cli import run
from services.runtime.exits import ExitCode
from services.runtime.log_transfer import export_log, import_log, main
from services.runtime.ports import DamagedError, LogRecord, PortError
from services.runtime.settings import CellSettings
from services.runtime.wiring import open_cell
from statemachines.cluster import FOLD_VERSION
from tests.fakes.memory import MemoryCell, MemoryEventLog
from tests.statemachines.golden import FOLDER, read
from tests.statemachines.world import CELL

GOLDEN = ["tour", "history-7"]


def log_of(values: list[bytes]) -> MemoryEventLog:
    cell = MemoryCell()
    cell.log = list(values)
    return MemoryEventLog(cell)


def values_of(log: MemoryEventLog) -> list[bytes]:
    return [record.value for record in log.read(0, limit=100_000, timeout_s=0)]


def told(name: str) -> dict[str, object]:
    recorded: dict[str, object] = json.loads((FOLDER / f"{name}.json").read_text())
    return recorded


@pytest.mark.parametrize("name", GOLDEN)
def test_a_log_goes_to_a_file_and_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    values = [*read(FOLDER / f"{name}.bin"), b"", b"\xff a foreign record"]
    out = export_log(log_of(values), CELL, tmp_path / "log")
    fresh = log_of([])
    back = import_log(fresh, CELL, tmp_path / "log")
    assert values_of(fresh) == values
    assert out == back
    recorded = told(name)
    assert back.head.hex() == recorded["head"]
    assert back.state_digest.hex() == recorded["state_digest"][str(FOLD_VERSION)]  # type: ignore[index]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("stored", [0, 1, 17])
def test_an_interrupted_import_goes_on_where_it_was(stored: int, tmp_path: Path) -> None:
    values = read(FOLDER / "tour.bin")
    export_log(log_of(values), CELL, tmp_path / "log")
    begun = log_of(values[:stored])
    import_log(begun, CELL, tmp_path / "log")
    import_log(begun, CELL, tmp_path / "log")
    assert values_of(begun) == values


def cut(size: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:size] if size >= 0 else data[: len(data) + size]


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(cut(0), id="empty"),
        pytest.param(cut(4), id="half the magic"),
        pytest.param(cut(8), id="no record"),
        pytest.param(cut(10), id="half a length"),
        pytest.param(cut(50), id="half a record"),
        pytest.param(cut(-1), id="half the end"),
        pytest.param(cut(-44), id="no end"),
        pytest.param(lambda data: data + b"x", id="more behind the end"),
        pytest.param(lambda data: data[:100] + b"\0" + data[101:], id="one byte changed"),
        pytest.param(lambda data: data[:8] + b"\x7f" + data[9:], id="a length beyond reason"),
    ],
)
def test_a_torn_file_is_refused_before_anything_is_stored(
    harm: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    file = tmp_path / "log"
    export_log(log_of(read(FOLDER / "tour.bin")), CELL, file)
    file.write_bytes(harm(file.read_bytes()))
    fresh = log_of([])
    with pytest.raises(DamagedError, match=r"torn or was changed|not an export of a log"):
        import_log(fresh, CELL, file)
    assert values_of(fresh) == []


def test_a_log_that_holds_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    values = read(FOLDER / "tour.bin")
    export_log(log_of(values), CELL, tmp_path / "log")
    other, longer = log_of([values[0], b"else"]), log_of([*values, b"more"])
    with pytest.raises(PortError, match=r"offset 1 is not record 1 of .*Nothing was changed"):
        import_log(other, CELL, tmp_path / "log")
    with pytest.raises(PortError, match=r"goes on after what .* holds"):
        import_log(longer, CELL, tmp_path / "log")
    assert values_of(other) == [values[0], b"else"]


def test_an_append_that_fails_is_raised_and_the_next_import_goes_on(tmp_path: Path) -> None:
    values = read(FOLDER / "tour.bin")
    export_log(log_of(values), CELL, tmp_path / "log")
    target = log_of([])
    broken = _FailsOnce(target, after=5)
    with pytest.raises(PortError, match="weather"):
        import_log(broken, CELL, tmp_path / "log")
    import_log(broken, CELL, tmp_path / "log")
    assert values_of(target) == values


class _FailsOnce:
    """Stores the sixth record and then says that it does not know."""

    def __init__(self, log: MemoryEventLog, after: int) -> None:
        self._log, self._left = log, after

    def append(self, value: bytes) -> None:
        self._log.append(value)
        self._left -= 1
        if self._left == -1:
            raise PortError("weather")

    def read(self, offset: int, *, limit: int, timeout_s: float) -> list[LogRecord]:
        return list(self._log.read(offset, limit=limit, timeout_s=timeout_s))

    def close(self) -> None: ...


def test_the_command_moves_a_log_between_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = open_cell(CellSettings(cell=CELL, directory=str(tmp_path / "old")))
    log = cell.event_log()
    for value in read(FOLDER / "tour.bin"):
        log.append(value)
    log.close()
    cell.close()
    file = str(tmp_path / "log")
    digest = told("tour")["state_digest"][str(FOLD_VERSION)]  # type: ignore[index]
    for action, directory in (("export", "old"), ("import", "new")):
        flags = ["--cell", CELL, "--directory", str(tmp_path / directory)]
        assert run(main, [action, file, *flags]) == ExitCode.STOPPED
        assert f"state digest {digest}" in capsys.readouterr().out


def test_an_import_is_refused_while_a_scheduler_leads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.log_transfer._ELECTION_S", 0.0)
    export_log(log_of([]), CELL, tmp_path / "log")
    cell = open_cell(CellSettings(cell=CELL, directory=str(tmp_path / "cell")))
    leads = cell.leadership("scheduler")
    assert leads.campaign(0)
    flags = ["--cell", CELL, "--directory", str(tmp_path / "cell")]
    assert run(main, ["import", str(tmp_path / "log"), *flags]) == ExitCode.UNAVAILABLE
    assert "a scheduler of this cell leads. Stop all of them" in capsys.readouterr().err
    leads.close()
    cell.close()
