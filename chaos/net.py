"""Hosts of one run as network namespaces: a way to the gateways, and ports of a fabric that gangs talk over.

Each host has `ctl0` and `ib0`, `ib1` ...; the other ends are ports of bridges in one more namespace, the hub. A port that
is switched off there takes the carrier from the host's interface, as a pulled cable does. It makes and touches nothing
but namespaces that carry the run's id: no interface of this machine ever belongs to it, and no packet leaves it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

CONTROL: Final = "ctl0"
# Where the hub is seen by all hosts: the door to the gateways.
HUB_ADDRESS: Final = "10.77.0.1"
HOSTS_MAX: Final = 200
RAILS_MAX: Final = 64
# The largest packet, and what is left of it on an interface that was set up wrong.
MTU: Final = 1500
SMALL_MTU: Final = 576
# Command: the Debian package that has it.
_TOOLS: Final = {"ip": "iproute2", "nft": "nftables", "mount": "mount"}
_OF_A_RUN: Final = re.compile(r"tidemill-([1-9][0-9]*)-(?:hub|n[0-9]{4})")
_MOUNTS: Final = Path("/proc/mounts")
_COMMAND_S: Final = 30.0
_END_WITHIN_S: Final = 5.0


class NetworkError(Exception):
    """The network cannot be had here; the message says what is missing, or what the kernel refused."""


def missing(*, user: int, which: Callable[[str], str | None] = shutil.which) -> str:
    """What this machine lacks for hosts of their own; empty when it has everything."""
    if user != 0:
        return "network namespaces need root: run it with sudo, or in a container started with --privileged"
    lacking = {package for tool, package in _TOOLS.items() if which(tool) is None}
    if lacking:
        return f"commands are missing: apt-get install {' '.join(sorted(lacking))}"
    return ""


def sweep() -> list[str]:
    """Remove what runs left that were killed before they could: namespaces and disks that name a process which is gone."""
    listed = _run("ip", "netns", "list").stdout + _MOUNTS.read_text(encoding="utf-8")
    names = {line.split()[0] for line in listed.splitlines()}
    left = []
    for found in filter(None, map(_OF_A_RUN.fullmatch, sorted(names))):
        if not Path("/proc", found[1]).exists():
            left.append(found[0])
            _remove(found[0])
            _run("umount", "--lazy", found[0])  # Its disk, mounted under its name.
    return left


class Network:
    """All of one run, from `__enter__` to `__exit__`, which ends what lives in its namespaces and removes them."""

    def __init__(self, run: str, *, rails: int) -> None:
        assert 1 <= rails <= RAILS_MAX, f"1 to {RAILS_MAX} interfaces a host"
        self.hub = f"tidemill-{run}-hub"
        self.rails = rails
        self._run = run
        self._made: list[str] = []

    def __enter__(self) -> Self:
        """Make the hub, where killed runs have left nothing. Raises NetworkError."""
        why = missing(user=os.geteuid())
        if why:
            raise NetworkError(why)
        sweep()
        try:
            self._make(self.hub)
            self._batch(self.hub, _hub_lines(self.rails))
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def add_host(self, number: int) -> None:
        """A host with all its cables plugged in. Raises NetworkError."""
        assert 0 <= number < HOSTS_MAX, f"at most {HOSTS_MAX} hosts"
        self._make(self.host(number))
        self._batch(self.hub, _port_lines(number, self.host(number), self.rails))
        self._batch(self.host(number), _host_lines(number, self.rails))

    def remove(self) -> None:
        """End what lives there, and take everything away; what is gone already is no error."""
        for name in reversed(self._made):
            _remove(name)
        self._made.clear()

    # --- names

    def host(self, number: int) -> str:
        """Its namespace."""
        return f"tidemill-{self._run}-n{number:04}"

    def inside(self, number: int) -> tuple[str, ...]:
        """What goes before a command so that it runs on that host: its interfaces, and /sys as the host sees them."""
        return ("ip", "netns", "exec", self.host(number))

    @property
    def nics(self) -> tuple[str, ...]:
        """The fabric's interfaces, on every host."""
        return tuple(f"ib{rail}" for rail in range(self.rails))

    @staticmethod
    def address(number: int, rail: int) -> str:
        """Of a host on one rail of the fabric."""
        return f"10.77.{rail + 1}.{number + 10}"

    def chosen(self, what: str) -> tuple[str, ...]:
        """Interfaces that a fault means: one by its name, `all`, or the first."""
        if what in {"", *self.nics}:
            return (what or self.nics[0],)
        if what != "all":
            raise NetworkError(f"no interface {what!r}: hosts have {', '.join(self.nics)}, or all")
        return self.nics

    # --- faults

    def link(self, number: int, nics: Iterable[str], *, up: bool) -> None:
        """Switch off the other end of these interfaces, or on again."""
        state = "up" if up else "down"
        ports = [f"link set {_port(number, nic)} {state}" for nic in nics]
        self._batch(self.hub, ports)

    def mtu(self, number: int, nics: Iterable[str], size: int) -> None:
        """The largest packet that these interfaces of a host take; the kernel drops a larger one there, and counts it."""
        self._batch(self.host(number), [f"link set {nic} mtu {size}" for nic in nics])

    def drop(self, number: int, nics: Iterable[str], way: str) -> None:
        """Lose what the host sends (`up`), what it is sent (`down`), or `both`; its links stay up."""
        for nic in nics:
            rules = [_rule(nic, each) for each in ("up", "down") if way in {each, "both"}]
            if not rules:
                raise NetworkError(f"no direction {way!r}: up, down or both")
            script = f"table inet {_table(nic)} {{\n{''.join(rules)}}}\n"
            _must("nft", "-f", "-", inside=self.inside(number), script=script)

    def pass_again(self, number: int, nics: Iterable[str]) -> None:
        """Lose no more."""
        for nic in nics:
            _must("nft", "delete", "table", "inet", _table(nic), inside=self.inside(number))

    # --- commands

    def _make(self, name: str) -> None:
        self._made.append(name)  # First: the next line may be interrupted when it is done.
        _must("ip", "netns", "add", name)

    @staticmethod
    def _batch(name: str, lines: Iterable[str]) -> None:
        _must("ip", "-n", name, "-batch", "-", script="\n".join(lines) + "\n")


