"""History: each recorded fact as one sentence, and whom it is about. One table for people; programs read the facts.

Complete by test: every fact type has its sentence. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from services.runtime.ids import array_element, array_of, parse_run_id
from statemachines import facts as f
from statemachines.entry import Entry, Recorded
from statemachines.facts import Fact
from statemachines.values import Reason
from tidemill.v1 import job_service_pb2

SENTENCES: Final[Mapping[type, Callable[[Any], str]]] = {
    f.TermOpened: lambda x: f"{x.leader} leads the cell, term {x.term}",
    f.PolicyApplied: lambda _: "the cell's settings for decisions were recorded",
    f.InputParked: lambda x: (
        f"input {x.offset} of {x.topic}/{x.partition} was set aside: {x.reason}"
    ),
    f.InputGapAccepted: lambda x: (
        f"the loss of inputs {x.from_offset} to {x.to_offset - 1} of {x.topic}/{x.partition} was accepted"
        f"{_because(x.message)}"
    ),
    f.BreakerOpened: lambda x: (
        f"incident {x.incident}: {x.nodes} nodes silent at once; none is given up while it lasts"
        f"{_because(x.message)}"
    ),
    f.BreakerClosed: lambda x: f"incident {x.incident} is over",
    f.RequestAccepted: lambda x: f"{x.kind} of {x.target} was accepted",
    f.RequestRefused: lambda x: f"{x.kind} of {x.target} was refused{_because(x.message)}",
    f.QueueApplied: lambda x: (
        f"queue {x.queue} has limits: devices {_limit(x.device_limit)}, "
        f"milli-CPU {_limit(x.cpu_milli_limit)}, jobs {_limit(x.job_limit)}"
    ),
    f.QueueRemoved: lambda x: f"queue {x.queue} was removed",
    f.JobAdmitted: lambda x: (
        f"admitted as number {x.number} to queue {x.spec.queue}"
        + (f", an array of {x.count} jobs" if x.count else "")
    ),
    f.JobWaiting: lambda x: f"waits{_why(x.reason)}",
    f.JobHeld: lambda x: f"held{_why(x.reason)}",
    f.JobReleased: lambda _: "released: it may run",
    f.JobRequeued: lambda _: "queued again",
    f.JobCancelled: lambda x: f"cancelled{_because(x.message)}",
    f.JobRetired: lambda _: "left the table of jobs; its history stays in the log",
    f.GangPlaced: lambda x: f"attempt {x.attempt} placed on {_nodes(x)}, {_resume(x)}{_why(x.why)}",
    f.AttemptStarted: lambda x: f"attempt {x.attempt} runs: every member has started",
    f.AttemptStopping: lambda x: (
        f"attempt {x.attempt} is stopped ({_words(x.cause)}), then the job is {_words(x.next)}"
        f"{_because(x.message)}"
    ),
    f.AttemptEnded: lambda x: (
        f"attempt {x.attempt} {_words(x.outcome)} ({_words(x.cause)}); the job is {_words(x.next)}"
        f"{_because(x.message)}"
    ),
    f.SaveAsked: lambda x: (
        f"attempt {x.attempt} was asked for checkpoint {x.ask} out of turn ({_words(x.cause)})"
    ),
    f.SaveAcknowledged: lambda x: f"attempt {x.attempt} will save at step {x.at_step}",
    f.TrainingFinished: lambda x: (
        f"attempt {x.attempt} said that training is done at step {x.step}"
    ),
    f.AttemptResumed: lambda x: f"attempt {x.attempt} loaded step {x.step}, as was decided",
    f.ResumeMismatched: lambda x: (
        f"attempt {x.attempt} loaded step {x.step} from {x.uri}, which is not what was decided"
    ),
    f.RunStarted: lambda x: f"run {x.run} started",
    f.RunEnded: lambda x: (
        f"run {x.run} ended, {_exit(x)}; known by {_words(x.evidence)}{_because(x.message)}"
    ),
    f.CheckpointStarted: lambda x: f"attempt {x.attempt} began to save step {x.step}",
    f.CheckpointSaved: lambda x: (
        f"checkpoint of step {x.step} is durable at {x.uri} ({x.bytes} bytes, {_words(x.tier)}, "
        f"reaches {_words(x.reach)})"
    ),
    f.CheckpointFailed: lambda x: f"saving step {x.step} failed{_because(x.message)}",
    f.CheckpointReleased: lambda x: f"checkpoint of step {x.step} is no longer needed",
    f.CheckpointRemoved: lambda x: f"checkpoint of step {x.step} is gone",
    f.CheckpointCondemned: lambda x: (
        f"checkpoint of step {x.step} could not be loaded and is not used again{_because(x.message)}"
    ),
    f.NodeJoined: lambda x: (
        f"node {x.node} joined as incarnation {x.incarnation} with {len(x.inventory.devices)} devices"
    ),
    f.NodeSuspected: lambda x: (
        f"node {x.node} has been silent for {x.silent_ms} ms: nothing new there"
    ),
    f.NodeRecovered: lambda x: f"node {x.node} speaks again",
    f.NodeLost: lambda x: (
        f"node {x.node} was given up as incarnation {x.incarnation}{_because(x.message)}"
    ),
    f.NodeCordoned: lambda x: f"node {x.node} takes nothing new{_because(x.message)}",
    f.NodeUncordoned: lambda x: f"node {x.node} is in service again",
    f.NodeDrainStarted: lambda x: (
        f"node {x.node} is drained: its runs move away{_because(x.message)}"
    ),
    f.NodeDrained: lambda x: f"node {x.node} runs nothing any more",
    f.NodeRemoved: lambda x: f"node {x.node} was removed",
    f.DeviceDegraded: lambda x: f"device {x.index} of {x.node} is degraded{_why(x.reason)}",
    f.DeviceFaulted: lambda x: f"device {x.index} of {x.node} is faulty{_why(x.reason)}",
    f.DeviceRecovered: lambda x: f"device {x.index} of {x.node} is healthy again",
    f.NicDegraded: lambda x: f"nic {x.nic} of {x.node} is degraded{_why(x.reason)}",
    f.NicFaulted: lambda x: f"nic {x.nic} of {x.node} is faulty{_why(x.reason)}",
    f.NicRecovered: lambda x: f"nic {x.nic} of {x.node} is healthy again",
}


def line(entry: Entry, recorded: Recorded) -> job_service_pb2.HistoryLine:
    """A fact as people read it, with where and when it was recorded and who asked."""
    fact = recorded.fact
    return job_service_pb2.HistoryLine(
        offset=entry.offset,
        at_ms=entry.at_ms,
        term=entry.term,
        fact=type(fact).__name__,
        by=recorded.by,
        text=SENTENCES[type(fact)](fact),
    )


def jobs_of(fact: Fact) -> tuple[str, ...]:
    """Jobs that the fact is about; an array stands for its jobs."""
    job = getattr(fact, "job", "")
    if job:
        return (job,)
    run = getattr(fact, "run", "")
    if run:
        return (parse_run_id(run)[0],)
    if isinstance(fact, f.RequestAccepted | f.RequestRefused):
        return (fact.target,)  # Of a job or of something else: names do not overlap.
    return ()


def nodes_of(fact: Fact) -> tuple[str, ...]:
    """Nodes that the fact is about; of a run it does not say where the run is."""
    if isinstance(fact, f.GangPlaced):
        return tuple(dict.fromkeys(placement.node for placement in fact.placements))
    node = getattr(fact, "node", "")
    return (node,) if node else ()


class About:
    """Whether facts, seen in the order of the log, are about one job, array, node or queue.

    A number stands for the job that was admitted under it, which may have left the tables of the cell long ago.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = int(name) if name.isdecimal() else 0
        self._array = array_of(name)
        self._runs: set[str] = set()  # Runs placed on the node of that name.

    def __call__(self, fact: Fact) -> bool:
        if isinstance(fact, f.GangPlaced):
            self._runs.update(each.run for each in fact.placements if each.node == self._name)
        if isinstance(fact, f.JobAdmitted) and (job := _numbered(fact, self._number)):
            self._name, self._array = job, array_of(job)
        jobs = jobs_of(fact)
        if self._name in jobs or self._name in nodes_of(fact):
            return True
        if isinstance(fact, f.JobAdmitted):
            return bool(fact.count) and fact.job == self._array
        named = getattr(fact, "run", "") in self._runs or getattr(fact, "queue", "") == self._name
        return named or any(array_of(job) == self._name for job in jobs)


def _numbered(fact: f.JobAdmitted, number: int) -> str:
    """The id of the job that was admitted under this number; empty when it was another."""
    place = number - fact.number
    if not 0 <= place < max(fact.count, 1):
        return ""
    return array_element(fact.job, place) if fact.count else fact.job


def _because(message: str) -> str:
    return f": {message}" if message else ""


def _why(reason: Reason) -> str:
    return _because(reason.message or _words(reason.code))


def _words(code: str) -> str:
    return code.replace("_", " ")


def _limit(number: int) -> str:
    return "unlimited" if number < 0 else str(number)


def _nodes(fact: f.GangPlaced) -> str:
    nodes = nodes_of(fact)
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(nodes[:3]) + more


def _resume(fact: f.GangPlaced) -> str:
    return f"from step {fact.resume.step}" if fact.resume.uri else "from the beginning"


def _exit(fact: f.RunEnded) -> str:
    return f"signal {fact.signal}" if fact.signal else f"exit code {fact.exit_code}"
