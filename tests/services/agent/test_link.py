"""Calls of the agent to its gateway, and what becomes of them when the channel goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.agent.link import GatewayError, Link
from tests.services.agent.gateway import FakeGateway


@pytest.fixture
async def slow() -> AsyncIterator[FakeGateway]:
    gateway = FakeGateway()
    gateway.hold_blobs = True
    await gateway.start()
    yield gateway
    await gateway.stop()


async def test_a_fetch_whose_channel_was_closed_is_to_be_tried_again(slow: FakeGateway) -> None:
    link = Link(lambda: [f"127.0.0.1:{slow.port}"])
    fetch = asyncio.ensure_future(link.launch("ab" * 32))
    await slow.blob_asked.wait()
    await link.turn()
    with pytest.raises(GatewayError, match="closed"):
        await fetch
    await link.close()


async def test_a_fetch_that_was_cancelled_is_cancelled(slow: FakeGateway) -> None:
    link = Link(lambda: [f"127.0.0.1:{slow.port}"])
    fetch = asyncio.ensure_future(link.launch("ab" * 32))
    await slow.blob_asked.wait()
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    await link.close()


async def test_a_gateway_is_named_as_clients_name_it(tmp_path: Path) -> None:
    def addresses() -> list[str]:
        return ["10.0.0.9:7170"]

    assert Link(addresses).url == "10.0.0.9:7170"
    assert Link(addresses, ca=str(tmp_path / "ca.pem")).url == "tls://10.0.0.9:7170"
