"""What strikes a live cell: a table of the kinds that scenarios name, each a real signal, cable, disk, clock or broker.

A fault that lasts is undone in time by `Stage.later`. It strikes only what the run started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from chaos.live_hosts import Hosts, kill
from chaos.live_scene import Scene
from chaos.net import CONTROL, MTU, SMALL_MTU, Network
from compose.local.stack import Stack
from services.demo.distributed import etcd_leader
from services.runtime.trial import TrialCell
from services.runtime.trial_kafka import KafkaTrialCell
from simulation.faults import Fault


class Stage(Scene[TrialCell]):
    """A cell, its hosts, and the brokers and members under it (None: embedded)."""

    def __init__(self, cell: TrialCell, hosts: Hosts, stack: Stack | None) -> None:
        super().__init__(cell)
        self.hosts, self._stack = hosts, stack

    @property
    def rails(self) -> int:
        """Those of the fabric, where there is one."""
        return self.hosts.network.rails if self.hosts.network is not None else super().rails

    @property
    def network(self) -> Network:
        """Of the hosts; scenarios that need it get it."""
        assert self.hosts.network is not None, "NEEDS_NETWORK names all kinds that use it"
        return self.hosts.network

    @property
    def stack(self) -> Stack:
        """Real Kafka and etcd; scenarios that need them get them."""
        assert self._stack is not None, "NEEDS_STACK names all kinds that use it"
        return self._stack

    def strike(self, fault: Fault) -> None:
        """By its act below."""
        ACTS[fault.kind](self, fault)

    def keep(self, folder: Path) -> None:
        """The logs of its directory."""
        for file in self.cell.directory.glob("*.log"):
            shutil.copy(file, folder)


Act: TypeAlias = Callable[[Stage, Fault], None]


# --- processes


def _kill_leader(stage: Stage, _fault: Fault) -> None:
    with stage.cell.client() as client:
        stage.cell.kill_leader(client)


def _pause_leader(stage: Stage, fault: Fault) -> None:
    with stage.cell.client() as client:
        _pause(stage, stage.cell.leader_pid(client), fault.lasts_ms)


def _kill_service(stage: Stage, fault: Fault) -> None:
    for pid in stage.cell.pids_of(fault.what.partition("-")[0])[:1]:
        kill(pid)


def _kill_everything(stage: Stage, _fault: Fault) -> None:
    cell, hosts = stage.cell, stage.hosts
    for pid in (*cell.pids(), *[agent.pid for agent in hosts.agents.values()]):
        kill(pid)
    cell.up.wait()
    for agent in hosts.agents.values():
        agent.wait()
    cell.start()
    for number in hosts.agents:
        hosts.start(number)


def _kill_agent(stage: Stage, fault: Fault) -> None:
    for number in stage.hosts.chosen(fault.target, fault.count):
        stage.hosts.kill_agent(number)
        stage.hosts.start(number)


def _pause_agent(stage: Stage, fault: Fault) -> None:
    for number in stage.hosts.chosen(fault.target, fault.count):
        _pause(stage, stage.hosts.agents[number].pid, fault.lasts_ms)


def _pause(stage: Stage, pid: int, lasts_ms: int) -> None:
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    stage.later(lasts_ms, go_on)


# --- hosts


def _dead_host(stage: Stage, fault: Fault) -> None:
    """The machines are gone with all that they ran; they come back on the same disks."""
    for number in stage.hosts.chosen(fault.target, fault.count):
        stage.hosts.die(number)
        stage.later(fault.lasts_ms, partial(stage.hosts.start, number))


def _disk_full(stage: Stage, fault: Fault) -> None:
    for number in stage.hosts.chosen(fault.target, fault.count):
        stage.hosts.disks[number].fill()
        stage.later(fault.lasts_ms, stage.hosts.disks[number].empty)


def _clock_step(stage: Stage, fault: Fault) -> None:
    """An hour forward or back, as in the simulation; for the agent alone."""
    size = len(stage.hosts.clocks)
    stage.hosts.clocks[fault.target % size].step(3600 if fault.target % 2 else -3600)


# --- cables


def _link_down(stage: Stage, fault: Fault) -> None:
    network, nics = stage.network, stage.network.chosen(fault.what)
    for number in stage.hosts.chosen(fault.target, fault.count):
        network.link(number, nics, up=False)
        stage.later(fault.lasts_ms, partial(network.link, number, nics, up=True))


def _small_mtu(stage: Stage, fault: Fault) -> None:
    """What gangs send is larger: the interface drops it, and its own counters tell."""
    network, nics = stage.network, stage.network.chosen(fault.what)
    for number in stage.hosts.chosen(fault.target, fault.count):
        network.mtu(number, nics, SMALL_MTU)
        stage.later(fault.lasts_ms, partial(network.mtu, number, nics, MTU))


def _link_drops(stage: Stage, fault: Fault) -> None:
    """`what`: interface and direction, such as "ib0 up": what it sends is lost, though its link is up."""
    what, _, way = fault.what.partition(" ")
    _drop(stage, fault, stage.network.chosen(what), way)


def _partition(stage: Stage, fault: Fault) -> None:
    """From the gateways only: the fabric goes on."""
    _drop(stage, fault, (CONTROL,), fault.what or "both")


def _drop(stage: Stage, fault: Fault, nics: Iterable[str], way: str) -> None:
    network = stage.network
    for number in stage.hosts.chosen(fault.target, fault.count):
        network.drop(number, nics, way)
        stage.later(fault.lasts_ms, partial(network.pass_again, number, nics))


# --- Kafka and etcd


def _broker(stage: Stage, fault: Fault) -> str:
    """The one that leads the log, or by its number from 0."""
    if fault.what == "leader":
        assert isinstance(stage.cell, KafkaTrialCell), "a stack has such a cell"
        return f"kafka-{stage.cell.log_broker()}"
    brokers = stage.stack.layout.brokers
    return brokers[fault.target % len(brokers)].name


def _etcd(stage: Stage, fault: Fault) -> str:
    if fault.what == "leader":
        return etcd_leader(stage.stack)
    members = stage.stack.layout.etcd
    return members[fault.target % len(members)].name


def _killed(choose: Callable[[Stage, Fault], str]) -> Act:
    def act(stage: Stage, fault: Fault) -> None:
        name = choose(stage, fault)
        stage.stack.kill(name)
        stage.later(fault.lasts_ms, lambda: stage.stack.start(name))

    return act


def _paused(choose: Callable[[Stage, Fault], str]) -> Act:
    def act(stage: Stage, fault: Fault) -> None:
        name = choose(stage, fault)
        stage.stack.pause(name)
        stage.later(fault.lasts_ms, lambda: stage.stack.resume(name))

    return act


def _restarted(choose: Callable[[Stage, Fault], str]) -> Act:
    def act(stage: Stage, fault: Fault) -> None:
        name = choose(stage, fault)
        stage.stack.terminate(name)
        stage.stack.start(name)

    return act


def _kafka_away(stage: Stage, fault: Fault) -> None:
    _all_away(stage, [broker.name for broker in stage.stack.layout.brokers], fault.lasts_ms)


def _etcd_away(stage: Stage, fault: Fault) -> None:
    _all_away(stage, [member.name for member in stage.stack.layout.etcd], fault.lasts_ms)


def _all_away(stage: Stage, names: list[str], lasts_ms: int) -> None:
    for name in names:
        stage.stack.kill(name)
    stage.later(lasts_ms, lambda: stage.stack.start(*names))


_ANYWHERE: Final[Mapping[str, Act]] = {
    "kill leader": _kill_leader,
    "pause leader": _pause_leader,
    "kill service": _kill_service,
    "kill everything": _kill_everything,
    "kill agent": _kill_agent,
    "pause agent": _pause_agent,
    "dead host": _dead_host,
}
_ON_CLOCKS: Final[Mapping[str, Act]] = {"clock step": _clock_step}
_ON_NETWORK: Final[Mapping[str, Act]] = {
    "link down": _link_down,
    "link drops": _link_drops,
    "small mtu": _small_mtu,
    "partition": _partition,
    "disk full": _disk_full,
}
_ON_STACK: Final[Mapping[str, Act]] = {
    "kill broker": _killed(_broker),
    "pause broker": _paused(_broker),
    "restart broker": _restarted(_broker),
    "broker down": _kafka_away,
    "kill etcd": _killed(_etcd),
    "pause etcd": _paused(_etcd),
    "restart etcd": _restarted(_etcd),
    "election down": _etcd_away,
}
ACTS: Final[Mapping[str, Act]] = {**_ANYWHERE, **_ON_CLOCKS, **_ON_NETWORK, **_ON_STACK}
NEEDS_CLOCKS: Final = frozenset(_ON_CLOCKS)
NEEDS_NETWORK: Final = frozenset(_ON_NETWORK)
NEEDS_STACK: Final = frozenset(_ON_STACK)
