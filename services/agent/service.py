"""`tidemilld agent`: runs what the cell decided for this node, and says how it went.

SIGTERM and SIGINT end the agent; its runs go on under their supervisors until the next agent, unless --end-runs is
given. This file puts the parts together and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from services.agent.core import AgentCore
from services.agent.counters import Counters, Table, parse
from services.agent.driver import Driver
from services.agent.environment import Surroundings, host_environment
from services.agent.inventory import Overrides, take
from services.agent.link import Link
from services.agent.links import Links
from services.agent.metrics import AgentMetrics
from services.agent.store import StateStore
from services.agent.table import AgentState
from services.agent.wiring import make_clock, make_executor, process_settings
from services.runtime.exits import ExitCode
from services.runtime.ports import PortError
from services.runtime.settings import CellSettings, SettingsError, load, table
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.tokens import KEYS_DIRECTORY, NODE_TOKEN_FILE
from statemachines.values import Inventory

ADDRESS_FILE: Final = "gateway.addr"
END_RUNS_S: Final = 20.0
CPU_MILLI_MAX: Final = 67_108_864


class AgentServiceSettings(CellSettings, frozen=True, kw_only=True):
    """What an agent is told."""

    gateway: Annotated[
        tuple[str, ...],
        Meta(
            description="Gateways, HOST:PORT, tried in order; none: the one that the cell's directory names"
        ),
    ] = ()
    token_file: Annotated[
        str, Meta(description="File with the node token; empty: the cell's own, if it has one")
    ] = ""
    ca: Annotated[
        str, Meta(description="File with the CA certificates to trust; empty: no TLS")
    ] = ""
    node: Annotated[
        str,
        Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,252})?$",
            description="Name of this node; empty: the host's name",
        ),
    ] = ""
    address: Annotated[
        str,
        Meta(
            max_length=255,
            description="Where other nodes reach this one; empty: the address that faces the gateway",
        ),
    ] = ""
    state: Annotated[
        str,
        Meta(
            description="State directory, of this agent alone; keep its path while runs live. "
            "Empty: agents/<node> in the cell's directory"
        ),
    ] = ""
    fake_gpus: Annotated[
        tuple[str, ...],
        Meta(
            description="Simulated devices to declare instead of real ones, such as 8xH100,4xA100"
        ),
    ] = ()
    cpu: Annotated[
        float,
        Meta(ge=0, le=CPU_MILLI_MAX / 1000, description="CPUs to offer; 0: what this host has"),
    ] = 0.0
    memory: Annotated[
        int,
        Meta(ge=0, le=1 << 30, description="Memory to offer, in MiB; 0: what this host has"),
    ] = 0
    labels: Annotated[tuple[str, ...], Meta(description="Labels of this node, NAME=VALUE")] = ()
    nics: Annotated[
        tuple[str, ...],
        Meta(description="Network interfaces to offer and watch; none: those with hardware"),
    ] = ()
    counters_file: Annotated[
        str,
        Meta(description="Table of the interfaces' counters, TOML; empty: the one that is shipped"),
    ] = ""
    job_gateway: Annotated[
        str,
        Meta(
            description="Gateway that trainers are told, tls://HOST:PORT where it speaks TLS; "
            "empty: the one that the agent uses"
        ),
    ] = ""
    checkpoint_root: Annotated[
        str,
        Meta(
            description="Where jobs that name no place put checkpoints; empty: checkpoints in the cell's directory"
        ),
    ] = ""
    checkpoint_reach: Annotated[
        Literal["auto", "node", "domain", "cell", "everywhere"],
        Meta(
            description="What can load checkpoints from there; auto: cell in an embedded cell, which is one "
            "machine, else node"
        ),
    ] = "auto"
    run_log_mib: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Output kept of each run, in MiB")
    ] = 64
    run_processes_max: Annotated[
        int, Meta(ge=16, le=4_194_304, description="Processes and threads that one run may have")
    ] = 16_384
    ended_runs_kept: Annotated[
        int, Meta(ge=1, le=100_000, description="Ended runs whose output is kept")
    ] = 200
    end_runs: Annotated[bool, Meta(description="Kill all runs when the agent is asked to end")] = (
        False
    )


def main(argv: Sequence[str]) -> int:
    """Run an agent until it is asked to end; the exit code. Raises SettingsError, PortError, OSError."""
    settings = load(AgentServiceSettings, "agent", argv, summary=(__doc__ or "").split("\n")[0])
    shutdown = Shutdown()
    shutdown.install()
    telemetry = Telemetry(settings, "agent")
    node = settings.node or socket.gethostname()
    home = Path(settings.state).expanduser() if settings.state else settings.home / "agents" / node
    try:
        asyncio.run(_serve(settings, node, home.absolute(), telemetry, shutdown))
    finally:
        telemetry.close()
    return ExitCode.STOPPED


async def _serve(
    settings: AgentServiceSettings, node: str, home: Path, telemetry: Telemetry, shutdown: Shutdown
) -> None:
    with contextlib.ExitStack() as held:
        store = StateStore(home)
        held.callback(store.close)
        executor = make_executor(
            store.directory,
            process_settings(
                log_mib=settings.run_log_mib,
                processes_max=settings.run_processes_max,
                ended_runs_kept=settings.ended_runs_kept,
            ),
        )
        held.callback(executor.close)
        link = Link(_addresses(settings), token=_token(settings), ca=settings.ca)
        inventory = _inventory(settings, link.address)
        driver = Driver(
            _core(node, store, inventory),
            store=store,
            executor=executor,
            files=executor,
            link=link,
            clock=make_clock(),
            around=_surroundings(settings, node, inventory),
            links=Links(nic.name for nic in inventory.nics if nic.kind != "loopback"),
            counters=Counters(load_table(settings), inventory.nics),
            observe=AgentMetrics(telemetry).observe,
        )
        telemetry.log.info(
            "agent_starts", node=node, state=str(store.directory), devices=len(inventory.devices)
        )
        await _until_asked(driver, shutdown, end_runs=settings.end_runs)


async def _until_asked(driver: Driver, shutdown: Shutdown, *, end_runs: bool) -> None:
    """Run the driver until it fails, which is raised, or until the process is asked to end."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(asked.set)

    shutdown.on_ask(wake)
    running = asyncio.ensure_future(driver.run())
    waiting = asyncio.ensure_future(asked.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if end_runs and not running.done():
        await driver.end_runs(END_RUNS_S)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def _core(node: str, store: StateStore, inventory: Inventory) -> AgentCore:
    """Go on from the stored state; a state of another node is not ours to go on from."""
    stored = store.load()
    if stored is not None and stored.node != node:
        raise SettingsError(
            f"{store.directory} holds the state of node {stored.node}, not of {node}: "
            "give this agent its own --state directory"
        )
    now = Driver.read_clocks(make_clock())
    same_boot = stored is not None and stored.boot_id == inventory.boot_id
    return AgentCore(
        stored or AgentState(node=node, boot_id=inventory.boot_id),
        inventory=inventory,
        now=now,
        renewed=store.renewed() if same_boot else None,
    )


def _addresses(settings: AgentServiceSettings) -> Callable[[], Sequence[str]]:
    """Gateways as configured, or as the cell's directory names them now."""
    if settings.gateway:
        return lambda: settings.gateway
    path = settings.home / ADDRESS_FILE

    def look() -> Sequence[str]:
        try:
            return [path.read_text().strip()]
        except OSError as error:
            raise PortError(
                f"no gateway: {path} cannot be read ({error.strerror}); start the cell, or give --gateway"
            ) from error

    return look


def _token(settings: AgentServiceSettings) -> str:
    path = Path(settings.token_file) if settings.token_file else None
    own = settings.home / KEYS_DIRECTORY / NODE_TOKEN_FILE
    if path is None and not own.exists():
        return ""
    try:
        return (path or own).read_text().strip()
    except OSError as error:
        raise SettingsError(f"token_file: cannot read {path or own}: {error.strerror}") from error


def _inventory(settings: AgentServiceSettings, gateway: str) -> Inventory:
    labels = [text.partition("=") for text in settings.labels]
    for name, equals, _ in labels:
        if not (name and equals):
            raise SettingsError(f"labels: {name!r} is not NAME=VALUE")
    overrides = Overrides(
        address=settings.address,
        cpu_milli=round(settings.cpu * 1000),
        memory_mib=settings.memory,
        fake_gpus=settings.fake_gpus,
        labels=tuple((name, value) for name, _, value in labels),
        nics=settings.nics,
    )
    try:
        return take(overrides, gateway_host=urlsplit(f"//{gateway}").hostname or gateway)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def load_table(settings: AgentServiceSettings) -> Table:
    """What is told of counters. Raises SettingsError."""
    file = settings.counters_file
    return table("counters_file", file, parse, package="services.agent", shipped="counters.toml")


def _surroundings(settings: AgentServiceSettings, node: str, inventory: Inventory) -> Surroundings:
    reach = settings.checkpoint_reach
    if reach == "auto":
        reach = "cell" if settings.log == "embedded" else "node"
    root = settings.checkpoint_root or str(settings.home / "checkpoints")
    return Surroundings(
        cell=settings.cell,
        node=node,
        gateway=settings.job_gateway,
        inventory=inventory,
        checkpoint_root=root,
        checkpoint_reach=reach,
        host=host_environment(os.environ),
        ca=str(Path(settings.ca).absolute()) if settings.ca else "",
    )
