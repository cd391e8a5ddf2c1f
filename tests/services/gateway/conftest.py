"""A served cell for the tests over gRPC: one gateway, one leader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.services.gateway.served import Leader, Served, serving


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
