"""Reading what a run printed: the tail, the rest, and what comes while it lives. It never opens a path of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import BinaryIO, Final

from services.runtime.executor import RunFiles
from statemachines.values import RunId
from tidemill.v1 import node_service_pb2 as pb

CHUNK_BYTES: Final = 64 << 10
LOOK_AGAIN_S: Final = 0.2
CHUNKS_AHEAD: Final = 8
READERS_MAX: Final = 64


async def read_output(
    files: RunFiles,
    run: RunId,
    *,
    tail_bytes: int,
    follow: bool,
    lives: Callable[[], bool],
    look_again_s: float = LOOK_AGAIN_S,
) -> AsyncGenerator[bytes, None]:
    """Output of `run` from `tail_bytes` before its end (0: all that is kept), in chunks.

    With `follow` it goes on until the run has ended. Raises FileNotFoundError when nothing is kept.
    """
    opened = list(files.output(run))
    try:
        _skip(opened, tail_bytes)
        for file in opened:
            for chunk in _rest(file):
                yield chunk
        while follow:
            last = not lives()
            for chunk in _grown(files, run, opened):
                yield chunk
            if last:
                break
            await asyncio.sleep(look_again_s)
    finally:
        for file in opened:
            file.close()


def _skip(opened: list[BinaryIO], tail_bytes: int) -> None:
    """Move to where the tail begins, which may be in the older file."""
    sizes = [os.fstat(file.fileno()).st_size for file in opened]
    skip = sum(sizes) - tail_bytes if tail_bytes > 0 else 0
    for file, size in zip(opened, sizes, strict=True):
        here = min(max(skip, 0), size)
        file.seek(here)
        skip -= here


def _rest(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _grown(files: RunFiles, run: RunId, opened: list[BinaryIO]) -> Iterator[bytes]:
    """What was appended, and what is in newer files when the ring has turned meanwhile; only the newest stays open."""
    yield from _rest(opened[-1])
    current = files.output(run)
    last = os.fstat(opened[-1].fileno())
    known = [os.path.samestat(os.fstat(file.fileno()), last) for file in current]
    read = known.index(True) + 1 if any(known) else 0
    for file in current[:read]:
        file.close()
    if newer := current[read:]:
        opened += newer
        for file in opened[
            -len(newer) - 1 :
        ]:  # The first: what came between our last read and the turn.
            yield from _rest(file)
        for file in opened[:-1]:
            file.close()
        del opened[:-1]


class Readers:
    """Reads that gateways asked for on the open stream. Few chunks wait at a time, so a slow stream slows the reading."""

    def __init__(self, files: RunFiles, lives: Callable[[RunId], bool]) -> None:
        self._files = files
        self._lives = lives
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(CHUNKS_AHEAD)

    def take(self, asked: pb.LogRead, send: Callable[[pb.AttachRequest], None]) -> None:
        """Begin to read, or stop."""
        if asked.cancel:
            task = self._tasks.pop(asked.call, None)
            if task is not None:
                task.cancel()
        elif len(self._tasks) >= READERS_MAX:
            send(_chunk(asked.call, error=f"{READERS_MAX} readers already; try again later"))
        else:
            task = asyncio.get_running_loop().create_task(self._read(asked, send))
            self._tasks[asked.call] = task

    def sent(self) -> None:
        """A chunk has left."""
        self._room.release()

    async def close(self) -> None:
        """The stream is gone."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._room = asyncio.Semaphore(CHUNKS_AHEAD)

    async def _read(self, asked: pb.LogRead, send: Callable[[pb.AttachRequest], None]) -> None:
        run = RunId(asked.run)
        error = ""
        try:
            chunks = read_output(
                self._files,
                run,
                tail_bytes=asked.tail_bytes,
                follow=asked.follow,
                lives=lambda: self._lives(run),
            )
            async with contextlib.aclosing(
                chunks
            ):  # Its files are closed also when we are cancelled.
                async for chunk in chunks:
                    await self._room.acquire()
                    send(_chunk(asked.call, data=chunk))
        except (OSError, ValueError) as problem:
            error = str(problem)
        await self._room.acquire()
        send(_chunk(asked.call, end=True, error=error))
        self._tasks.pop(asked.call, None)


def _chunk(call: str, *, data: bytes = b"", end: bool = False, error: str = "") -> pb.AttachRequest:
    return pb.AttachRequest(log_chunk=pb.LogChunk(call=call, data=data, end=end, error=error))
