"""`python -m chaos live SCENARIO`: the same scenario on live processes, judged by what the log says afterwards.

Starts a cell of its own in a directory of its own, strikes it with signals at the scenario's times, waits until every
job has ended, then folds the stored log with every check of every step. Ends only what it started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from chaos import scenarios
from services.runtime.reader import decode
from services.runtime.trial import TrialCell, TrialError
from services.runtime.wiring import open_cell
from simulation.faults import Fault
from simulation.referee import Event, event_of
from simulation.scenario import Scenario, Work
from statemachines import invariants
from statemachines.cluster import Cluster
from statemachines.job import ENDED
from statemachines.watcher import Watcher
from tidemill import Client, TidemillError
from tidemill.jobfile import job_request
from tidemill.v1 import job_service_pb2

STACKS: Final = ("embedded",)
_END_WITHIN_S: Final = 180.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `live`."""
    parser.add_argument("scenario")
    parser.add_argument("--stack", choices=STACKS, default="embedded")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")


def run(options: argparse.Namespace) -> int:
    """0 when all held; 1 when something did not; raises UnknownScenarioError."""
    scenario = scenarios.load(options.scenario)
    unknown = sorted({fault.kind for fault in scenario.fault} - ACTS.keys())
    if not scenario.live or unknown or scenario.drawn is not None:
        raise scenarios.UnknownScenarioError(
            f"{options.scenario} cannot be played live{f' ({unknown})' if unknown else ''}: "
            "those that can are marked [live] in `python -m chaos list`"
        )
    result = play(scenario)
    for line in result.broken:
        print(f"  {line}")
    how = f"{len(result.broken)} broken" if result.broken else "all promises kept"
    print(
        f"{options.scenario}, live: {result.entries} entries ({result.voided} void), {result.seconds:.0f} s: {how}"
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(msgspec.to_builtins(result)) + "\n", encoding="utf-8")
    return 1 if result.broken else 0


class Live(msgspec.Struct, frozen=True):
    """What came of it."""

    broken: tuple[str, ...]
    entries: int
    voided: int
    seconds: float
    events: tuple[Event, ...]


