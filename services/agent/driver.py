"""The agent's shell: moves events to the core and carries out its actions, with asyncio, gRPC, threads and a disk.

It decides nothing. All that the core hears it hears on the event loop, one event at a time; what may block (the disk,
the start of processes, a kill) runs in threads and comes back as an event. A stream that ends is opened again after a
jittered, bounded wait, at the next gateway of the list. An exception that is not weather ends the agent: runs go on
under their supervisors, and the next agent takes them over.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from msgspec.structs import replace

from services.agent import messages as m
from services.agent import wire
from services.agent.aside import Aside
from services.agent.core import AgentCore
from services.agent.counters import Counters
from services.agent.environment import Surroundings, checkpoint_directory, environments
from services.agent.fencing import Now
from services.agent.inventory import probe
from services.agent.launches import Launches
from services.agent.link import LaunchGoneError, Link
from services.agent.links import Links
from services.agent.markers import UNREADABLE
from services.agent.monitor import Monitor
from services.agent.orders import Order
from services.agent.outbox import Saved
from services.agent.output import Readers
from services.agent.relay import relayed
from services.agent.runs import NEVER
from services.agent.store import StateStore
from services.agent.stream import Stream
from services.agent.table import LIVE, Ending
from services.agent.watches import Watches
from services.runtime.executor import Executor, Found, Launch, RunEnd, RunFiles, StartError
from services.runtime.ports import Clock, PortError
from statemachines.values import DeviceSpec, Evidence, RunId
from tidemill.v1 import common_pb2

T = TypeVar("T")
# Devices that no longer answer, and why.
Probe = Callable[[Sequence[DeviceSpec]], tuple[tuple[int, str], ...]]
STARTS_AT_ONCE: Final = 4
KILLS_AT_ONCE: Final = 2
ENDS_LOOK_S: Final = 1.0
# What users named is touched by threads that may hang: so many, so many of one job, and a start waits for them so long.
PATHS_AT_ONCE: Final = 64
PATHS_OF_A_JOB: Final = 4
PATHS_ANSWER_S: Final = 10.0
# Also without a due time the clocks are looked at this often: a suspended host does not move timers.
LOOK_MS: Final = 1_000

log = structlog.get_logger()


class Driver:
    """One agent of one node."""

    def __init__(
        self,
        core: AgentCore,
        *,
        store: StateStore,
        executor: Executor,
        files: RunFiles,
        link: Link,
        clock: Clock,
        around: Surroundings,
        links: Links,
        counters: Counters,
        probe: Probe = probe,
        paths: Aside | None = None,
        observe: Callable[[AgentCore], None] = lambda _core: None,
    ) -> None:
        self.core = core
        self._observe = observe
        self._look_at = probe
        self._quiet = asyncio.Event()
        self._store = store
        self._executor = executor
        self._files = files
        self._link = link
        self._clock = clock
        self._around = around
        self._launches = Launches(store.directory / "launches", link)
        self._advertised = around.gateway
        self._readers = Readers(files, self._lives)
        self._stream = Stream(link, readers=self._readers, hear=self._hear)
        self._monitor = Monitor(core, links, counters, clock=clock, send=self._stream.send)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = threading.Event()
        self._disk = ThreadPoolExecutor(1, "disk")
        self._starts = ThreadPoolExecutor(STARTS_AT_ONCE, "start")
        self._kills = ThreadPoolExecutor(KILLS_AT_ONCE, "kill")
        self._paths = paths or Aside(places=PATHS_AT_ONCE, places_each=PATHS_OF_A_JOB)
        self._watches = Watches(self._paths, found=self._saved, spawn=self._spawn)
        # A wedged driver answers nobody: one that hangs is enough.
        self._probes = Aside(places=1)

    # --- life

    async def run(self) -> None:
        """Adopt what lives, attach, and go on until cancelled. Raises what was not weather."""
        watcher = threading.Thread(target=self._watch_ends, name="ends", daemon=True)
        try:
            await self._adopt()
            watcher.start()
            self._spawn(self._stream.run())
            self._spawn(self._monitor.watch_links())
            self._spawn(self._monitor.watch_counters())
            await self._failed
        finally:
            await self._close(watcher)

    async def end_runs(self, within_s: float) -> None:
        """Kill everything of this node and wait until nothing lives, or the time is up."""
        self._quiet = asyncio.Event()
        self._feed(m.Quit())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), within_s)

    async def _close(self, watcher: threading.Thread) -> None:
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.close()
        for pool in (self._disk, self._starts, self._kills):
            pool.shutdown(wait=True, cancel_futures=True)
        if watcher.is_alive():
            await asyncio.to_thread(watcher.join)

    async def _adopt(self) -> None:
        """Find again what an earlier agent started; what no table knows waits for what the cell says of it."""
        strays = []
        for run, alive in self._files.kept().items():
            if run not in self.core.table:
                log.warning("unknown_run_found", run=run, alive=alive)
                if alive:
                    strays.append(run)
                else:
                    await self._forget(run)
        self._feed(m.Strays(tuple(strays)))
        for run in self.core.unadopted:
            found = await self._in(self._kills, self._executor.adopt, run)
            log.info("run_adopted", run=run, found=found)
            order = self.core.table[run].order
            looked = found is not Found.ABSENT and await self._watch_adopted(order)
            # Of those that ended the watcher will say how. A last look may take long: to attach does not wait for it.
            if found is not Found.ENDED or looked:
                self._feed(m.Adopted(run, alive=found is not Found.ABSENT))
        self._feed(m.Tick())

    # --- events in, actions out

    @staticmethod
    def read_clocks(clock: Clock) -> Now:
        """Both clocks that only grow, and the wall."""
        mono_ms = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
        return Now(mono_ms, clock.monotonic_ms(), clock.wall_ms())

    def _feed(self, event: m.Event) -> None:
        now = self.read_clocks(self._clock)
        for action in self.core.handle(event, now):
            self._perform(action)
        self._observe(self.core)
        if not self.core.live_runs:
            self._quiet.set()
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = min(self.core.due_ms(now), LOOK_MS if self.core.live_runs else NEVER)
        if wait_ms < NEVER:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_ms / 1000, self._feed, m.Tick())

    def _perform(self, action: m.Action) -> None:
        match action:
            case m.Persist():
                self._spawn(self._persist(action))
            case m.Renew():
                self._renew(action)
            case m.Fetch(digest=digest):
                self._spawn(self._fetch(digest))
            case m.Start(order=order):
                self._spawn(self._start(order))
            case m.Terminate(run=run):
                log.info("run_terminating", run=run)
                self._executor.terminate(run)
            case m.Kill(run=run):
                self._spawn(self._kill(run))
            case m.Probe(run=run, devices=devices):
                self._spawn(self._probe(run, frozenset(devices)))
            case m.Ask():
                self._ask(action)
            case m.Forget(run=run):
                self._spawn(self._forget(run))
            case m.Reconnect(reason=reason):
                log.info("reconnecting", reason=reason)
                self._stream.drop(reason)
            case _:
                self._stream.send(wire.request(self.core.node, action))

    def _renew(self, action: m.Renew) -> None:
        stamp = action.stamp
        try:
            self._files.renew(stamp.mono_ms, stamp.boot_ms, stamp.sequence)
        except OSError as error:
            log.error(  # noqa: TRY400 - weather
                "renewal_not_written",
                error=str(error),
                hint="make space, or supervisors fence runs",
            )

    async def _persist(self, action: m.Persist) -> None:
        try:
            await self._in(self._disk, self._store.save, action.state)
        except PortError as error:
            log.error("state_not_stored", error=str(error))  # noqa: TRY400 - weather
            self._feed(m.PersistFailed(action.version))
        else:
            self._feed(m.Persisted(action.version))

    async def _fetch(self, digest: str) -> None:
        """Until it is here or gone for good; meanwhile the order may be withdrawn, which costs one fetch."""
        self._launches.keep_only({entry.order.launch for entry in self.core.table.values()})
        try:
            await self._launches.fetch(digest)
        except LaunchGoneError as error:
            self._feed(m.LaunchMissing(digest, str(error)))
        else:
            self._feed(m.LaunchReady(digest))

    async def _start(self, order: Order) -> None:
        found = await self._in(self._starts, self._executor.adopt, order.run)
        if found is not Found.ABSENT:  # Started by an agent whose table was lost: once is enough.
            log.warning("run_adopted", run=order.run, found=found)
            await self._watch_adopted(order)
            if found is Found.ALIVE:
                self._feed(m.Started(order.run))
            return
        asked = self._launches[order.launch]
        try:
            launch = await self._paths.call(
                partial(self._prepare, order, asked),
                what="the directory for checkpoints",
                within_s=PATHS_ANSWER_S,
                owner=order.job,
            )
            await self._watches.begin(order, asked, self._around)
            await self._in(self._starts, self._executor.start, launch)
        except (StartError, *UNREADABLE) as error:
            # Nothing of it lives. A user named the paths: one that cannot be costs the run, not the agent.
            self._watches.drop(order.run)
            log.warning("run_not_started", run=order.run, error=str(error))
            self._feed(m.Ended(order.run, Ending(Evidence.NEVER_STARTED, message=str(error))))
            return
        log.info("run_started", run=order.run, job=order.job, attempt=order.attempt)
        self._ask(m.Ask(order.run, *order.ask))
        self._feed(m.Started(order.run))

    def _prepare(self, order: Order, launch: common_pb2.Launch) -> Launch:
        root = launch.checkpoint_root
        directory = Path(checkpoint_directory(order, root or self._around.checkpoint_root))
        with contextlib.suppress(OSError):  # The program will say what it cannot do there.
            directory.mkdir(parents=True, exist_ok=True)
        return Launch(
            run=order.run,
            argv=tuple(launch.argv),
            environments=environments(order, self._around, job=launch.env, checkpoint_root=root),
            workdir=launch.workdir,
            script=launch.script,
            cpu_milli=order.cpu_milli,
            memory_mib=order.memory_mib,
            grace_ms=order.grace_ms,
            fence_after_ms=order.fenced_after_ms,
        )

    async def _kill(self, run: RunId) -> None:
        log.info("run_killing", run=run)
        found = await self._in(self._kills, self._executor.adopt, run)
        if await self._in(self._kills, self._executor.kill, run):
            if found is Found.ABSENT:  # Else the watcher says how it ended.
                self._feed(m.Reaped(run))
        else:
            log.warning(
                "run_still_alive", run=run, hint="it is killed again; look for state D in ps"
            )

    async def _probe(self, run: RunId, indices: frozenset[int]) -> None:
        devices = [dev for dev in self._around.inventory.devices if dev.index in indices]
        try:
            failures = await self._probes.call(
                partial(self._look_at, devices),
                what="the device driver",
                within_s=self.core.settings.probe_ms / 1000,
            )
        except TimeoutError as error:
            failures = tuple((device.index, str(error)) for device in devices)
        self._feed(m.Probed(run, failures))

    def _ask(self, action: m.Ask) -> None:
        try:
            self._files.ask(action.run, action.ask, action.at_step, stop_after=action.stop_after)
        except OSError as error:
            log.error("ask_not_written", run=action.run, error=str(error))  # noqa: TRY400 - weather

    async def _forget(self, run: RunId) -> None:
        await self._in(self._disk, self._files.forget, run)

    # --- ends

    def _watch_ends(self) -> None:
        """In a thread of its own, for as long as the agent lives."""
        loop = self._failed.get_loop()
        try:
            while not self._stopping.is_set():
                for end in self._executor.ends(ENDS_LOOK_S):
                    loop.call_soon_threadsafe(self._spawn_ended, end)
        except Exception as error:  # noqa: BLE001 - handed to the loop, which ends the agent
            loop.call_soon_threadsafe(self._fail, error)

    def _spawn_ended(self, end: RunEnd) -> None:
        self._spawn(self._ended(end))

    async def _ended(self, end: RunEnd) -> None:
        await self._watches.end(
            end.run
        )  # What was saved just before the end is told before the end.
        log.info(
            "run_ended",
            run=end.run,
            evidence=end.evidence,
            exit_code=end.exit_code,
            signal=end.signal,
        )
        ending = Ending(end.evidence, end.exit_code, end.signal, end.message)
        entry = self.core.table.get(end.run)
        for report in relayed(entry.order, end.left) if entry is not None else ():
            self._feed(m.Observed(report))
        self._feed(m.Ended(end.run, ending))

    # --- checkpoints of programs without the SDK

    async def _watch_adopted(self, order: Order) -> bool:
        """Go on where an earlier agent left off; whether there is something to look at. Not kept: when it is fetched."""
        launch = await self._in(self._disk, self._launches.kept, order.launch)
        if launch is None and order.rank == 0:
            self._spawn(self._watch_late(order))
        return launch is not None and self._watches.resume(order, launch, self._around)

    async def _watch_late(self, order: Order) -> None:
        with contextlib.suppress(LaunchGoneError):
            launch = await self._launches.fetch(order.launch)
            if self._lives(order.run):
                self._watches.resume(order, launch, self._around)

    def _saved(self, saved: Saved) -> None:
        log.info("checkpoint_found", job=saved.job, step=saved.step, uri=saved.uri)
        self._feed(m.Observed(saved))

    # --- what the stream says

    def _hear(self, event: m.Connected | m.Disconnected | wire.Heard) -> None:
        match event:
            case m.Welcomed(cell=cell):
                log.info("attached", gateway=self._link.address, cell=cell)
                gateway = self._advertised or self._link.url
                self._around = replace(self._around, cell=cell, gateway=gateway)
                self._monitor.say_again()
            case m.Refused():
                log.warning("refused", code=event.code, message=event.message)
            case _:
                pass
        self._feed(event)

    def _lives(self, run: RunId) -> bool:
        entry = self.core.table.get(run)
        return entry is not None and entry.phase in LIVE

    # --- tasks and threads

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, call, *args)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if (
                not self._stopping.is_set()
            ):  # A library's doing: the work would be lost without a word.
                self._fail(RuntimeError(f"{task.get_coro()} was cancelled, and not by the agent"))
        elif (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
