"""Planted bugs: known ways to be wrong, each put into the real code of this process only, to see that it is found.

A bug replaces one function while it is planted; production code carries no switch for it. `seed` is where it was found
last: it is tried first, and the bound of seeds holds from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from services.agent import core as agent_core
from services.agent import runs as agent_runs
from services.agent.table import Phase
from services.gateway import sessions, trainers
from services.health import parts, silence
from services.scheduler import attempts, draft, fencing, nodes, phases, reports, verdicts
from services.scheduler import trainers as leader_trainers
from simulation.nodes import Host
from statemachines import attempt as attempt_lifecycle
from statemachines import snapshot
from statemachines.attempt import AttemptState
from statemachines.cluster import Cluster
from statemachines.facts import NodeJoined
from statemachines.node import NodeState
from statemachines.values import JobId, NodeId

Plant = Callable[["Planting"], None]


class Planting:
    """Replaces attributes, and puts them back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`make` is given what is there, and answers what takes its place."""
        before = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        self._undo.append((owner, name, before))
        setattr(owner, name, make(before))

    def undo(self) -> None:
        """As it was."""
        for owner, name, before in reversed(self._undo):
            setattr(owner, name, before)
        self._undo.clear()


@dataclass(frozen=True)
class Bug:
    """One way to be wrong."""

    name: str
    summary: str
    plant: Plant
    seed: int = 1
    scenario: str = "anything"

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """While inside, the code is wrong."""
        planting = Planting()
        try:
            self.plant(planting)
            yield
        finally:
            planting.undo()


# --- the chain


def _chain_off(planting: Planting) -> None:
    """Readers take whatever comes, if only its term is not over."""

    def fold(self: Cluster, entry: Any) -> bool:
        self.head = entry.prev
        return original(self, entry)

    original = Cluster.fold
    planting.replace(Cluster, "fold", lambda _: fold)
    planting.replace(
        Cluster,
        "void_reason",
        lambda _: lambda self, entry: "" if entry.cell == self.cell else "another cell",
    )


def _term_ignored(planting: Planting) -> None:
    """A term that is over may write again; and nobody refuses to lead under it."""

    def void_reason(self: Cluster, entry: Any) -> str:
        return "" if entry.prev == self.head and entry.cell == self.cell else "does not extend"

    def fold(self: Cluster, entry: Any) -> bool:
        self.term = min(self.term, entry.term) if entry.prev == self.head else self.term
        return original(self, entry)

    original = Cluster.fold
    planting.replace(Cluster, "void_reason", lambda _: void_reason)
    planting.replace(Cluster, "fold", lambda _: fold)
    planting.replace(phases.Standby, "turn", _never_behind)
    planting.replace(phases.Opening, "turn", _never_over)


def _never_behind(turn: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any, timeout_s: float) -> Any:
        term, self.cluster.term = self.cluster.term, 0
        try:
            return turn(self, timeout_s)
        finally:
            self.cluster.term = max(term, self.cluster.term) if self.cluster.term else term

    return wrong


def _never_over(turn: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any, timeout_s: float) -> Any:
        self.cluster.term = min(self.cluster.term, self._term - 1)
        return turn(self, timeout_s)

    return wrong


# --- the leader


def _half_released(planting: Planting) -> None:
    """Of a gang that ends, only the first half gives its devices back."""

    def ended(original: Callable[..., None]) -> Callable[..., None]:
        def wrong(self: Cluster, fact: Any, by: str, at_ms: int) -> None:
            before = self.runs[fact.run]
            original(self, fact, by, at_ms)
            members = len([run for run in self.runs.values() if run.job == before.job])
            if members > 1 and before.rank * 2 >= members:
                self.usage[before.node].take(before)

        return wrong

    from statemachines import cluster as cluster_module

    table = cluster_module._HANDLERS  # noqa: SLF001 - a planted bug sits inside
    fact = next(kind for kind in table if kind.__name__ == "RunEnded")
    original = table[fact]
    planting.replace(cluster_module, "_HANDLERS", lambda _: {**table, fact: ended(original)})


def _quota_leak(planting: Planting) -> None:
    """What an ended attempt held stays charged to its queue."""

    def wrong(self: Cluster, job: Any, sign: int) -> None:
        if sign > 0:
            original(self, job, sign)

    original = Cluster._charge_queues  # noqa: SLF001 - a planted bug sits inside
    planting.replace(Cluster, "_charge_queues", lambda _: wrong)


def _position_first(planting: Planting) -> None:
    """Positions are written in an entry of their own, before the facts."""

    def wrong(self: draft.Draft) -> list[draft.Sealed]:
        if self._ranges and self._facts:
            facts, encoded = self._facts, self._encoded
            self._facts, self._encoded = [], []
            self._seal()
            self._facts, self._encoded = facts, encoded
        return original(self)

    original = draft.Draft.close
    planting.replace(draft.Draft, "close", lambda _: wrong)


def _old_checkpoint(planting: Planting) -> None:
    """A save of an attempt that is over counts as one of the present attempt."""

    def current(draft_: Any, job: str, _number: int) -> Any:
        return attempts.live(draft_.cluster, JobId(job))

    planting.replace(leader_trainers, "_current", lambda _: current)
    planting.replace(
        trainers.Trainers,
        "_current",
        lambda _: lambda self, caller: self._cluster.jobs.get(caller.attempt[0]),
    )


def _margin_ignored(planting: Planting) -> None:
    """The leader believes in a fence as soon as it may have struck, without its margin."""

    def wrong(cluster: Cluster, job: Any, run: Any) -> int | None:
        after = fencing.fence_after_ms(cluster, job)
        return None if after is None else max(run.lost_at_ms, cluster.term_opened_at_ms) + after

    planting.replace(fencing, "dead_at_ms", lambda _: wrong)


def _double_requeue(planting: Planting) -> None:
    """A job whose node is lost goes on elsewhere at once, whether or not its old runs may live."""

    def wrong(_job: Any, attempt: Any) -> bool:
        return bool(attempt.open == attempt.lost)

    planting.replace(attempts, "_over", lambda _: wrong)
    planting.replace(Cluster, "_attempt_ended", lambda _: _attempt_ended_anyway)
    from statemachines import cluster as cluster_module

    table = cluster_module._HANDLERS  # noqa: SLF001
    fact = next(kind for kind in table if kind.__name__ == "AttemptEnded")
    planting.replace(cluster_module, "_HANDLERS", lambda _: {**table, fact: _attempt_ended_anyway})


def _attempt_ended_anyway(self: Cluster, fact: Any, _by: str, at_ms: int) -> None:
    job = self._advance_job(fact, at_ms)
    attempt = attempt_lifecycle.advance(self._current(fact.job, fact.attempt), fact, at_ms)
    self._swap_attempt(attempt)
    self._charge_queues(job, -1)
    if attempt.open:
        self._touch_nodes(attempt)


def _stale_snapshot(planting: Planting) -> None:
    """A snapshot names the head that it should hold, of a state that is older."""
    last: dict[int, Any] = {}

    def wrong(original: Callable[[Cluster], Any]) -> Callable[[Cluster], Any]:
        def take(cluster: Cluster) -> Any:
            now = original(cluster)
            before = last.get(id(cluster), now)
            last[id(cluster)] = now
            stale = snapshot.decode(before.data, offset=now.offset)
            stale.head, stale.term = now.head, now.term
            return original(stale)

        return take

    planting.replace(phases, "take_snapshot", wrong)


# --- health


def _breaker_off(planting: Planting) -> None:
    """However many fall silent, each is given up."""
    planting.replace(silence.Silence, "_is_mass", lambda _: lambda _self, *_counts: False)
    planting.replace(silence.Silence, "_may_go", lambda _: lambda _self, *_node: True)


def _old_verdict(planting: Planting) -> None:
    """A verdict counts whatever incarnation it is about."""

    def known(draft_: Any, name: str, _incarnation: int) -> Any:
        return draft_.cluster.nodes.get(NodeId(name))

    planting.replace(verdicts, "_known", lambda _: known)


# --- the gateway


def _ack_before_durable(planting: Planting) -> None:
    """A trainer is told that its save is durable before it is."""

    def wrong(self: Any, call: int, records: Sequence[Any], answer: Any) -> None:
        self._effects.answers.append((call, answer))
        self._effects.publish(records, lambda _error, _now: None)

    planting.replace(trainers.Trainers, "_publish", lambda _: wrong)


def _beat_ack_of_lost(planting: Planting) -> None:
    """A beat is acknowledged though the log gave its node up."""

    def wrong(self: Any, session: Any) -> Any:
        return self._cluster.nodes.get(session.node)

    planting.replace(sessions.Sessions, "_standing", lambda _: wrong)
    planting.replace(sessions.Sessions, "_refuse_if_lost", lambda _: lambda _self, _session: False)


# --- the agent


def _fsync_skipped(planting: Planting) -> None:
    """The agent takes its state for stored when it is not: a restart finds an older one."""

    def wrong(original: Callable[..., None]) -> Callable[..., None]:
        def persisted(self: Host, version: int, state: Any) -> None:
            kept, self._disk = self._disk, state
            original(self, version, state)
            if version % 4:
                self._disk = kept

        return persisted

    planting.replace(Host, "_persisted", wrong)


def _stale_set(planting: Planting) -> None:
    """The agent follows any desired set, the older ones too."""

    def wrong(original: Callable[..., None]) -> Callable[..., None]:
        def follow(self: Any, desired: Any) -> None:
            self.at = min(self.at, desired.at)
            original(self, desired)

        return follow

    def update(original: Callable[..., Any]) -> Callable[..., Any]:
        def sent(self: Any, session: Any, now: Any) -> Any:
            session.stored = (0, 0)
            return original(self, session, now)

        return sent

    planting.replace(agent_core.AgentCore, "_follow", wrong)
    planting.replace(sessions.Sessions, "update", update)
    planting.replace(sessions.Sessions, "fresh", lambda _: lambda _self, _now: True)


def _double_start(planting: Planting) -> None:
    """A run that is found alive after a restart of the agent is started again."""

    def wrong(self: Any, entry: Any, _now: Any, *, alive: bool) -> None:
        self.unadopted.discard(entry.run)
        self._stirred = True
        if alive:
            self._put(msgspec.structs.replace(entry, phase=Phase.PENDING))

    planting.replace(agent_runs.Runs, "_adopt", lambda _: wrong)


def _lost_spool(planting: Planting) -> None:
    """The end of a run is reported once, and forgotten whether or not it was heard."""

    def wrong(original: Callable[..., int]) -> Callable[..., int]:
        def claim(self: Any, kind: Any, now: Any) -> int:
            sequence = original(self, kind, now)
            self.outbox.acknowledge(sequence)
            return sequence

        return claim

    planting.replace(agent_core.AgentCore, "_claim", wrong)


def _no_fence(planting: Planting) -> None:
    """The agent rides through any outage, whatever its runs allow."""
    from services.agent.orders import Order

    planting.replace(Order, "fenced_after_ms", lambda _: property(lambda _self: 0))


def _no_supervisor(planting: Planting) -> None:
    """Runs of an agent that is stopped are fenced by nobody."""
    planting.replace(Host, "_supervise", lambda _: lambda _self, _process, since_ms: None)  # noqa: ARG005


# --- defects that histories found once: each is what the code was before


def _boot_is_no_incarnation(planting: Planting) -> None:
    """An attach of another boot is a reboot, though it may be that of an earlier boot which came late."""
    original = reports._OF_NODES["node_attached"]  # noqa: SLF001 - a planted bug sits inside

    def attached(draft_: Any, report: Any) -> None:
        node = draft_.cluster.nodes.get(NodeId(report.node))
        inventory = nodes._inventory(report)  # noqa: SLF001
        same = node is not None and node.incarnation == report.incarnation
        if (
            node is None
            or not same
            or node.state is NodeState.LOST
            or node.inventory.boot_id == inventory.boot_id
        ):
            original(draft_, report)
            return
        nodes._rebooted(draft_, node)  # noqa: SLF001
        draft_.record(NodeJoined(node.id, report.incarnation, inventory))

    table = {**reports._OF_NODES, "node_attached": attached}  # noqa: SLF001
    planting.replace(reports, "_OF_NODES", lambda _: table)
    planting.replace(sessions, "another_boot", lambda _: lambda _recorded, _attaching: False)


def _reboot_explains_nothing(planting: Planting) -> None:
    """Members that failed because another's node went down had failed by themselves, once they were heard first."""

    def wrong(original: Callable[..., None]) -> Callable[..., None]:
        def after(draft_: Any, attempt: Any, ended: Any) -> None:
            if attempt.state is AttemptState.STOPPING:
                attempts.settle(draft_, attempt.job)
            else:
                original(draft_, attempt, ended)

        return after

    planting.replace(attempts, "_after", wrong)


