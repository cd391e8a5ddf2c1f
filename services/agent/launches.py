"""What runs execute, by digest: fetched once, in memory while the run table names it.

Owns `<state>/launches`. What has a marker to watch is kept there too, so that an agent that adopts the run knows where
its checkpoints are without asking anyone. It is not synced: what a power cut loses, no run outlives.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from services.agent.link import GatewayError, Link
from services.agent.stream import FIRST_WAIT_S, LONGEST_WAIT_S, jittered
from tidemill.v1 import common_pb2

SHA256_BYTES: Final = 32
_NAME: Final = re.compile(r"[0-9a-f]{64}")

log = structlog.get_logger()


class Launches:
    """Those that are here, and the way to the others."""

    def __init__(self, directory: Path, link: Link) -> None:
        self._directory = directory
        self._link = link
        self._here: dict[str, common_pb2.Launch] = {}

    def __getitem__(self, digest: str) -> common_pb2.Launch:
        """One that was fetched and is still wanted."""
        return self._here[digest]

    async def fetch(self, digest: str) -> common_pb2.Launch:
        """However long it takes. Raises LaunchGoneError when it is gone for good."""
        wait_s = FIRST_WAIT_S
        while digest not in self._here:
            try:
                launch = await self._link.launch(digest)
            except GatewayError as error:
                log.warning("launch_not_fetched", error=str(error))
                await asyncio.sleep(jittered(wait_s))
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            else:
                if launch.HasField("marker"):
                    await asyncio.to_thread(self._keep, digest, launch)
                self._here[digest] = launch
        return self._here[digest]

    def kept(self, digest: str) -> common_pb2.Launch | None:
        """From disk; None when it is not there, or damaged."""
        if not _NAME.fullmatch(digest):
            return None
        with contextlib.suppress(OSError, DecodeError):
            stored = (self._directory / digest).read_bytes()
            body = stored[SHA256_BYTES:]
            if hashlib.sha256(body).digest() == stored[:SHA256_BYTES]:
                return common_pb2.Launch.FromString(body)
        return None

    def keep_only(self, wanted: Collection[str]) -> None:
        """No run needs the others any more."""
        self._here = {digest: kept for digest, kept in self._here.items() if digest in wanted}
        with contextlib.suppress(OSError):  # Nothing was ever kept.
            for path in self._directory.iterdir():
                if path.name not in wanted:
                    path.unlink()

    def _keep(self, digest: str, launch: common_pb2.Launch) -> None:
        body = launch.SerializeToString()
        path = self._directory / digest
        scratch = path.with_suffix(".new")
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            scratch.write_bytes(hashlib.sha256(body).digest() + body)
            scratch.replace(path)
        except OSError as error:  # It can be fetched again.
            log.warning("launch_not_kept", error=str(error), hint="make space")
