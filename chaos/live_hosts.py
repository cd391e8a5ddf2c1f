"""The hosts of live chaos: agents as processes, each in a network namespace of its own where the faults need it.

A host dies as a machine does: its agent and all that it runs are gone at once. What is struck is only what was started here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from chaos.net import HUB_ADDRESS, Network
from chaos.net_clock import SteppedClock
from chaos.net_disk import Disk
from chaos.net_door import Door
from services.runtime.trial import TrialCell, TrialError
from simulation.world import Shape

_DISK_MIB: Final = 16
_END_WITHIN_S: Final = 10.0


class Hosts:
    """All of one cell. Closing it leaves none of their processes.

    `network` None: they share this machine's network. `faketime` None: they share its clock; else the library that fakes it.
    """

    def __init__(
        self, cell: TrialCell, shape: Shape, network: Network | None, faketime: Path | None
    ) -> None:
        self.network = network
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.disks: dict[int, Disk] = {}
        self.clocks: dict[int, SteppedClock] = {}
        self._cell, self._shape, self._faketime = cell, shape, faketime
        self._closing = contextlib.ExitStack()
        self._address: Callable[[], str] = lambda: cell.address
        if network is not None:
            door = Door(network.hub, HUB_ADDRESS, lambda: _parted(cell.address))
            self._closing.callback(door.close)
            self._address = lambda: door.address

    def close(self) -> None:
        """End agents and runs, and give back what they had. Raises TrialError."""
        with self._closing:
            for number in self.agents:
                self.die(number)

    def add(self, number: int) -> None:
        """A host, with a disk and a clock of its own where the faults need them, and its agent. Raises NetworkError."""
        state = self.state(number)
        state.mkdir(parents=True)
        if (network := self.network) is not None:
            network.add_host(number)
            self.disks[number] = Disk(state, name=network.host(number), mib=_DISK_MIB)
            self._closing.callback(self.disks[number].remove)
            self.disks[number].mount()
        if self._faketime is not None:
            file = state.with_name(f"{state.name}.clock")
            self.clocks[number] = SteppedClock(file, self._faketime)
        self.start(number)

    def start(self, number: int) -> None:
        """Its agent, the first time or again on the same state."""
        name, network = self.name(number), self.network
        clock = self.clocks[number].environment if number in self.clocks else {}
        wires = (
            ()
            if network is None
            else ("--nics", ",".join(network.nics), "--address", network.address(number, 0))
        )
        self.agents[number] = self._cell.spawn(
            name, "services.agent", "--node", name, "--state", str(self.state(number)), *self._cell.flags,
            "--gateway", self._address(), "--fake-gpus", f"{self._shape.devices}xH100", "--cpu", "8",
            "--checkpoint-reach", "cell", *wires,
            environment={**os.environ, **clock}, prefix=() if network is None else network.inside(number),
        )  # fmt: skip

    def chosen(self, target: int, count: int) -> list[int]:
        """So many hosts from the one that is meant; `count` 0: all."""
        size = len(self.agents)
        return [(target + i) % size for i in range(count or size)]

    def name(self, number: int) -> str:
        """Of the node."""
        return f"n{number:04}"

    def state(self, number: int) -> Path:
        """Its disk."""
        return self._cell.directory / "hosts" / self.name(number)

    # --- what happens to them

    def kill_agent(self, number: int) -> None:
        """SIGKILL; what it runs lives on."""
        kill(self.agents[number].pid)
        self.agents[number].wait()

    def die(self, number: int) -> None:
        """SIGKILL to the agent and all it runs, until nothing is left. Raises TrialError."""
        self.kill_agent(number)
        ends = time.monotonic() + _END_WITHIN_S
        while left := list(_naming(self.state(number))):
            if time.monotonic() > ends:
                raise TrialError(f"processes of {self.name(number)} cannot be killed: {left}")
            for pid in left:
                kill(pid)


def kill(pid: int) -> None:
    """SIGKILL; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _naming(folder: Path) -> Iterator[int]:
    """Living processes that name it on their command line or in their environment: supervisors, programs."""
    mark = os.fsencode(folder)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    yield int(entry.name)


def _parted(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