class LiveCell(TrialCell):
    """An embedded cell with two schedulers, and agents beside it that can be killed and started again."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__("chaos", flags=("--schedulers", str(scenario.shape.schedulers)))
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._devices = scenario.shape.devices
        self._resume: list[tuple[float, int]] = []

    def start_agent(self, number: int) -> None:
        """The first time, or again on the same state."""
        name = f"n{number:04}"
        self.agents[number] = self.spawn(
            name, "services.agent", "--node", name, "--state", str(self.directory / "hosts" / name), *self.flags,
            "--gateway", self.address, "--fake-gpus", f"{self._devices}xH100", "--cpu", "8",
        )  # fmt: skip

    def kill(self, pid: int) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def stop(self, pid: int, lasts_ms: int) -> None:
        """SIGSTOP, and SIGCONT when the time has come."""
        os.kill(pid, signal.SIGSTOP)
        self._resume.append((time.monotonic() + lasts_ms / 1000, pid))

    def thaw(self, *, all_of_them: bool = False) -> None:
        """Let go on what has been stopped for long enough."""
        now = time.monotonic()
        for due, pid in list(self._resume):
            if all_of_them or due <= now:
                self._resume.remove((due, pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def end_runs(self) -> None:
        """Whatever a run of ours left: supervisors and programs name this directory."""
        mark = os.fsencode(self.directory)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                        self.kill(int(entry.name))


# --- what strikes


def _kill_leader(cell: LiveCell, client: Client, _fault: Fault) -> None:
    cell.kill_leader(client)


def _pause_leader(cell: LiveCell, client: Client, fault: Fault) -> None:
    cell.stop(cell.leader_pid(client), fault.lasts_ms)


def _kill_service(cell: LiveCell, _client: Client, fault: Fault) -> None:
    for pid in cell.pids_of(fault.what.partition("-")[0])[:1]:
        cell.kill(pid)


def _kill_agent(cell: LiveCell, _client: Client, fault: Fault) -> None:
    number = fault.target % len(cell.agents)
    cell.kill(cell.agents[number].pid)
    cell.agents[number].wait()
    cell.start_agent(number)


def _pause_agent(cell: LiveCell, _client: Client, fault: Fault) -> None:
    cell.stop(cell.agents[fault.target % len(cell.agents)].pid, fault.lasts_ms)


def _kill_everything(cell: LiveCell, _client: Client, _fault: Fault) -> None:
    doomed = [*cell.pids(), *[agent.pid for agent in cell.agents.values()]]
    for pid in doomed:
        cell.kill(pid)
    cell.up.wait()
    for agent in cell.agents.values():
        agent.wait()
    cell.start()
    for number in cell.agents:
        cell.start_agent(number)


ACTS: Final[Mapping[str, Callable[[LiveCell, Client, Fault], None]]] = {
    "kill leader": _kill_leader,
    "pause leader": _pause_leader,
    "kill service": _kill_service,
    "kill agent": _kill_agent,
    "pause agent": _pause_agent,
    "kill everything": _kill_everything,
}


# --- playing


def play(scenario: Scenario) -> Live:
    """Start, strike, wait, judge."""
    began = time.monotonic()
    broken: list[str] = []
    with LiveCell(scenario) as cell:
        try:
            names = _start(cell, scenario)
            _strike(cell, scenario)
            _wait_for_ends(cell, list(names.values()))
        except (TrialError, TidemillError) as error:
            broken.append(f"D: {error}")
            names = {}
        finally:
            cell.thaw(all_of_them=True)
        judged, events, cluster = _judge(cell)
        cell.end_runs()
    broken += judged
    failures = [check.failure(events, names) for check in scenario.check]
    broken += [f"check: {failure}" for failure in failures if failure]
    return Live(
        tuple(broken), cluster.offset + 1, cluster.voided, time.monotonic() - began, tuple(events)
    )


def _start(cell: LiveCell, scenario: Scenario) -> dict[str, str]:
    """Agents and jobs; the ids of the jobs by the names that checks give them."""
    for number in range(scenario.shape.nodes):
        cell.start_agent(number)
    with cell.client() as client:
        cell.until("the agents", lambda: client.cell().nodes_ready >= scenario.shape.nodes)
        return {
            f"job-{number}": client.submit(_request(work, number)).job
            for number, work in enumerate(scenario.work)
        }


def _request(work: Work, number: int) -> job_service_pb2.SubmitJobRequest:
    program = (
        sys.executable, "-m", "chaos.trainer", "--steps", str(work.steps), "--step-ms", str(work.step_ms),
        "--save-every", str(work.save_every),
    )  # fmt: skip
    return job_request(
        {
            "name": f"job-{number}", "command": list(program), "nodes": work.members, "gpus": work.devices,
            "cpus": 1, "overlap_safe": work.overlap_safe,
        }
    )  # fmt: skip


def _strike(cell: LiveCell, scenario: Scenario) -> None:
    began = time.monotonic()
    for fault in sorted(scenario.fault, key=lambda each: each.at_ms):
        _until(cell, began + fault.at_ms / 1000)
        print(f"{fault.at_ms / 1000:6.1f} s  {fault.kind} {fault.what or fault.target}", flush=True)
        with cell.client() as client:
            ACTS[fault.kind](cell, client, fault)


def _until(cell: LiveCell, at: float) -> None:
    while time.monotonic() < at:
        cell.thaw()
        time.sleep(min(0.1, max(at - time.monotonic(), 0.0)))


def _wait_for_ends(cell: LiveCell, jobs: list[str]) -> None:
    ended = {state.value for state in ENDED} | {"held"}

    def over() -> bool:
        cell.thaw()
        with cell.client() as client:
            return all(client.job(job).state in ended for job in jobs)

    cell.until("the jobs to end", over, within_s=_END_WITHIN_S)


def _judge(cell: LiveCell) -> tuple[list[str], list[Event], Cluster]:
    """Fold what is stored, with every check; how every job stands is on the timeline."""
    cluster, watcher = Cluster(cell.name), Watcher()
    broken: list[str] = []
    events: list[Event] = []
    began_ms = 0
    with contextlib.ExitStack() as closing:
        ports = open_cell(cell.settings)
        closing.callback(ports.close)
        log = ports.event_log()
        closing.callback(log.close)
        while records := log.read(cluster.offset + 1, limit=256, timeout_s=0):
            for record in records:
                entry, _ = decode(record, cluster)
                accepted = not cluster.void_reason(entry)
                broken += watcher.fold(cluster, entry) + invariants.violations(cluster)
                began_ms = began_ms or entry.at_ms
                for recorded in entry.facts if accepted else ():
                    event = event_of(recorded.fact, entry.at_ms - began_ms)
                    if event is not None:
                        events.append(event)
    events += [
        Event(cluster.at_ms - began_ms, "final", job.id, job.state.value)
        for job in cluster.jobs.values()
    ]
    return broken, events, cluster