def _given_up_by_word(planting: Planting) -> None:
    """How many nodes go within a minute is counted when it is said, not when it is stored."""

    def wrong(self: Any, name: str, now_ms: int) -> bool:
        said: dict[str, int] = self.__dict__.setdefault("_words", {})
        rules = self._rules
        recent = [at for at in said.values() if at > now_ms - rules.breaker_window_ms]
        total = len(self._nodes) + len(self._lost)
        most = max(rules.breaker_least - 1, total * rules.breaker_percent // 100)
        if name not in said and len(recent) >= most:
            return False
        said.setdefault(name, now_ms)
        return True

    planting.replace(silence.Silence, "_may_go", lambda _: wrong)


def _smaller_fault(planting: Planting) -> None:
    """What a device does next makes a fault smaller that the log does not show yet."""

    def wrong(original: Callable[..., None]) -> Callable[..., None]:
        def event(self: Any, device: Any, line: Any, signal: Any, at_ms: int) -> None:
            before = self._wanted.pop(device, None)
            original(self, device, line, signal, at_ms)
            if before is not None:
                self._wanted.setdefault(device, before)

        return event

    planting.replace(parts.Parts, "_event", wrong)


BUGS: Final[tuple[Bug, ...]] = (
    Bug("chain-off", "entries are taken whatever they extend", _chain_off, seed=4),
    Bug("term-ignored", "a term that is over goes on writing", _term_ignored),
    Bug("gang-half-released", "half of a gang keeps its devices", _half_released),
    Bug("quota-leak", "an ended attempt stays charged to its queue", _quota_leak),
    Bug("position-first", "input positions are written before the facts of the inputs", _position_first, seed=2),
    Bug("old-checkpoint", "a save of an old attempt is accepted", _old_checkpoint, scenario="partition"),
    Bug("fence-margin-ignored", "the leader does not wait longer than the agent", _margin_ignored, seed=11),
    Bug("restart-over-living", "a job restarts though its old runs may live", _double_requeue, seed=2),
    Bug("stale-snapshot", "a snapshot is one entry older than it says", _stale_snapshot, seed=3),
    Bug("breaker-off", "mass silence loses every silent node", _breaker_off, scenario="rack"),
    Bug("old-verdict", "a verdict on an old incarnation strikes the new one", _old_verdict, seed=2, scenario="late-verdicts"),
    Bug("ack-before-durable", "a save is acknowledged before it is stored", _ack_before_durable, seed=7),
    Bug("beat-ack-of-lost", "a lost node is told that it is well", _beat_ack_of_lost, scenario="freeze"),
    Bug("fsync-skipped", "the agent's state is not on disk when it says so", _fsync_skipped, seed=2, scenario="agent-restarts"),
    Bug("stale-set", "an older desired set is followed", _stale_set, seed=3, scenario="stale-sets"),
    Bug("double-start", "an adopted run is started again", _double_start),
    Bug("lost-spool", "the end of a run is not kept until it is acknowledged", _lost_spool, scenario="stale-sets"),
    Bug("no-fence", "an agent that is cut off does not fence itself", _no_fence, scenario="partition"),
    Bug("no-supervisor", "the runs of an agent that is stopped are fenced by nobody", _no_supervisor, scenario="freeze"),
)  # fmt: skip
# Real ones: without their bug, the same seeds must hold for ever.
ONCE: Final[tuple[Bug, ...]] = (
    Bug("boot-is-no-incarnation", "an attach of an earlier boot that comes late ends runs that live", _boot_is_no_incarnation, seed=76, scenario="late-verdicts"),
    Bug("reboot-explains-nothing", "a job is held because a node under it reboots", _reboot_explains_nothing, seed=10, scenario="kill-loop"),
    Bug("given-up-by-word", "a dead rack is given up faster than the breaker allows", _given_up_by_word, scenario="rack-dead"),
    Bug("smaller-fault", "a lesser event of a device hides the fault before it", _smaller_fault, scenario="xid-storm"),
)  # fmt: skip
BY_NAME: Final = {bug.name: bug for bug in (*BUGS, *ONCE)}
