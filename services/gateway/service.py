"""`tidemilld gateway`: the only door to a cell: gRPC for submitters, agents and trainers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from importlib.metadata import version
from pathlib import Path
from typing import Final

import grpc

from services.gateway.core import GatewayCore
from services.gateway.credentials import TokensFile
from services.gateway.driver import Driver
from services.gateway.gate import Gate
from services.gateway.lookback import Lookback
from services.gateway.metrics import Metrics
from services.gateway.refusal import Refusal, Status
from services.gateway.server import Server, is_loopback
from services.gateway.settings import GatewaySettings
from services.runtime import topics
from services.runtime.ports import PortError
from services.runtime.recovery import recover
from services.runtime.settings import SettingsError, load
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry, parse_address
from services.runtime.tokens import CellKeys, TokensError, prepare_keys, read_key
from services.runtime.wiring import Cell, open_cell

ADDRESS_FILE: Final = "gateway.addr"
_DRAINING: Final = Refusal(
    Status.UNAVAILABLE,
    "gateway_draining",
    "this gateway is going down; call another, or again in a moment",
    retry_after_ms=1_000,
)


def main(argv: Sequence[str]) -> int:
    """Serve until asked to end; answers the exit code."""
    # Entities are no work for the collector of cycles: look less often.
    gc.set_threshold(50_000, 20, 50)
    settings = load(GatewaySettings, "gateway", argv, summary=__doc__ or "")
    shutdown = Shutdown()
    shutdown.install()
    check_listen(settings)
    telemetry = Telemetry(settings, "gateway")
    with closing(telemetry), closing(open_cell(settings, "gateway")) as cell:
        asyncio.run(Service(settings, telemetry, cell).run(shutdown))
    return 0


def check_listen(settings: GatewaySettings) -> None:
    """Raises SettingsError when strangers could reach us without keys of an operator's choice, or read tokens."""
    parse_address(settings.listen, "listen")
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise SettingsError("settings tls_certificate and tls_key belong together: give both")
    if is_loopback(settings.listen):
        return
    if not (settings.tokens and settings.key):
        raise SettingsError(
            f"setting listen: {settings.listen} can be reached from elsewhere: give --tokens and --key, "
            "or listen on 127.0.0.1"
        )
    if not (settings.tls_certificate or settings.allow_plaintext):
        raise SettingsError(
            f"setting listen: on {settings.listen} tokens would travel in clear text: give --tls-certificate and "
            "--tls-key, or --allow-plaintext where something else encrypts"
        )


