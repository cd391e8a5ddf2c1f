"""A cell in memory for tests of the core, and a served one for the tests over gRPC: one gateway, one leader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.gateway.sessions import AttachStream
from tests.services.gateway.served import Leader, Served, serving
from tests.services.gateway.world import World


@pytest.fixture
def world() -> World:
    """A cell in memory."""
    return World()


@pytest.fixture
def stream(world: World) -> AttachStream:
    """n1 is attached, joined, and has its first set."""
    stream = world.attach("n1")
    world.settle()
    world.pulled(stream)
    return stream


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    """Leads the cell of the test's directory."""
    leader = Leader(tmp_path)
    yield leader
    leader.stop()


@pytest.fixture
async def served(tmp_path: Path, leader: Leader) -> AsyncIterator[Served]:
    """A gateway of a cell that is led."""
    async with serving(tmp_path) as served:
        yield served
