"""What agents say, message by message: attached, beats, signals, reports, acks, output.

The gateway stamps who said it; an agent speaks only for nodes that it attached on this stream, and only about runs on
them. An end is evidence whatever the incarnation, so it is taken even from one that was refused.
"""

from __future__ import annotations

from functools import partial

from services.gateway.auth import Caller, may_attach
from services.gateway.beats import Beats
from services.gateway.effects import Effects, Now
from services.gateway.pending import RETRY_AFTER_MS
from services.gateway.record import record
from services.gateway.refusal import Refusal, Status
from services.gateway.reports import OWN
from services.gateway.sessions import AttachStream, Session, Sessions
from services.gateway.validation import check
from services.runtime import topics
from services.runtime.ports import PortError
from statemachines.cluster import Cluster
from statemachines.values import RunId
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2
from tidemill.v1 import node_service_pb2 as wire


class Agents:
    """NodeService.Attach: one `open`, then messages, then one `close` a stream."""

    def __init__(
        self, sessions: Sessions, effects: Effects, beats: Beats, cluster: Cluster, *, gateway: str
    ) -> None:
        self._sessions = sessions
        self._effects = effects
        self._beats = beats
        self._cluster = cluster
        self._gateway = gateway

    def open(self, caller: Caller) -> AttachStream:
        """A stream that carries no node yet."""
        return AttachStream(self._effects, self._sessions, caller)

    def close(self, stream: AttachStream) -> None:
        """The stream is gone; its nodes are silent from now on, not lost."""
        self._sessions.close(stream)

    def take(self, stream: AttachStream, message: wire.AttachRequest, now: Now) -> None:
        """One message of the agent; a Refusal that is raised ends the stream."""
        kind = message.WhichOneof("kind")
        if kind == "beat":
            # By far the most; its node must be one of this stream, and so is a valid name.
            beat = message.beat
            if not self._sessions.session(stream, beat.node).refused:
                self._beats.take(beat, now)
            return
        if kind == "report":  # What the gateway fills in is not asked of the agent.
            self._stamp(stream.caller, message.report, now)
        check(message)
        match kind:
            case "attach":
                self._attach(stream, message.attach, now)
            case "signal":
                self._sessions.session(stream, message.signal.node)
                self._signal(stream, message.signal)
            case "report":
                self._report(stream, message.report)
            case "ack":
                self._sessions.acked(stream, message.ack, now)
            case "log_chunk":
                self._sessions.take_log(message.log_chunk)
            case "detach":
                self._sessions.detach(stream, message.detach.node)
            case None:
                raise AssertionError("a message of no kind breaks a rule of the protos")

    def _stamp(self, caller: Caller, report: reports_pb2.Report, now: Now) -> None:
        principal = common_pb2.Principal(name=caller.principal, method=caller.method)
        report.principal.CopyFrom(principal)
        report.gateway = self._gateway
        report.at_ms = report.at_ms or now.wall_ms

    def _attach(self, stream: AttachStream, attach: wire.AttachNode, now: Now) -> None:
        may_attach(stream.caller, attach.node)
        session = self._sessions.attach(stream, attach)
        if session.refused:
            return
        report = reports_pb2.Report(
            node=session.node, incarnation=session.incarnation, node_attached=attach.attached
        )
        self._stamp(stream.caller, report, now)
        self._sessions.report(session, OWN, record(topics.REPORTS, session.node, report))

    def _report(self, stream: AttachStream, report: reports_pb2.Report) -> None:
        session = self._sessions.session(stream, report.node)
        kind = report.WhichOneof("kind")
        if kind == "node_attached":
            raise Refusal(
                Status.INVALID_ARGUMENT,
                "not_an_agents_report",
                "an inventory comes with AttachNode: attach again",
            )
        if kind in {"run_began", "run_finished"}:
            self._about_own_run(session, getattr(report, kind).run)
        stored = record(topics.REPORTS, session.node, report)
        self._sessions.report(session, report.sequence, stored)

    def _about_own_run(self, session: Session, name: str) -> None:
        """A run that the fold does not show may be known to the leader; one of another node is a lie."""
        run = self._cluster.runs.get(RunId(name))
        if run is not None and run.node != session.node:
            raise Refusal(
                Status.PERMISSION_DENIED,
                "other_nodes_run",
                f"run {name} is on {run.node}; {session.node} may not report on it",
            )

    def _signal(self, stream: AttachStream, signal: telemetry_pb2.Signal) -> None:
        """An agent takes a later beat's ack for the news that its failed device was heard of: that one is not lost."""
        vital = signal.kind == telemetry_pb2.SIGNAL_KIND_PROBE_FAILED
        if self._effects.congested:
            if vital:
                raise _signal_lost()
            return
        then = partial(_vital, stream) if vital else _lossy
        self._effects.publish([record(topics.SIGNALS, signal.node, signal)], then)


def _lossy(_error: PortError | None, _now: Now) -> None:
    """Telemetry: lost when it could not be written."""


def _vital(stream: AttachStream, error: PortError | None, _now: Now) -> None:
    """Outcomes come in the order of the writes, so the stream is cut before it carries the ack of a later beat."""
    if error is not None:
        stream.cut(_signal_lost())


def _signal_lost() -> Refusal:
    return Refusal(
        Status.UNAVAILABLE,
        "signal_not_stored",
        "the log did not take the signal of a device that failed; attach again and repeat it",
        retry_after_ms=RETRY_AFTER_MS,
    )
