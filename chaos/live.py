"""`python -m chaos live SCENARIO`: the same scenario on live processes, judged by what the log says afterwards.

Puts up a cell of its own, strikes it at the scenario's times, waits until every job has ended, then folds the stored
log with every check of every step. Ends and removes only what it made, also after Ctrl-C. On the stack in containers,
which is somebody's, the log is judged from where the scenario began.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec
from msgspec.structs import replace

from chaos import report, scenarios
from chaos.live_acts import ACTS
from chaos.live_scene import Cell, Scene
from chaos.live_stage import STACKS, obstacle, stack_of, staged
from chaos.net import NetworkError
from compose.local.stack import StackError
from services.runtime.reader import decode
from services.runtime.trial import TrialError
from services.runtime.wiring import open_cell
from simulation.faults import Fault
from simulation.history import History
from simulation.referee import Event, event_of
from simulation.scenario import Check, Scenario, Setup, Work
from simulation.world import Verdict
from statemachines import invariants
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.job import ENDED
from statemachines.node import NodeState
from statemachines.watcher import Watcher
from tidemill import Client, TidemillError
from tidemill.jobfile import job_request
from tidemill.v1 import job_service_pb2

_END_WITHIN_S: Final = 240.0
_LOOK_S: Final = 0.1
# What is left out of the timeline that is printed: there is too much of it.
_QUIET: Final = frozenset({"CheckpointSaved", "RunEnded", "final"})


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `live`."""
    parser.add_argument("scenario")
    parser.add_argument(
        "--stack", choices=STACKS, help="default: local where the scenario strikes brokers"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="draw its timeline")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what the processes said")


