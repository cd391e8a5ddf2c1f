"""What ranks sum over: every rail counts, one is enough with failover, and a dead one is given up on."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from chaos.ring import RailsDeadError, Ring, rails

STEPS = 20


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert isinstance(port, int)
        return port


def train(port: int, rank: int, world_size: int, count: int, *, failover: bool) -> list[int]:
    """One rank's sums. Addresses of loopback stand for the rails."""
    ring = Ring(
        "j.1", rank=rank, world_size=world_size, address="127.0.0.1", port=port, count=count,
        failover=failover, give_up_s=1.0 if count < 2 else 20.0,
    )  # fmt: skip
    try:
        return [ring.sum(step, step * (rank + 1)) for step in range(1, STEPS + 1)]
    finally:
        ring.close()


def test_rails_are_neighbouring_networks() -> None:
    assert rails("10.77.1.12", 3) == ["10.77.1.12", "10.77.2.12", "10.77.3.12"]


@pytest.mark.parametrize("failover", [False, True])
def test_every_rank_gets_the_sum_of_all(failover: bool) -> None:
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        one = partial(train, port, world_size=3, count=2, failover=failover)
        found = list(pool.map(one, range(3)))
    assert found == [[step * 6 for step in range(1, STEPS + 1)]] * 3


def test_with_failover_a_rank_that_is_heard_on_one_rail_is_enough() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(train, port, 0, 2, 2, failover=True)
        other = pool.submit(train, port, 1, 2, 1, failover=True)
        assert first.result() == other.result() == [step * 3 for step in range(1, STEPS + 1)]


def test_without_it_a_rail_that_carries_nothing_ends_the_attempt() -> None:
    port = free_port()
    with Ringed(port) as first, ThreadPoolExecutor(1) as pool:
        other = pool.submit(train, port, 1, 2, 1, failover=False)
        with pytest.raises(RailsDeadError, match="step 1: not all 2 ranks were heard"):
            first.sum(1, 1)
        with pytest.raises(RailsDeadError, match="step 1: rank 0 did not answer on 1 rails"):
            other.result()


def test_another_attempt_is_not_heard() -> None:
    port = free_port()
    with Ringed(port, count=1) as first, ThreadPoolExecutor(1) as pool:
        old = Ring("j.0", rank=1, world_size=2, address="127.0.0.1", port=port, give_up_s=1.0)
        asked = pool.submit(old.sum, 1, 5)
        with pytest.raises(RailsDeadError):
            first.sum(1, 1)
        with pytest.raises(RailsDeadError):
            asked.result()
        old.close()


def test_a_rank_alone_sums_with_nobody() -> None:
    assert Ring("j.1", rank=0, world_size=1, address="", port=0).sum(1, 7) == 7


class Ringed:
    """Rank 0 of two, impatient."""

    def __init__(self, port: int, count: int = 2) -> None:
        self._ring = Ring(
            "j.1", rank=0, world_size=2, address="127.0.0.1", port=port, count=count, give_up_s=1.0
        )

    def __enter__(self) -> Ring:
        return self._ring

    def __exit__(self, *_: object) -> None:
        self._ring.close()
