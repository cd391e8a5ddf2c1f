"""Puts up what a live scenario is played on: namespaces where it needs them, a cell, real Kafka and etcd, and hosts.

Everything is the run's own, named by its process id, and gone afterwards in the reverse order, however the run ends;
but the stack in containers is taken as it runs (chaos/live_compose.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from chaos import live_compose
from chaos.live_acts import NEEDS_CLOCKS, NEEDS_NETWORK, NEEDS_STACK, Stage
from chaos.live_hosts import Hosts
from chaos.live_scene import Cell, Scene
from chaos.net import Network
from chaos.scenarios import UnknownScenarioError
from compose.local import build
from compose.local.stack import Stack, StackError
from services.runtime.trial import TrialCell, TrialError
from services.runtime.trial_kafka import KafkaTrialCell
from simulation.scenario import Scenario

STACKS: Final = ("embedded", "local", "compose")
# Brokers of our own: what runs already may be somebody's.
_STACK_FOLDER: Final = Path("out") / "chaos-stack"


def stack_of(scenario: Scenario) -> str:
    """What a scenario is played on unless somebody says otherwise: real brokers only where it strikes them."""
    return "local" if _kinds(scenario) & NEEDS_STACK else "embedded"


def obstacle(scenario: Scenario, stack: str) -> str:
    """Why the scenario cannot be played there; empty when it can."""
    if stack == "compose":
        return _not_in_containers(_kinds(scenario))
    struck = sorted(_kinds(scenario) & NEEDS_STACK)
    if struck and stack != "local":
        return f"{', '.join(struck)} needs real brokers: --stack local"
    return ""


def _not_in_containers(kinds: set[str]) -> str:
    if struck := sorted(kinds - live_compose.ACTS.keys()):
        return f"{', '.join(struck)}: containers have no such fault: --stack local"
    return ""


def staged(scenario: Scenario, stack: str) -> AbstractContextManager[Scene[Cell]]:
    """Everything up, all agents attached. Raises NetworkError, TrialError, UnknownScenarioError."""
    if stack == "compose":
        return live_compose.staged(scenario.shape)
    return _processes(scenario, stack)


@contextlib.contextmanager
def _processes(scenario: Scenario, stack: str) -> Iterator[Stage]:
    faketime = _faketime() if _kinds(scenario) & NEEDS_CLOCKS else None
    with contextlib.ExitStack() as closing:
        network = None
        if _kinds(scenario) & NEEDS_NETWORK:
            network = closing.enter_context(Network(str(os.getpid()), rails=scenario.shape.nics))
        flags = ("--schedulers", str(scenario.shape.schedulers))
        brokers = closing.enter_context(_stack()) if stack == "local" else None
        cell = closing.enter_context(_cell(brokers, flags))
        hosts = Hosts(cell, scenario.shape, network, faketime)
        closing.callback(hosts.close)
        stage = Stage(cell, hosts, brokers)
        closing.callback(_whole_again, stage, brokers)
        for number in range(scenario.shape.nodes):
            hosts.add(number)
        with cell.client() as client:
            cell.until("the agents", lambda: client.cell().nodes_ready >= scenario.shape.nodes)
        yield stage


def _faketime() -> Path:
    try:
        return build.faketime()
    except StackError as error:
        raise UnknownScenarioError(f"clock step needs libfaketime, and {error}") from error


def _kinds(scenario: Scenario) -> set[str]:
    return {fault.kind for fault in scenario.fault}


def _cell(brokers: Stack | None, flags: tuple[str, ...]) -> TrialCell:
    if brokers is None:
        return TrialCell("chaos", flags=flags)
    kafka, etcd = brokers.layout.bootstrap, brokers.layout.endpoints
    return KafkaTrialCell("chaos", kafka=kafka, etcd=etcd, flags=flags)


@contextlib.contextmanager
def _stack() -> Iterator[Stack]:
    """Three brokers and three members on free ports; ended and deleted afterwards."""
    try:
        stack = Stack.open(_STACK_FOLDER)
        try:
            stack.up()
            yield stack
        finally:
            stack.down()
            stack.wipe()
    except StackError as error:
        raise TrialError(str(error)) from error


def _whole_again(stage: Stage, brokers: Stack | None) -> None:
    """Nothing is ended while it is stopped, and topics can be deleted only where brokers are."""
    stage.heal()
    if brokers is not None:
        brokers.up()
