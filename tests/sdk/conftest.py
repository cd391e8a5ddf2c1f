"""Fixtures of the SDK's tests: a fake gateway on a real port, and an environment without the developer's own cell."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gateway import FakeGateway
from tests.sdk.attempt import Cell
from tidemill.client import Client


@pytest.fixture(autouse=True)
def no_cell_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("TIDEMILL_", "XDG_")) or name in {"RANK", "WORLD_SIZE", "COLUMNS"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    fake = FakeGateway()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def client(gateway: FakeGateway) -> Iterator[Client]:
    with Client(gateway.address, token="good", deadline_s=10.0) as connected:
        yield connected


@pytest.fixture
def cell(gateway: FakeGateway, tmp_path: Path) -> Iterator[Cell]:
    made = Cell(gateway, tmp_path)
    yield made
    for opened in made.open:
        opened.close()
