"""Hosts in network namespaces for whoever asks: only root has them. With CI=true none is a failure, at a desk a skip."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from chaos.net import Network, missing
from tests.conftest import IN_CI


@pytest.fixture
def namespaces() -> None:
    """They can be had here."""
    why = missing(user=os.geteuid())
    if why and IN_CI:
        pytest.fail(f"CI=true allows no skip: {why}")
    if why:
        pytest.skip(why)


@pytest.fixture
def network(namespaces: None) -> Iterator[Callable[..., Network]]:
    """Makes one with so many hosts, gone after the test."""
    made: list[Network] = []

    def make(*, hosts: int, rails: int) -> Network:
        network = Network(f"t{os.getpid()}x{len(made)}", rails=rails)
        made.append(network)
        network.__enter__()
        for number in range(hosts):
            network.add_host(number)
        return network

    yield make
    for each in made:
        each.remove()
