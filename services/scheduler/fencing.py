"""When a run on a lost node counts as dead without a word from it: its agent has killed it on its own clock by then.

The agent of a node that is cut off for `fence_after` kills runs that must not overlap; the leader waits that long from
the loss, or from the start of the present term when that is later, plus a margin. Only ever reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from statemachines.cluster import Cluster
from statemachines.job import Job
from statemachines.run import Run
from statemachines.values import Reason


def fence_after_ms(cluster: Cluster, job: Job) -> int | None:
    """How long an agent may be cut off before it kills the job's runs; None: it never does."""
    if job.spec.overlap_safe:
        return None  # Rides through: an old attempt can do no harm.
    after = job.spec.fence_after_ms or cluster.policy.fence_after_ms
    return after if after > 0 else None


def dead_at_ms(cluster: Cluster, job: Job, run: Run) -> int | None:
    """When a lost run is known to have been killed by its agent; None: never, by time alone."""
    after = fence_after_ms(cluster, job)
    if after is None:
        return None
    since = max(run.lost_at_ms, cluster.term_opened_at_ms)
    return since + after + cluster.policy.fence_margin_ms


def waits_for_proof(cluster: Cluster, job: Job, lost: Sequence[Run]) -> Reason:
    """Why the job does not go on: its old runs may still live on nodes that are lost."""
    nodes = tuple(dict.fromkeys([run.node for run in lost]))
    names = ", ".join(nodes[:4]) + (", ..." if len(nodes) > 4 else "")
    vouch = f"`tidemill confirm-dead {nodes[0]}` ends the wait if you know that it is off"
    times = [dead_at_ms(cluster, job, run) for run in lost]
    known = [at for at in times if at is not None]
    if len(known) < len(times):
        return Reason(
            "waiting_for_old_runs",
            f"runs on lost {names} may still live, and this job never fences itself: waits for their nodes; {vouch}",
            nodes,
            len(lost),
        )
    wait_ms = max(known) - max(run.lost_at_ms for run in lost)
    return Reason(
        "waiting_for_old_runs",
        f"runs on lost {names} may still live; their agents will have killed them {wait_ms // 1000} s after the loss; "
        f"{vouch}",
        nodes,
        len(lost),
    )
