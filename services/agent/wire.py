"""Protobuf to the core's values and back; protobuf stops here. It never decides anything."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from services.agent import messages as m
from services.agent.counters import Crossing
from services.agent.links import LinkChange
from services.agent.orders import Action, DesiredSet, Order, Position
from services.agent.outbox import Relayed, Report, RunBegan, RunFinished, Saved
from services.runtime.ports import PortError
from statemachines.values import Grant, Inventory, ResumePoint, RunId
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2
from tidemill.v1 import node_service_pb2 as wire

MESSAGE_MAX: Final = 4096
_RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Of an action that goes to the gateway.
Sent = m.SendAttach | m.SendBeat | m.SendReport | m.SendAck | m.SendProbeFailed
# An answer that is the core's; output is read by the driver alone.
Heard = m.Welcomed | m.Refused | m.Desired | m.BeatAcked | m.ReportAcked


def event(answer: wire.AttachResponse) -> Heard | None:
    """What a gateway's answer says to the core; None for what does not concern it."""
    match answer.WhichOneof("kind"):
        case "beat_ack":  # By far the most.
            return m.BeatAcked(answer.beat_ack.sequence)
        case "welcome":
            return m.Welcomed(answer.welcome.cell, answer.welcome.beat_every_ms)
        case "refused":
            no = answer.refused
            return m.Refused(no.code, no.message, no.next_incarnation)
        case "desired":
            return m.Desired(desired_set(answer.desired))
        case "report_ack":
            return m.ReportAcked(answer.report_ack.sequence)
        case _:
            return None


class BadOrderError(PortError):
    """A gateway sent an order that cannot be followed; another gateway may do better."""


def desired_set(message: wire.DesiredSet) -> DesiredSet:
    """Raises BadOrderError for an order that asks neither to run nor to stop, or of a run with an impossible name."""
    return DesiredSet(
        at=Position(message.term, message.offset),
        full=message.full,
        changed=tuple(order(each) for each in message.changed),
        removed=tuple(RunId(run) for run in message.removed),
        digest=message.digest,
    )


def order(message: wire.RunOrder) -> Order:
    """One order, with the digest of the bytes that the gateway hashed."""
    resume = message.resume
    if not _RUN_NAME.fullmatch(message.run):
        raise BadOrderError(f"{message.run!r} is not the name of a run")
    return Order(
        run=RunId(message.run),
        job=message.job,
        attempt=message.attempt,
        rank=message.rank,
        action=_action(message),
        role=message.role,
        name=message.name,
        grace_ms=message.grace_ms,
        devices=tuple(Grant(grant.index, grant.milli) for grant in message.devices),
        cpu_milli=message.cpu_milli,
        memory_mib=message.memory_mib,
        launch=message.launch,
        members=message.members,
        processes=message.processes or 1,
        world_size=message.world_size,
        first_global_rank=message.first_global_rank,
        master_address=message.master_address,
        master_port=message.master_port,
        resume=ResumePoint(resume.step, resume.uri, resume.manifest, resume.attempt),
        token=message.token,
        fence_after_ms=message.fence_after_ms,
        overlap_safe=message.overlap_safe,
        save_ask=message.save_ask,
        save_at_step=message.save_at_step,
        stop_after_save=message.stop_after_save,
        gang_nodes=tuple(message.gang_nodes),
        started=message.started,
        digest=hashlib.sha256(message.SerializeToString(deterministic=True)).digest(),
    )


def request(node: str, action: Sent) -> wire.AttachRequest:
    """The message that says it."""
    match action:
        case m.SendBeat():  # By far the most; field by field takes half the time of keywords.
            message = wire.AttachRequest()
            beat = message.beat
            beat.node = node
            beat.incarnation = action.incarnation
            beat.sequence = action.sequence
            beat.at_ms = action.at_ms
            beat.live_runs = action.live_runs
            beat.stall_ms = action.stall_ms
            return message
        case m.SendAttach():
            return wire.AttachRequest(attach=_attach(node, action))
        case m.SendReport(report=claim):
            return wire.AttachRequest(report=report(node, claim))
        case m.SendAck(at=at, digest=digest):
            ack = wire.DesiredAck(node=node, term=at.term, offset=at.offset, digest=digest)
            return wire.AttachRequest(ack=ack)
        case m.SendProbeFailed():
            signal = telemetry_pb2.Signal(
                node=node,
                incarnation=action.incarnation,
                at_ms=action.at_ms,
                kind=telemetry_pb2.SIGNAL_KIND_PROBE_FAILED,
                device=action.device,
                message=action.message[:MESSAGE_MAX],
            )
            return wire.AttachRequest(signal=signal)


