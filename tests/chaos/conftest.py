"""Hosts in network namespaces, which only root has, and a clock that can be stepped, which has to be built.

With CI=true none is a failure, at a desk a skip.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from chaos.net import Network, missing
from compose.local import build
from compose.local.errors import StackError
from tests.conftest import IN_CI


@pytest.fixture
def namespaces() -> None:
    """They can be had here."""
    if why := missing(user=os.geteuid()):
        _do_without(why)


@pytest.fixture
def faketime() -> Path:
    """The library that fakes a process's wall clock, built once."""
    try:
        return build.faketime()
    except StackError as error:
        _do_without(str(error))


def _do_without(why: str) -> NoReturn:
    if IN_CI:
        pytest.fail(f"CI=true allows no skip: {why}")
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
