"""What the agent's core takes (events) and gives (actions). Values only; this file never decides anything.

Order matters in two places. Persisted(version) may be said only when that state is on disk, and the core asks for a
start only after it. Adopted or Ended must be said for every entry of a restored state before Connected.
"""

from __future__ import annotations

from typing import dataclass_transform

import msgspec

from services.agent.fencing import Stamp
from services.agent.orders import DesiredSet, Order, Position
from services.agent.outbox import Relayed, Report, Saved
from services.agent.table import AgentState, Ending
from statemachines.values import Inventory, RunId


@dataclass_transform(frozen_default=True)
class Message(msgspec.Struct, frozen=True, gc=False):
    """An event or an action."""


# --- events: the stream


class Connected(Message):
    """A stream to a gateway is open."""


class Disconnected(Message):
    """It is not, any more."""


class Welcomed(Message):
    cell: str
    beat_every_ms: int


class Refused(Message):
    """This incarnation is lost or foreign; `next_incarnation` 0: no other one would be taken either."""

    code: str
    message: str
    next_incarnation: int


class Desired(Message):
    desired: DesiredSet


class BeatAcked(Message):
    sequence: int


class ReportAcked(Message):
    sequence: int


# --- events: this host


class Persisted(Message):
    """The state of this version is on disk: file and directory synced."""

    version: int


class PersistFailed(Message):
    """It is not, and the one before it still is."""

    version: int


class LaunchReady(Message):
    """What these runs execute is here."""

    digest: str


class LaunchMissing(Message):
    """It is gone for good."""

    digest: str
    message: str


class Strays(Message):
    """After a restart: runs that live here and that no table knows. Said before Connected."""

    runs: tuple[RunId, ...]


class Adopted(Message):
    """After a restart: its end is still to be told (`alive`), or nothing of it was ever started."""

    run: RunId
    alive: bool


class Started(Message):
    """Its processes exist."""

    run: RunId


class Ended(Message):
    """Nothing of the run lives here any more. `ending` is what its supervisor kept of the end."""

    run: RunId
    ending: Ending


class Reaped(Message):
    """Nothing of the run lives here, and nothing is known of how it ended."""

    run: RunId


class Probed(Message):
    """Devices of an ended run were looked at; `failures` names those that must not be granted again."""

    run: RunId
    failures: tuple[tuple[int, str], ...] = ()


class Observed(Message):
    """The marker watcher saw a committed checkpoint, or a run that ended left a report unsent."""

    saved: Saved | Relayed


class Quit(Message):
    """The operator ends this agent and wants nothing of it left: kill every run."""


class Tick(Message):
    """Time passed; see AgentCore.due_ms."""


CellEvent = Connected | Disconnected | Welcomed | Refused | Desired
RunEvent = Adopted | Started | Ended | Reaped | Probed
Event = (
    CellEvent | RunEvent | BeatAcked | ReportAcked | Persisted | PersistFailed | LaunchReady
    | LaunchMissing | Observed | Strays | Quit | Tick
)  # fmt: skip


# --- actions: this host


class Persist(Message):
    """Store the state whole and synced, then say Persisted; on weather PersistFailed."""

    version: int
    state: AgentState


class Renew(Message):
    """Write when the cell last acknowledged us, for supervisors and the next start. Need not be synced."""

    stamp: Stamp


class Fetch(Message):
    """Get the launch of this digest; answered by LaunchReady or LaunchMissing, however long it takes."""

    digest: str


class Start(Message):
    """Start the run; answered by Started or Ended."""

    order: Order


class Terminate(Message):
    """SIGTERM to the run's main process, and to it alone."""

    run: RunId


class Kill(Message):
    """SIGKILL all that is of the run; answered by Ended or Reaped once nothing lives. Asked again until then."""

    run: RunId


class Probe(Message):
    """Look at these devices after a hard kill; answered by Probed."""

    run: RunId
    devices: tuple[int, ...]


class Ask(Message):
    """Write the newest early save, and what rank 0 answered, where the trainer reads it."""

    run: RunId
    ask: int
    at_step: int
    stop_after: bool


class Forget(Message):
    """The run's files may go."""

    run: RunId


# --- actions: the stream


class SendAttach(Message):
    """The first message of a stream. `at` is the desired set that is on disk."""

    incarnation: int
    inventory: Inventory
    live_runs: tuple[RunId, ...]
    at: Position


class SendBeat(Message):
    incarnation: int
    sequence: int
    at_ms: int
    live_runs: int
    stall_ms: int


class SendReport(Message):
    report: Report


class SendAck(Message):
    """The desired set of `at` is on disk."""

    at: Position
    digest: bytes


class SendProbeFailed(Message):
    """A device must not be granted again. Said anew after each attach until a later beat is acknowledged."""

    incarnation: int
    at_ms: int
    device: int
    message: str


class Reconnect(Message):
    """Drop the stream and attach anew, with the driver's usual wait."""

    reason: str


Action = (
    Persist | Renew | Fetch | Start | Terminate | Kill | Probe | Ask | Forget | SendAttach | SendBeat | SendReport
    | SendAck | SendProbeFailed | Reconnect
)  # fmt: skip