def _attach(node: str, action: m.SendAttach) -> wire.AttachNode:
    attached = reports_pb2.NodeAttached(
        inventory=inventory(action.inventory), live_runs=action.live_runs
    )
    return wire.AttachNode(
        node=node,
        incarnation=action.incarnation,
        attached=attached,
        term=action.at.term,
        offset=action.at.offset,
    )


def link_signal(node: str, incarnation: int, at_ms: int, change: LinkChange) -> wire.AttachRequest:
    """A link of this node is up or down."""
    signal = telemetry_pb2.Signal(
        node=node,
        incarnation=incarnation,
        at_ms=at_ms,
        kind=telemetry_pb2.SIGNAL_KIND_NIC_LINK,
        nic=change.nic,
        code="up" if change.up else "down",
        value=change.changes,
    )
    return wire.AttachRequest(signal=signal)


def counter_signal(
    node: str, incarnation: int, at_ms: int, crossing: Crossing
) -> wire.AttachRequest:
    """A counter of an interface of this node grew by too much, or its rate is too low."""
    signal = telemetry_pb2.Signal(
        node=node,
        incarnation=incarnation,
        at_ms=at_ms,
        kind=telemetry_pb2.SIGNAL_KIND_NIC_COUNTER,
        nic=crossing.nic,
        code=crossing.code,
        value=crossing.value,
        message=crossing.message,
    )
    return wire.AttachRequest(signal=signal)


def report(node: str, claim: Report) -> reports_pb2.Report:
    """One claim. Its principal is whom the gateway authenticated; this one only says whom it is about."""
    message = reports_pb2.Report(
        principal=common_pb2.Principal(name=f"node:{node}", method="node-token"),
        node=node,
        incarnation=claim.incarnation,
        sequence=claim.sequence,
        at_ms=claim.at_ms,
    )
    match claim.kind:
        case RunBegan(run=run):
            message.run_began.run = run
        case RunFinished() as end:
            message.run_finished.CopyFrom(
                reports_pb2.RunFinished(
                    run=end.run,
                    exit_code=end.exit_code,
                    signal=end.signal,
                    evidence=common_pb2.Evidence.Value(f"EVIDENCE_{end.evidence.name}"),
                    message=end.message[:MESSAGE_MAX],
                )
            )
        case Saved() as saved:
            message.saved.CopyFrom(_saved(node, saved))
        case Relayed(report=left):
            said = reports_pb2.Report.FromString(left)
            kind = said.WhichOneof("kind")
            assert kind is not None, "relay.py lets no empty report through"
            getattr(message, kind).CopyFrom(getattr(said, kind))
            message.at_ms = said.at_ms or claim.at_ms
    return message


def inventory(value: Inventory) -> common_pb2.Inventory:
    """What the node has, as it travels."""
    devices = [
        common_pb2.Device(
            index=device.index,
            model=device.model,
            uuid=device.uuid,
            memory_mib=device.memory_mib,
            simulated=device.simulated,
        )
        for device in value.devices
    ]
    nics = [
        common_pb2.Nic(name=nic.name, speed_mbps=nic.speed_mbps, up=nic.up, kind=nic.kind)
        for nic in value.nics
    ]
    return common_pb2.Inventory(
        address=value.address,
        cpu_milli=value.cpu_milli,
        memory_mib=value.memory_mib,
        devices=devices,
        nics=nics,
        labels=dict(value.labels),
        boot_id=value.boot_id,
        agent_version=value.agent_version,
    )


def _saved(node: str, saved: Saved) -> reports_pb2.Saved:
    return reports_pb2.Saved(
        job=saved.job,
        attempt=saved.attempt,
        step=saved.step,
        uri=saved.uri,
        bytes=saved.bytes,
        tier=common_pb2.Tier.Value(f"TIER_{saved.tier.name}"),
        reach=common_pb2.Reach.Value(f"REACH_{saved.reach.name}"),
        manifest=saved.manifest,
        by_marker=True,
        node=node,
    )


def _action(message: wire.RunOrder) -> Action:
    if message.action == wire.RUN_ACTION_RUN:
        return Action.RUN
    if message.action == wire.RUN_ACTION_STOP:
        return Action.STOP
    raise BadOrderError(f"{message.run}: an order with action {message.action} cannot be followed")