def run(options: argparse.Namespace) -> int:
    """0 when all held; 1 when something did not; raises UnknownScenarioError."""
    scenario = scenarios.load(options.scenario)
    unknown = sorted({fault.kind for fault in scenario.fault} - ACTS.keys())
    if not scenario.live or unknown or scenario.drawn is not None:
        raise scenarios.UnknownScenarioError(
            f"{options.scenario} cannot be played live{f' ({unknown})' if unknown else ''}: "
            "those that can are marked [live] in `python -m chaos list`"
        )
    stack = options.stack or stack_of(scenario)
    if why := obstacle(scenario, stack):
        raise scenarios.UnknownScenarioError(why)
    try:
        with _interruptible():
            result = play(scenario, stack, keep=options.keep)
    except NetworkError as error:
        raise scenarios.UnknownScenarioError(str(error)) from error
    except TrialError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; nothing is left.", file=sys.stderr)
        return 130
    _say(f"{options.scenario}, live on {stack}", result)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(msgspec.to_builtins(result)) + "\n", encoding="utf-8")
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        page = _page(options.scenario, stack, scenario, result)
        options.report.write_text(page, encoding="utf-8")
    return 1 if result.broken else 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, and only the first of them counts: what was made is being removed then."""

    def once(_number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, once) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Live(msgspec.Struct, frozen=True):
    """What came of it. Times are from the first entry of the log on; `plan` is the faults when they really struck."""

    broken: tuple[str, ...]
    entries: int
    voided: int
    seconds: float
    events: tuple[Event, ...]
    plan: tuple[Fault, ...]
    names: dict[str, str]


def _say(title: str, result: Live) -> None:
    for event in result.events:
        if event.kind not in _QUIET:
            print(f"  {event.at_ms / 1000:6.1f} s  {event.kind} {event.subject} {event.detail}")
    for line in result.broken:
        print(f"  {line}")
    how = f"{len(result.broken)} broken" if result.broken else "all promises kept"
    print(
        f"{title}: {result.entries} entries ({result.voided} void), {result.seconds:.0f} s: {how}"
    )


def _page(name: str, stack: str, scenario: Scenario, result: Live) -> str:
    """Drawn as a simulated history is."""
    end_s = max((event.at_ms for event in result.events), default=0) / 1000
    seen = Counter(event.kind for event in result.events)
    verdict = Verdict(
        seed=0, broken=result.broken, history="", state="", virtual_s=end_s, events=len(result.events),
        entries=result.entries, voided=result.voided, seen=dict(sorted(seen.items())),
    )  # fmt: skip
    history = History(Setup(scenario.shape, result.plan), verdict, result.events, result.names)
    figures = f"{end_s:.0f} s, {result.entries} entries ({result.voided} void)"
    command = f"python -m chaos live {name} --stack {stack}"
    title = f"{name}, live on {stack}"
    return report.page(title, figures, scenario, history, command, drawn=len(result.plan))


# --- playing


def play(scenario: Scenario, stack: str, *, keep: Path | None = None) -> Live:
    """Start, strike, wait, judge. Raises NetworkError, TrialError when there is nothing to strike."""
    began = time.monotonic()
    broken: list[str] = []
    names: dict[str, str] = {}
    with staged(scenario, stack) as scene:
        struck: list[tuple[int, Fault]] = []
        try:
            with _kept(scene, keep):
                _strike(scene, scenario, names, struck)
                _wait_for_ends(scene)
        except (TrialError, StackError, TidemillError) as error:
            broken.append(f"D: {error}")
        finally:
            scene.heal()
        judged = judge(scene, struck)
    broken += judged.broken
    checks = [as_called(check, scene.nodes) for check in scenario.check]
    failures = [check.failure(judged.events, names) for check in checks]
    broken += [f"check: {failure}" for failure in failures if failure]
    plan = [replace(fault, at_ms=at_ms - judged.began_ms) for at_ms, fault in struck]
    return Live(
        tuple(broken), judged.entries, judged.voided, time.monotonic() - began, tuple(judged.events),
        tuple(plan), names,
    )  # fmt: skip


def as_called(check: Check, nodes: Mapping[str, str]) -> Check:
    """Nodes as they are called there."""
    subject, detail = nodes.get(check.subject, check.subject), check.detail
    for ours, theirs in nodes.items():
        detail = detail.replace(ours, theirs)
    return replace(check, subject=subject, detail=detail)


def _strike(
    scene: Scene[Cell], scenario: Scenario, names: dict[str, str], struck: list[tuple[int, Fault]]
) -> None:
    """Work and faults at their times. `names` gets the ids of the jobs by the names that checks give them."""

    def submit(number: int, work: Work) -> None:
        with scene.cell.client() as client:
            names[f"job-{number}"] = job = client.submit(_request(work, number, scene)).job
            scene.jobs.append(job)

    def hurt(fault: Fault) -> None:
        said = f"{fault.kind} {fault.what or fault.target}"
        print(f"{fault.at_ms / 1000:6.1f} s  {said}", flush=True)
        # As the leader counts: the wall clock once, then a clock that only grows.
        struck.append((began_ms + round((time.monotonic() - began) * 1000), fault))
        scene.strike(fault)

    began, began_ms = time.monotonic(), time.time_ns() // 1_000_000
    due: list[tuple[float, Callable[[], None]]] = [
        *((work.at_s, partial(submit, number, work)) for number, work in enumerate(scenario.work)),
        *((fault.at_ms / 1000, partial(hurt, fault)) for fault in scenario.fault),
    ]
    for at_s, act in sorted(due, key=lambda each: each[0]):
        _wait_until(scene, began + at_s)
        act()


def _request(work: Work, number: int, scene: Scene[Cell]) -> job_service_pb2.SubmitJobRequest:
    program = [
        scene.python, "-m", "chaos.trainer", "--steps", str(work.steps), "--step-ms", str(work.step_ms),
        "--save-every", str(work.save_every), "--rails", str(scene.rails),
    ]  # fmt: skip
    if work.failover:
        program.append("--failover")
    return job_request(
        {
            "name": f"job-{number}", "command": program, "nodes": work.members, "gpus": work.devices,
            "cpus": 1, "overlap_safe": work.overlap_safe, "hang_after": f"{work.hang_after_s:g}s",
            "fence_after": f"{work.fence_after_s:g}s", "env": dict(scene.environment),
        }
    )  # fmt: skip


def _wait_until(scene: Scene[Cell], at: float) -> None:
    while time.monotonic() < at:
        scene.undo_due()
        time.sleep(min(_LOOK_S, max(at - time.monotonic(), 0.0)))


def _wait_for_ends(scene: Scene[Cell]) -> None:
    ended = {state.value for state in ENDED} | {"held"}

    def over(client: Client) -> bool:
        scene.undo_due()
        return all(client.job(job).state in ended for job in scene.jobs)

    with scene.cell.client() as client:
        scene.cell.until("the jobs to end", lambda: over(client), within_s=_END_WITHIN_S)


@contextlib.contextmanager
def _kept(scene: Scene[Cell], keep: Path | None) -> Iterator[None]:
    try:
        yield
    finally:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            scene.keep(keep)


# --- judging


class Judged(msgspec.Struct):
    """What the log says, from the scenario's first entry on."""

    broken: list[str]
    events: list[Event]
    began_ms: int = 0
    entries: int = 0
    voided: int = 0

    def take(self, cluster: Cluster, watcher: Watcher, entry: Entry) -> None:
        """Fold one entry, with every check."""
        if not self.entries:
            self.began_ms = entry.at_ms
            # Who is there already stands at the beginning, as in a cell that begins.
            there = [node.id for node in cluster.nodes.values() if node.state is NodeState.READY]
            self.events += [Event(0, "NodeJoined", node) for node in there]
        accepted = not cluster.void_reason(entry)
        self.entries += 1
        self.voided += not accepted
        self.broken += watcher.fold(cluster, entry) + invariants.violations(cluster)
        for recorded in entry.facts if accepted else ():
            event = event_of(recorded.fact, entry.at_ms - self.began_ms)
            if event is not None:
                self.events.append(event)


def judge(scene: Scene[Cell], struck: list[tuple[int, Fault]]) -> Judged:
    """Fold what is stored; faults and how every job stands are on the timeline, which begins with the scenario."""
    cluster, watcher = Cluster(scene.cell.name), Watcher()
    judged = Judged([], [])
    with contextlib.ExitStack() as closing:
        ports = open_cell(scene.cell.settings)
        closing.callback(ports.close)
        log = ports.event_log()
        closing.callback(log.close)
        while records := log.read(cluster.offset + 1, limit=256, timeout_s=0):
            for record in records:
                entry, _ = decode(record, cluster)
                if entry.offset < scene.first:
                    watcher.fold(cluster, entry)
                else:
                    judged.take(cluster, watcher, entry)
    admitted = [event.subject for event in judged.events if event.kind == "JobAdmitted"]
    judged.events += [
        Event(at_ms - judged.began_ms, "fault", fault.kind, f"{fault.target} {fault.what}".strip())
        for at_ms, fault in struck
    ]
    judged.events.sort(key=lambda event: event.at_ms)
    judged.events += [
        Event(cluster.at_ms - judged.began_ms, "final", job.id, job.state.value)
        for job in cluster.jobs.values()
        if job.id in admitted
    ]
    return judged
