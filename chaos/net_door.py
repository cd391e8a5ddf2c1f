"""A door between namespaces: listens in one, and hands each connection on to an address of this process' own.

A socket belongs to the namespace it was made in, so the gateway stays on loopback, and hosts that have no way out reach
it all the same. It passes bytes and ends of streams, and judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chaos.net import NetworkError

_NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET
_NAMESPACES: Final = Path("/run/netns")
_CHUNK: Final = 1 << 16
_END_WITHIN_S: Final = 10.0


class Door:
    """Open from its making to `close`. `target` is asked at each connection: a gateway may come back elsewhere."""

    def __init__(self, namespace: str, host: str, target: Callable[[], tuple[str, int]]) -> None:
        """Raises NetworkError."""
        self._target = target
        self._socket = _listen_in(namespace, host)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Break every connection."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_END_WITHIN_S)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass, sock=self._socket)
        await self._closing.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as closing:
            closing.callback(writer.close)
            try:
                there_reader, there_writer = await asyncio.open_connection(*self._target())
            except OSError:  # A gateway that is away: the host sees a door that closes.
                return
            closing.callback(there_writer.close)
            await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until that direction has ended; what is broken is broken both ways."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


def _listen_in(namespace: str, host: str) -> socket.socket:
    """In a thread that enters the namespace, and ends there: it cannot be used for anything else."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            handle = os.open(_NAMESPACES / namespace, os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(handle, _NEW_NETWORK):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(handle)
            made.append(socket.create_server((host, 0)))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make, name="namespace")
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise NetworkError(f"no door at {host} in {namespace}: {made[0]}") from made[0]
    return made[0]
