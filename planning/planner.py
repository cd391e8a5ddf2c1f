"""The plan: heads of the line placed in order while they fit, the others told why not.

`Planner` keeps two indices of the fold (room, line) by what was touched; `plan` itself is pure over (state, now,
policy): it changes neither the cluster nor, in effect, the indices. The full planner replaces parts behind this door.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from planning import reasons
from planning.capacity import Capacity
from planning.decisions import Decision, Place, Wait
from planning.gang import place_gang
from planning.line import JobClass, Key, Line
from planning.restart import avoid, leave, master_port, restart_point
from statemachines.cluster import Cluster, Touched
from statemachines.job import Job
from statemachines.policy import Policy
from statemachines.values import JobId, NodeId, Placement, Reason, Resources


class Planner:
    """Plans for one cluster. The caller hands over what was touched before each plan."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._capacity = Capacity()
        self._line = Line()
        self._policy: Policy = cluster.policy
        self._borrowed: dict[NodeId, None] = {}
        # Ports that the plan at hand gives away, by the node that leads.
        self._ports: dict[NodeId, set[int]] = {}
        self._early: dict[JobId, None] = {}
        self._more = False
        self._starves_at: int | None = None
        self._rebuild(now_ms=cluster.at_ms)

    def refresh(self, touched: Touched) -> None:
        """Bring the indices up to date; call with everything touched since the last plan."""
        if self._policy != self._cluster.policy:
            self._policy = self._cluster.policy
            self._rebuild(now_ms=self._cluster.at_ms)
            return
        left = [self._capacity.refresh(self._cluster, node) for node in touched.nodes]
        for job in touched.jobs:
            self._refresh_job(job, self._cluster.at_ms)
        # With a node gone, what was a lack of room may have become a lack of nodes, which starves nobody.
        for shut in self._line.classes.values() if touched.queues or any(left) else ():
            shut.blocked = None

    def plan(self, now_ms: int, *, limit: int) -> list[Decision]:
        """Up to `limit` decisions; `next_due_ms` is now when more are waiting to be said."""
        self._give_back()
        self._ports.clear()
        for job in self._line.due(now_ms):
            self._refresh_job(job, now_ms)
        decisions: list[Decision] = []
        self._tell_early(decisions, now_ms, limit)
        self._place(decisions, now_ms, limit)
        self._more = len(decisions) >= limit
        return decisions

    def next_due_ms(self, now_ms: int) -> int | None:
        """The earliest time at which time alone can change the plan."""
        if self._more:
            return now_ms
        due = [at for at in (self._line.next_due_ms(), self._starves_at) if at is not None]
        return min(due) if due else None

    # --- keeping the indices

    def _rebuild(self, now_ms: int) -> None:
        self._capacity, self._line = Capacity(), Line()
        self._borrowed.clear()
        self._early.clear()
        for node in self._cluster.nodes:
            self._capacity.refresh(self._cluster, node)
        for job in self._cluster.jobs:
            self._refresh_job(job, now_ms)

    def _refresh_job(self, job_id: JobId, now_ms: int) -> None:
        early = self._line.refresh(job_id, self._cluster.jobs.get(job_id), self._policy, now_ms)
        self._early.pop(job_id, None)
        if early is not None and (early.reason is None or early.reason.code != "backoff"):
            self._early[job_id] = None

    def _give_back(self) -> None:
        for node in self._borrowed:
            self._capacity.refresh(self._cluster, node)
        self._borrowed.clear()

    # --- one plan

    def _tell_early(self, decisions: list[Decision], now_ms: int, limit: int) -> None:
        while self._early and len(decisions) < limit:
            job_id = next(iter(self._early))
            del self._early[job_id]
            decisions.append(Wait(job_id, reasons.backoff(self._cluster.jobs[job_id], now_ms)))

    def _place(self, decisions: list[Decision], now_ms: int, limit: int) -> None:
        """Heads in order; a class that fails is out until room grows, and its members are told."""
        heads: list[tuple[Key, JobId, JobClass]] = []
        for each in self._line.classes.values():
            head = each.head()
            assert head is not None, f"{each.shape} has no member, and should have left the line"
            heads.append((*head, each))
        heapify(heads)
        given: dict[str, tuple[int, int]] = {}
        placed: list[tuple[JobClass, tuple[Key, JobId]]] = []
        starving: list[Job] = []
        self._starves_at = None
        while heads and len(decisions) < limit:
            _, job_id, line = heappop(heads)
            job = self._cluster.jobs[job_id]
            reason = self._ahead(job, starving) or self._try(job, line, given, decisions)
            if reason is not None:
                if self._starves(job, reason, now_ms):
                    starving.append(job)
                self._tell(line, reason, decisions, limit)
                continue
            placed.append((line, line.pop()))
            head = line.head()
            if head is not None:
                heappush(heads, (*head, line))
        for line, entry in placed:
            line.push(*entry)

    def _try(
        self, job: Job, line: JobClass, given: dict[str, tuple[int, int]], decisions: list[Decision]
    ) -> Reason | None:
        over = reasons.over_limit(self._cluster, job, given)
        if over is not None:
            return over
        if line.blocked is not None and not self._roomier(line):
            return line.blocked
        placements, placed = self._search(job)
        if not placements:
            line.blocked, line.version = (
                reasons.no_room(self._cluster, job, placed),
                self._capacity.version,
            )
            return line.blocked
        line.blocked = None
        for queue in self._cluster.queue_line(job.spec.queue):
            devices, cpu_milli = given.get(queue.id, (0, 0))
            given[queue.id] = (devices + job.spec.devices, cpu_milli + job.spec.cpu_milli)
        resume = restart_point(self._cluster, job, placements)
        leads = placements[0].node
        ports = self._ports.setdefault(leads, set())
        port = master_port(self._cluster, job, leads, given=ports)
        ports.add(port)
        decisions.append(Place(job.id, placements, resume, port, _why(placements)))
        return None

    def _search(self, job: Job) -> tuple[tuple[Placement, ...], int]:
        """Placements, or none and how many members had a place; nodes to avoid are used when nothing else fits."""
        suspects, placed = avoid(self._cluster, job), 0
        placements: tuple[Placement, ...] = ()
        for avoided in dict.fromkeys((suspects | leave(self._cluster, job), suspects, frozenset())):
            placements, placed = place_gang(self._capacity, job, avoid=avoided)
            if placements:
                break
        for placement in placements:
            self._borrowed[placement.node] = None
        return placements, placed

    def _roomier(self, line: JobClass) -> bool:
        """Whether a node has grown since the class was blocked that would hold one of its members."""
        if not self._capacity.remembers(line.version):
            return True
        grown = self._capacity.grown_since(line.version)
        line.version = self._capacity.version
        return any(
            self._capacity.fits(node, role.resources) for node in grown for role in line.shape[1]
        )

    def _ahead(self, job: Job, starving: list[Job]) -> Reason | None:
        """Who must not be passed: what this job takes, one that starves could be waiting for."""
        head = next((each for each in starving if _competes(job, each)), None)
        return None if head is None else reasons.behind(head)

    def _starves(self, job: Job, reason: Reason, now_ms: int) -> bool:
        """Whether it lacks room that the cell has and has waited too long to be passed any more."""
        if reason.code != "waiting_for_capacity" or self._policy.starvation_after_ms <= 0:
            return False
        at = job.queued_at_ms + self._policy.starvation_after_ms
        if at <= now_ms:
            return True
        self._starves_at = min(at, self._starves_at or at)
        return False

    def _tell(self, line: JobClass, reason: Reason, decisions: list[Decision], limit: int) -> None:
        line.tell(reason.code)
        while line.untold and len(decisions) < limit:
            job = self._cluster.jobs[next(iter(line.untold))]
            del line.untold[job.id]
            if job.reason is None or job.reason.code != reason.code:
                decisions.append(Wait(job.id, reason))


def _competes(job: Job, head: Job) -> bool:
    """Whether the two may want the same devices; for work without devices, the same CPU and memory."""
    if not head.spec.devices:
        return True
    wanted = [role.resources for role in job.spec.roles if role.resources.devices]
    return any(_overlap(need, role.resources) for need in wanted for role in head.spec.roles)


def _overlap(need: Resources, other: Resources) -> bool:
    if not other.devices:
        return False
    one, two = need.device_models, other.device_models
    return not one or not two or not set(one).isdisjoint(two)


def _why(placements: tuple[Placement, ...]) -> Reason:
    members, nodes = len(placements), len({placement.node for placement in placements})
    return Reason(
        "tightest_fit",
        f"the tightest fit of {members} member{'s' * (members > 1)} on {nodes} node{'s' * (nodes > 1)}",
    )
