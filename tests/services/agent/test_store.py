"""The state directory: whole or not at all, one agent at a time, and what a full disk or damage does."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from services.agent.orders import Position
from services.agent.outbox import Relayed, Report, RunBegan, RunFinished, Saved
from services.agent.store import InUseError, StateStore
from services.agent.table import AgentState, Ending, Entry, Phase
from services.runtime.ports import PortError, StorageFullError
from statemachines.values import Evidence, Reach, RunId, Tier
from tests.services.agent.world import devices, order

STATE = AgentState(
    node="n1",
    boot_id="b",
    incarnation=3,
    at=Position(2, 99),
    sequence=7,
    orders=(order("job.1.0", devices=devices(2)),),
    entries=(
        Entry(order("job.1.0"), Phase.RUNNING),
        Entry(order("job.1.1"), Phase.PROBING, ending=Ending(Evidence.EXIT_STATUS, 1, 9, "m")),
    ),
    reports=(
        Report(5, 3, 1, RunBegan(RunId("job.1.0"))),
        Report(6, 3, 2, RunFinished(RunId("job.1.1"), Evidence.SELF_FENCED, signal=9)),
        Report(7, 3, 3, Saved("job", 1, 5, "/u", 10, Tier.LOCAL, Reach.NODE, "ab")),
        Report(8, 3, 4, Relayed(b"\x00\xff")),
    ),
)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path)


def test_what_was_saved_is_loaded_whole(store: StateStore, tmp_path: Path) -> None:
    assert store.load() is None
    store.save(STATE)
    store.close()
    again = StateStore(tmp_path)
    assert again.load() == STATE
    again.close()


def test_two_agents_cannot_share_a_directory(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(InUseError, match="another agent uses"):
        StateStore(tmp_path)
    store.close()
    StateStore(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PortError, match="cannot use"):
        StateStore(tmp_path / "file" / "state")


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_state_counts_as_lost_and_is_kept_aside(
    store: StateStore, tmp_path: Path, damage: bytes | None
) -> None:
    store.save(STATE)
    path = tmp_path / "state"
    stored = path.read_bytes()
    path.write_bytes(stored[:-1] if damage is None else damage)
    assert store.load() is None
    assert (tmp_path / "state.damaged").exists()
    assert store.load() is None
    store.save(STATE)
    assert store.load() == STATE
    store.close()


def test_a_flipped_bit_is_noticed(store: StateStore, tmp_path: Path) -> None:
    store.save(STATE)
    stored = bytearray((tmp_path / "state").read_bytes())
    stored[-10] ^= 1
    (tmp_path / "state").write_bytes(bytes(stored))
    assert store.load() is None
    store.close()


def test_a_write_that_was_cut_short_leaves_the_state_before_it(
    store: StateStore, tmp_path: Path
) -> None:
    store.save(STATE)
    (tmp_path / "state.new").write_bytes(b"half")
    assert store.load() == STATE
    store.close()


def test_a_full_disk_is_said_and_the_state_before_it_stands(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        store = StateStore(disk)
        store.save(STATE)
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(StorageFullError, match="make space"):
            store.save(AgentState("n1", "b", reports=STATE.reports * 100))
        assert store.load() == STATE
        (disk / "ballast").unlink()
        store.save(AgentState("n1", "b"))
        assert store.load() == AgentState("n1", "b")
        store.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("text", ["", "1 2", "a b c", " " * 63])
def test_a_stamp_that_says_nothing_is_none(store: StateStore, tmp_path: Path, text: str) -> None:
    assert store.renewed() is None
    (tmp_path / "renewed").write_text(text)
    assert store.renewed() is None
    store.close()
