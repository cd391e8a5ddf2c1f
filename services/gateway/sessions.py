"""Attached nodes: what each has been sent, has stored, and still waits for. One stream may carry many nodes.

Desired sets are computed from the fold when the stream can take them, never queued, so a slow agent gets the newest.
A beat is acknowledged only if it is in its topic, the log was read to its end a moment ago, and the fold has this
incarnation not lost: an agent that hears nothing fences itself, so a false ack could let two attempts run at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from services.gateway.auth import Caller
from services.gateway.effects import Effects, Now, Outbox
from services.gateway.output import OutputReader, not_attached
from services.gateway.pending import RETRY_AFTER_MS
from services.gateway.refusal import Refusal, Status
from services.gateway.reports import ReportQueue
from services.runtime.desired import (
    Orders,
    TokenOf,
    another_boot,
    changes,
    desired,
    full_set,
    nodes_of,
)
from services.runtime.ports import Outgoing
from statemachines.cluster import Cluster
from statemachines.node import Node, NodeState
from statemachines.values import NodeId
from tidemill.v1 import node_service_pb2 as wire
from tidemill.v1 import telemetry_pb2

BEAT_EVERY_MS: Final = 2_000
# The log must have been read to its end this recently for a beat to be acknowledged.
LOG_FRESH_MS: Final = 2_000
NODES_PER_STREAM_MAX: Final = 20_000
MESSAGES_BEHIND_MAX: Final = 50_000
# A full set is not sent again to a node sooner than this: an agent that can never agree must not spin.
RESEND_MS: Final = 1_000


class Session:
    """One node of one stream, as one incarnation."""

    def __init__(self, stream: AttachStream, attach: wire.AttachNode) -> None:
        self.stream = stream
        self.node = NodeId(attach.node)
        self.incarnation = attach.incarnation
        self.boot_id = attach.attached.inventory.boot_id
        self.stored = (attach.term, attach.offset)
        self.refused = False
        self.acked_beat = -1
        # What the agent has, once it has applied all that was sent; None: it needs a full set.
        self.orders: Orders | None = None
        self.sent: tuple[int, int, bytes] | None = None
        self.resend_at_ms = 0


class AttachStream(Outbox):
    """One Attach call."""

    def __init__(self, effects: Effects, sessions: Sessions, caller: Caller) -> None:
        super().__init__(effects, limit=MESSAGES_BEHIND_MAX)
        self.caller = caller
        self.nodes: dict[str, Session] = {}
        self.reports: dict[NodeId, ReportQueue] = {}
        # Both first in, first out, and in turn: no node waits for ever behind those that are busier.
        self.dirty: OrderedDict[NodeId, None] = OrderedDict()
        self.beat_acks: OrderedDict[NodeId, int] = OrderedDict()
        self._set_is_next = False
        self._sessions = sessions

    def pull(self, now: Now) -> wire.AttachResponse | None:
        if self._queue or self.refusal is not None:
            message = super().pull(now)
            assert isinstance(message, wire.AttachResponse)
            return message
        if self.dirty and (self._set_is_next or not self.beat_acks):
            update = self._next_set(now)
            if update is not None:
                self._set_is_next = False
                return wire.AttachResponse(desired=update)
        if not self.beat_acks:
            return None
        self._set_is_next = True
        response = wire.AttachResponse()
        ack = response.beat_ack
        ack.node, ack.sequence = self.beat_acks.popitem(last=False)
        return response

    def _next_set(self, now: Now) -> wire.DesiredSet | None:
        while self.dirty and self._sessions.fresh(now):
            node, _ = self.dirty.popitem(last=False)
            update = self._sessions.update(self.nodes[node], now)
            if update is not None:
                return update
        return None

    def too_slow(self) -> Refusal:
        return Refusal(
            Status.ABORTED,
            "agent_too_slow",
            "the agent does not read what it is sent; attach again",
            retry_after_ms=RETRY_AFTER_MS,
        )


class Sessions:
    """All nodes attached to this gateway."""

    def __init__(self, cluster: Cluster, effects: Effects, *, token_of: TokenOf) -> None:
        self._cluster = cluster
        self._effects = effects
        self._token_of = token_of
        self._nodes: dict[str, Session] = {}
        self._unsent: dict[Session, None] = {}
        self._readers: dict[str, OutputReader] = {}
        self._log_read_ms: int | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def log_age_ms(self, now: Now) -> int | None:
        """Since the log was last read to its end; None before the first time."""
        return None if self._log_read_ms is None else now.mono_ms - self._log_read_ms

    def fresh(self, now: Now) -> bool:
        """Whether what the fold says is what the log said a moment ago: only then are agents told anything."""
        age = self.log_age_ms(now)
        return age is not None and age <= LOG_FRESH_MS

    # --- from the agent

    def attach(self, stream: AttachStream, message: wire.AttachNode) -> Session:
        """A node is here. The newest stream has it: an older one is what is left of a broken connection."""
        node = NodeId(message.node)
        before = self._nodes.get(node)
        if before is not None and before.stream is not stream:
            self._drop(before)
        if len(stream.nodes) >= NODES_PER_STREAM_MAX and node not in stream.nodes:
            raise _protocol(
                "too_many_nodes", f"a stream carries at most {NODES_PER_STREAM_MAX} nodes"
            )
        session = Session(stream, message)
        if before is not None:
            self._unsent.pop(before, None)
        self._nodes[node] = stream.nodes[node] = session
        if not self._refuse_if_lost(session):
            self._unsent[session] = None
            stream.put(
                wire.AttachResponse(
                    welcome=wire.NodeWelcome(
                        node=node, cell=self._cluster.cell, beat_every_ms=BEAT_EVERY_MS
                    )
                )
            )
            self._mark(session)
        return session

    def session(self, stream: AttachStream, node: str) -> Session:
        """The node on this stream; raises Refusal when it was not attached there."""
        found = stream.nodes.get(node)
        if found is None:
            raise _protocol("not_attached", f"node {node!r} has not been attached on this stream")
        return found

    def acked(self, stream: AttachStream, ack: wire.DesiredAck, now: Now) -> None:
        """The agent has stored a set; with another digest than was sent it gets a full one."""
        session = self.session(stream, ack.node)
        session.stored = max(session.stored, (ack.term, ack.offset))
        if session.sent is None or session.sent[:2] != (ack.term, ack.offset):
            return  # Of an earlier set; the ack of the newest will come.
        if ack.digest != session.sent[2]:
            session.orders = None
            session.resend_at_ms = now.mono_ms + RESEND_MS
            self._effects.at(session.resend_at_ms, partial(self._mark_attached, session))

    def report(self, session: Session, sequence: int, record: Outgoing) -> None:
        """Publish it after those before it; acknowledged when durable. Reports outlive an incarnation."""
        stream, node = session.stream, session.node
        queue = stream.reports.get(node)
        if queue is None:
            queue = ReportQueue(self._effects, node, partial(_acknowledge, stream, node))
            stream.reports[node] = queue
        queue.add(sequence, record)

    def detach(self, stream: AttachStream, node: str) -> None:
        """The node leaves this stream; it is not lost by that."""
        self._drop(self.session(stream, node))

    def close(self, stream: AttachStream) -> None:
        """The stream is gone."""
        for session in list(stream.nodes.values()):
            self._drop(session)
        for reports in stream.reports.values():
            reports.close()

    # --- from the fold and the topics

    def touched(self, nodes: Iterable[NodeId]) -> None:
        """State that an order may depend on has changed."""
        for node in nodes:
            session = self._nodes.get(node)
            if session is not None and not self._refuse_if_lost(session):
                self._mark(session)
        for session in self._unsent:
            self._mark(session)

    def joined(self, node: NodeId) -> None:
        """A node has an inventory, and may have a new address: its gangs' members are told."""
        usage = self._cluster.usage.get(node)
        if usage is None:
            return  # A later fact of the same entry removed it.
        for run in usage.runs:
            self.touched(nodes_of(self._cluster, run))

    def everyone(self) -> None:
        """A setting changed that every order depends on."""
        self.touched([session.node for session in self._nodes.values()])

    def log_read(self, now: Now) -> None:
        """The log was read to its end at this time."""
        was_stale = not self.fresh(now)
        self._log_read_ms = now.mono_ms
        if was_stale:
            for session in self._nodes.values():
                if session.node in session.stream.dirty:
                    session.stream.wake()

    def beats_published(self, beats: Sequence[telemetry_pb2.Beat], now: Now) -> None:
        """Beats are in their topic: acknowledge those that the fold lets stand."""
        if not self.fresh(now):
            return
        for beat in beats:
            session = self._nodes.get(beat.node)
            if session is None or session.refused or session.incarnation != beat.incarnation:
                continue
            sequence = beat.sequence
            if sequence > session.acked_beat and self._standing(session) is not None:
                session.acked_beat = sequence
                session.stream.beat_acks[session.node] = sequence
                session.stream.wake()

    # --- to the agent

    def update(self, session: Session, now: Now) -> wire.DesiredSet | None:
        """The set or the change to send now; None when there is none, or it would be premature."""
        if session.resend_at_ms > now.mono_ms:
            return None  # A timer brings it back.
        at = (self._cluster.term, self._cluster.offset)
        if session.refused or self._standing(session) is None or at < session.stored:
            return None
        self._unsent.pop(session, None)
        orders = desired(self._cluster, session.node, self._token_of)
        if session.orders is None:
            update: wire.DesiredSet | None = full_set(session.node, *at, orders)
        else:
            update = changes(session.node, *at, before=session.orders, after=orders)
        session.orders = orders
        if update is not None:
            session.sent = (*at, update.digest)
        return update

    # --- what runs printed

    def read_log(self, reader: OutputReader, *, follow: bool, tail_bytes: int) -> None:
        """Ask the agent for a run's output; raises Refusal when its node is not attached here."""
        session = self._nodes.get(reader.node)
        if session is None:
            raise not_attached(reader.run, reader.node)
        self._readers[reader.call] = reader
        session.stream.put(
            wire.AttachResponse(
                log_read=wire.LogRead(
                    call=reader.call, run=reader.run, follow=follow, tail_bytes=tail_bytes
                )
            )
        )

    def take_log(self, chunk: wire.LogChunk) -> None:
        """Output, for whoever asked; for nobody when they have gone."""
        reader = self._readers.get(chunk.call)
        if reader is not None:
            reader.take(chunk)

    def stop_reading(self, reader: OutputReader) -> None:
        """The caller has gone or has it all."""
        if self._readers.pop(reader.call, None) is None:
            return
        session = self._nodes.get(reader.node)
        if session is not None and not reader.ended:
            cancel = wire.LogRead(call=reader.call, run=reader.run, cancel=True)
            session.stream.put(wire.AttachResponse(log_read=cancel))

    # --- inside

    def _standing(self, session: Session) -> Node | None:
        """The node in the fold, if it is there as this incarnation and not lost."""
        node = self._cluster.nodes.get(session.node)
        if node is None or node.incarnation != session.incarnation or node.state is NodeState.LOST:
            return None
        return node

    def _refuse_if_lost(self, session: Session) -> bool:
        """An incarnation ends with its loss, and with its boot."""
        node = self._cluster.nodes.get(session.node)
        lost = node is not None and (
            session.incarnation < node.incarnation
            or (
                session.incarnation == node.incarnation
                and (
                    node.state is NodeState.LOST
                    or another_boot(node.inventory.boot_id, session.boot_id)
                )
            )
        )
        if lost and not session.refused:
            assert node is not None
            session.refused = True
            self._unsent.pop(session, None)
            session.stream.put(wire.AttachResponse(refused=_refused(node)))
        return session.refused

    def _mark_attached(self, session: Session, _now: Now) -> None:
        if session.stream.nodes.get(session.node) is session:
            self._mark(session)

    def _mark(self, session: Session) -> None:
        session.stream.dirty[session.node] = None
        session.stream.wake()

    def _drop(self, session: Session) -> None:
        self._unsent.pop(session, None)
        stream = session.stream
        if stream.nodes.get(session.node) is session:
            del stream.nodes[session.node]
            stream.dirty.pop(session.node, None)
            stream.beat_acks.pop(session.node, None)
        if self._nodes.get(session.node) is session:
            del self._nodes[session.node]
        for reader in [each for each in self._readers.values() if each.node == session.node]:
            del self._readers[reader.call]
            reader.node_gone()


def _acknowledge(stream: AttachStream, node: NodeId, sequence: int) -> None:
    stream.put(wire.AttachResponse(report_ack=wire.ReportAck(node=node, sequence=sequence)))


def _refused(node: Node) -> wire.NodeRefused:
    return wire.NodeRefused(
        node=node.id,
        code="incarnation_over",
        message=f"the cell gave this node up as incarnation {node.incarnation} or an earlier one: "
        "stop its runs, report their ends, attach again as the next incarnation",
        next_incarnation=node.incarnation + 1,
    )


def _protocol(code: str, message: str) -> Refusal:
    return Refusal(Status.FAILED_PRECONDITION, code, message)
