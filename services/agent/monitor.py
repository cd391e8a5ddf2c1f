"""The agent's own look at its interfaces: links each second, counters each five. Judges no link and no counter.

Told while attached, and the whole again after each attach: telemetry, which may be lost. What drivers count is read in a
thread, for one that is wedged hangs; nothing is told of counters then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from services.agent import wire
from services.agent.aside import Aside
from services.agent.core import AgentCore
from services.agent.counters import Counters
from services.agent.links import Links
from services.runtime.ports import Clock
from tidemill.v1 import node_service_pb2 as pb

LINKS_EVERY_S: Final = 1.0
COUNTERS_EVERY_S: Final = 5.0

log = structlog.get_logger()


class Monitor:
    """Of one agent; `send` takes what is to be told."""

    def __init__(
        self,
        core: AgentCore,
        links: Links,
        counters: Counters,
        *,
        clock: Clock,
        send: Callable[[pb.AttachRequest], None],
    ) -> None:
        self._core, self._clock, self._send = core, clock, send
        self._links, self._counters = links, counters
        self._aside = Aside(places=1)

    def say_again(self) -> None:
        """A gateway that heard nothing yet."""
        self._links.say_again()
        self._counters.say_again()

    async def watch_links(self) -> None:
        """For as long as the agent lives."""
        core = self._core
        while True:
            await asyncio.sleep(LINKS_EVERY_S)
            if core.attached:
                at_ms = self._clock.wall_ms()
                for change in self._links.look():
                    log.info("link", nic=change.nic, up=change.up, changes=change.changes)
                    self._send(wire.link_signal(core.node, core.incarnation, at_ms, change))

    async def watch_counters(self) -> None:
        """For as long as the agent lives."""
        core, answers = self._core, True
        while True:
            await asyncio.sleep(COUNTERS_EVERY_S)
            if not core.attached:
                continue
            try:
                readings = await self._aside.call(
                    self._counters.read, what="the interfaces' driver", within_s=COUNTERS_EVERY_S
                )
            except TimeoutError as error:
                if answers:
                    log.warning("counters_not_read", error=str(error))
                answers = False
                continue
            answers, at_ms = True, self._clock.wall_ms()
            for crossing in self._counters.judge(readings, self._clock.monotonic_ms()):
                log.info("counter", nic=crossing.nic, code=crossing.code, message=crossing.message)
                self._send(wire.counter_signal(core.node, core.incarnation, at_ms, crossing))