class Service:
    """Wires one gateway and runs it."""

    def __init__(self, settings: GatewaySettings, telemetry: Telemetry, cell: Cell) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._cell = cell
        self._log = telemetry.log
        self._draining = False

    async def run(self, shutdown: Shutdown) -> None:
        """Until asked to end; raises what ended it otherwise."""
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = loop.create_future()

        def asked() -> None:
            loop.call_soon_threadsafe(self._asked)

        shutdown.on_ask(asked)
        async with AsyncExitStack() as stack:
            keys = self._keys()
            tokens = self._tokens(keys)
            blobs = stack.enter_context(closing(self._cell.blobs()))
            metrics = Metrics(self._telemetry.registry)
            driver = self._driver(stack, keys, metrics)
            gate = Gate(
                tokens.grantees,
                cell_key=keys.cell_key,
                mono_ms=self._cell.clock.monotonic_ms,
                counted=metrics.called,
                refuse_all=lambda: _DRAINING if self._draining else None,
            )
            lookback = Lookback(self._cell)
            server = Server(driver, blobs, gate, lookback, credentials=self._credentials())
            driver.start()
            stack.push_async_callback(driver.stop)
            if self._settings.outside_accounts:
                self._read_outside(stack, driver, keys, metrics)
            port = await server.start(self._settings.listen)
            stack.push_async_callback(self._drain, driver, server)
            await self._say_ready(stack, driver, server, port)
            await self._end

    def _keys(self) -> CellKeys:
        settings = self._settings
        try:
            if settings.tokens and settings.key:
                tokens, key = Path(settings.tokens), Path(settings.key)
                return CellKeys(read_key(key), tokens, Path(), Path())
            keys = prepare_keys(settings.home)
            tokens = Path(settings.tokens) if settings.tokens else keys.tokens
            cell_key = read_key(Path(settings.key)) if settings.key else keys.cell_key
        except TokensError as error:
            raise SettingsError(str(error)) from error
        return CellKeys(cell_key, tokens, keys.admin_token, keys.node_token)

    def _tokens(self, keys: CellKeys) -> TokensFile:
        try:
            return TokensFile(keys.tokens, self._cell.clock, troubled=self._tokens_troubled)
        except TokensError as error:
            raise SettingsError(str(error)) from error

    def _driver(self, stack: AsyncExitStack, keys: CellKeys, metrics: Metrics) -> Driver:
        """Recover the state, and the driver over it. Raises PortError, UnknownFactError."""
        log, snapshots = self._cell.event_log(), self._cell.snapshots()
        publisher = stack.enter_context(closing(self._cell.publisher()))
        with closing(snapshots), closing(self._cell.inputs(())) as inputs:
            found = recover(log, snapshots, self._settings.cell, track=True)
            beat_partitions = inputs.partitions(topics.BEATS.suffix)
        for why in found.passed_over:
            self._log.warning("snapshot_passed_over", why=why)
        self._log.info(
            "recovered",
            offset=found.cluster.offset,
            term=found.cluster.term,
            snapshot_offset=found.snapshot_offset,
            records=found.records,
        )
        core = GatewayCore(
            found.cluster,
            name=self._settings.name or socket.gethostname(),
            cell_key=keys.cell_key,
            new_id=lambda: uuid.uuid4().hex,
            beat_partitions=beat_partitions,
            version=version("tidemill-server"),
        )
        driver = Driver(
            core,
            log=log,
            publisher=publisher,
            telemetry=stack.enter_context(closing(self._cell.publisher())),
            blobs=stack.enter_context(closing(self._cell.blobs())),
            clock=self._cell.clock,
            failed=self._failed,
            troubled=self._log_troubled,
            measured=metrics.wrote,
        )
        metrics.watch(driver)
        return driver

    def _read_outside(
        self, stack: AsyncExitStack, driver: Driver, keys: CellKeys, metrics: Metrics
    ) -> None:
        """Take what programs write to the outside topic by themselves, until the stack ends."""
        from services.gateway.outside import Outside  # Few cells allow it.

        def told(result: str, about: str) -> None:
            metrics.outside(result)
            say = self._log.info if result == "taken" else self._log.warning
            say("outside_record", result=result, about=about)

        inputs = stack.enter_context(closing(self._cell.inputs((topics.OUTSIDE.suffix,))))
        outside = Outside(
            driver, inputs, self._cell.clock, accounts=self._settings.outside_accounts, cell_key=keys.cell_key, told=told
        )  # fmt: skip
        reading = asyncio.create_task(outside.run())
        reading.add_done_callback(self._outside_ended)
        stack.callback(reading.cancel)

    def _outside_ended(self, reading: asyncio.Task[None]) -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            self._failed(error)

    def _credentials(self) -> grpc.ServerCredentials | None:
        settings = self._settings
        if not settings.tls_certificate:
            return None
        try:
            pair = (
                Path(settings.tls_key).read_bytes(),
                Path(settings.tls_certificate).read_bytes(),
            )
        except OSError as error:
            raise SettingsError(f"settings tls_certificate, tls_key: {error}") from error
        return grpc.ssl_server_credentials([pair])

    async def _say_ready(
        self, stack: AsyncExitStack, driver: Driver, server: Server, port: int
    ) -> None:
        """Once the log has been read to its end: probes, the monitor and the address file say where we are."""
        self._telemetry.health.wait("log", "the log has not been read to its end yet")
        self._telemetry.health.ready()
        caught_up = asyncio.create_task(driver.caught_up.wait())
        self._end.add_done_callback(lambda _: caught_up.cancel())
        await asyncio.wait([caught_up])
        if caught_up.cancelled():
            return
        await server.ready()
        self._telemetry.health.ready("log")
        host, _ = parse_address(self._settings.listen, "listen")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        path = self._settings.home / ADDRESS_FILE
        write_address(path, address)
        stack.callback(forget_address, path, address)
        self._log.info("gateway_listens", address=address)

    async def _drain(self, driver: Driver, server: Server) -> None:
        """New calls are sent away, streams are ended, others may end within the time for it; after a failure at once."""
        self._draining = True
        self._telemetry.health.wait("drain", "going down")
        driver.cut_streams(_DRAINING)
        failed = self._end.done() and not self._end.cancelled() and self._end.exception()
        await server.stop(0 if failed else self._settings.drain_s)

    def _asked(self) -> None:
        if not self._end.done():
            self._end.set_result(None)

    def _failed(self, error: BaseException) -> None:
        self._telemetry.health.fail(str(error))
        if not self._end.done():
            self._end.set_exception(error)

    def _log_troubled(self, error: PortError) -> None:
        self._log.warning("log_unreadable", error=str(error))

    def _tokens_troubled(self, message: str) -> None:
        self._log.error("tokens_unusable", error=message, kept="the tokens read before")


def write_address(path: Path, address: str) -> None:
    """Whoever finds the file finds a whole address."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(address + "\n")
    scratch.replace(path)


def forget_address(path: Path, address: str) -> None:
    """Nobody is to look for us there any more; the address of another gateway stays."""
    with contextlib.suppress(OSError):  # Gone already, or not ours to remove.
        if path.read_text().strip() == address:
            path.unlink()
