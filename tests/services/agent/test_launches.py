"""What runs execute: what is kept of it across restarts, and that nothing else is believed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.agent.launches import Launches
from services.agent.link import LaunchGoneError, Link
from tests.services.agent.gateway import FakeGateway
from tidemill.v1 import common_pb2

WATCH = common_pb2.MarkerWatch(preset="directory", directory="/c")


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    fake = FakeGateway()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def link(gateway: FakeGateway) -> AsyncIterator[Link]:
    made = Link(lambda: [f"127.0.0.1:{gateway.port}"])
    yield made
    await made.close()


async def test_only_what_is_watched_is_kept_and_only_while_it_is_wanted(
    tmp_path: Path, gateway: FakeGateway, link: Link
) -> None:
    launches = Launches(tmp_path / "launches", link)
    plain, watched = gateway.blob("true"), gateway.blob("true", marker=WATCH)
    for digest in (plain, watched):
        await launches.fetch(digest)
    after = Launches(tmp_path / "launches", link)
    assert (after.kept(plain), after.kept(watched)) == (None, launches[watched])
    launches.keep_only({plain})
    assert after.kept(watched) is None
    assert launches[plain].argv == ["true"]


@pytest.mark.parametrize("damage", [b"", b"x" * 31, b"x" * 100])
async def test_what_is_damaged_is_fetched_again(
    tmp_path: Path, gateway: FakeGateway, link: Link, damage: bytes
) -> None:
    launches = Launches(tmp_path / "launches", link)
    digest = gateway.blob("true", marker=WATCH)
    await launches.fetch(digest)
    (tmp_path / "launches" / digest).write_bytes(damage)
    assert launches.kept(digest) is None


async def test_a_name_that_is_no_digest_is_no_path(tmp_path: Path, link: Link) -> None:
    (tmp_path / "secret").write_text("token")
    launches = Launches(tmp_path / "launches", link)
    assert launches.kept("../secret") is None
    with pytest.raises(LaunchGoneError):
        await launches.fetch("../secret")


async def test_a_disk_without_room_costs_nothing_but_the_copy(
    tmp_path: Path, gateway: FakeGateway, link: Link
) -> None:
    (tmp_path / "launches").write_text("not a directory")
    launches = Launches(tmp_path / "launches", link)
    digest = gateway.blob("true", marker=WATCH)
    assert (await launches.fetch(digest)).argv == ["true"]
    launches.keep_only(set())
    assert launches.kept(digest) is None