def _hub_lines(rails: int) -> list[str]:
    bridges = ["ctl", *(f"rail{rail}" for rail in range(rails))]
    made = [f"link add {name} type bridge" for name in bridges]
    return [
        *made,
        f"address add {HUB_ADDRESS}/24 dev ctl",
        *[f"link set {name} up" for name in ("lo", *bridges)],
    ]


def _port_lines(number: int, namespace: str, rails: int) -> list[str]:
    lines = []
    for nic, bridge in [(CONTROL, "ctl"), *((f"ib{rail}", f"rail{rail}") for rail in range(rails))]:
        lines += [
            f"link add {_port(number, nic)} type veth peer name {nic} netns {namespace}",
            f"link set {_port(number, nic)} master {bridge} up",
        ]
    return lines


def _host_lines(number: int, rails: int) -> list[str]:
    control = [f"address add 10.77.0.{number + 10}/24 dev {CONTROL}"]
    fabric = [f"address add {Network.address(number, r)}/24 dev ib{r}" for r in range(rails)]
    devices = ("lo", CONTROL, *(f"ib{rail}" for rail in range(rails)))
    return [*control, *fabric, *[f"link set {name} up" for name in devices]]


def _port(number: int, nic: str) -> str:
    """The hub's end of a cable."""
    return f"n{number}{nic}"


def _table(nic: str) -> str:
    return f"cut_{nic}"


def _rule(nic: str, way: str) -> str:
    hook, side = ("output", "oifname") if way == "up" else ("input", "iifname")
    return f'chain {way} {{ type filter hook {hook} priority 0; {side} "{nic}" drop; }}\n'


def _remove(name: str) -> None:
    _end_all_in(name)
    _run("ip", "netns", "delete", name)


def _end_all_in(name: str) -> None:
    """SIGKILL to every process of a namespace of ours, until there is none."""
    ends = time.monotonic() + _END_WITHIN_S
    while time.monotonic() < ends:
        pids = _run("ip", "netns", "pids", name).stdout.split()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)


def _run(
    *command: str, inside: tuple[str, ...] = (), script: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*inside, *command],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_S,
    )


def _must(*command: str, inside: tuple[str, ...] = (), script: str = "") -> None:
    """Raises NetworkError with what the kernel said."""
    done = _run(*command, inside=inside, script=script)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
