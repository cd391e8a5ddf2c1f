"""The gateway's rules: calls, agents' messages and entries of the log in; writes, answers and messages out.

Sans-I/O: no clock, thread, randomness or network. One thread calls it; after each input the driver takes the effects,
and it ticks when `effects.due_ms()` says so. What a user sees comes from the fold, what a caller is promised from the
log: nothing is called durable before it is, nothing decided before the fold shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from google.protobuf.message import Message

from services.gateway.agents import Agents
from services.gateway.auth import Caller
from services.gateway.beats import Beats
from services.gateway.changes import ChangeRequest, change_of
from services.gateway.effects import Effects, Now
from services.gateway.names import Selection
from services.gateway.output import OutputReader
from services.gateway.pending import Requests, Waiter, Wish
from services.gateway.progress import ProgressTable
from services.gateway.reads import Reads
from services.gateway.record import record
from services.gateway.sessions import Sessions
from services.gateway.trail import Trail
from services.gateway.trainers import Trainers
from services.gateway.validation import check, check_submission
from services.gateway.watch import Watcher, Watchers
from services.runtime import ids, topics
from services.runtime.tokens import job_token
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.facts import (
    JobAdmitted,
    JobRetired,
    NodeJoined,
    PolicyApplied,
    RequestAccepted,
    RequestRefused,
)
from statemachines.values import JobId
from tidemill.v1 import common_pb2, requests_pb2
from tidemill.v1 import job_service_pb2 as jobs

_DECISIONS: Final = (JobAdmitted, RequestAccepted, RequestRefused)


class GatewayCore:
    """One gateway of a cell. `new_id` makes an id for requests that have none; `cluster` must be made to track."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str,
        cell_key: bytes,
        new_id: Callable[[], str],
        beat_partitions: int = 1,
        version: str = "",
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.effects = Effects()
        self.progress = ProgressTable()
        self.requests = Requests(cluster, self.effects)
        self.sessions = Sessions(cluster, self.effects, token_of=partial(job_token, cell_key))
        beats = Beats(
            self.effects,
            gateway=name,
            partitions=beat_partitions,
            published=self.sessions.beats_published,
        )
        self.agents = Agents(self.sessions, self.effects, beats, cluster, gateway=name)
        self.trainers = Trainers(
            cluster,
            self.effects,
            self.progress,
            gateway=name,
            token_of=partial(job_token, cell_key),
        )
        self.watchers = Watchers(cluster)
        self.reads = Reads(cluster, self.progress, version=version)
        self.trail = Trail(cluster)
        self._new_id = new_id

    # --- the log

    def fold(self, entry: Entry) -> bool:
        """Take an entry of the log; whether it was accepted."""
        if not self.cluster.fold(entry):
            return False
        for recorded in entry.facts:
            fact = recorded.fact
            if isinstance(fact, _DECISIONS):
                self.requests.decided(fact.request, self.cluster.answers[fact.request])
            elif isinstance(fact, NodeJoined):
                self.sessions.joined(fact.node)
            elif isinstance(fact, PolicyApplied):
                self.sessions.everyone()
            elif isinstance(fact, JobRetired):
                self.progress.forget(fact.job)
        self.trail.folded(self.cluster, entry)
        touched = self.cluster.take_touched()
        self.sessions.touched(touched.nodes)
        self.watchers.changed(touched.jobs, self.reads.line)
        return True

    def log_read(self, now: Now) -> None:
        """The log was read to its end at some moment since the last entry was taken."""
        self.sessions.log_read(now)

    # --- jobs

    def submit(
        self,
        call: int,
        caller: Caller,
        request: jobs.SubmitJobRequest,
        now: Now,
        *,
        deadline_ms: int = 0,
    ) -> None:
        """Answers SubmitJobResponse: admitted, or durable when the time is nearly over. Raises Refusal."""
        check_submission(request)
        asked = request.request_id or self._new_id()
        job = ids.job_id(principal=caller.principal, request=asked)
        blob = request.launch.SerializeToString(deterministic=True)
        submit = requests_pb2.SubmitJob(job=job, spec=request.spec, count=request.count)
        submit.spec.launch = ids.blob_digest(blob)
        wish = self._wish(caller, asked, job, now, "submit_job", submit, blobs=(blob,))
        waiter = Waiter(
            call,
            accepted=lambda: self._admitted(job),
            durable=lambda: jobs.SubmitJobResponse(job=job, status=jobs.SUBMIT_STATUS_DURABLE),
            durable_only=request.durable_only,
        )
        self.requests.ask(wish, waiter, now, deadline_ms=deadline_ms)

    def _admitted(self, job: JobId) -> jobs.SubmitJobResponse:
        """The number is that of the first of an array; 0 once the job has left hot state."""
        known = self.cluster.jobs.get(job) or self.cluster.jobs.get(ids.array_element(job, 0))
        number = known.number if known is not None else 0
        return jobs.SubmitJobResponse(job=job, status=jobs.SUBMIT_STATUS_ADMITTED, number=number)

    def change(
        self, call: int, caller: Caller, request: ChangeRequest, now: Now, *, deadline_ms: int = 0
    ) -> None:
        """Answers with what the decision left; raises Refusal."""
        check(request)
        change = change_of(self.reads, caller, request)
        asked = request.request_id or self._new_id()
        wish = self._wish(caller, asked, change.target, now, change.kind, change.wish)
        self.requests.ask(wish, Waiter(call, change.accepted), now, deadline_ms=deadline_ms)

    def watch(self, request: jobs.WatchJobsRequest) -> Watcher:
        """Views of what matches, then changes; give it back with `watchers.remove`. Raises Refusal."""
        check(request)
        selection = Selection(self.cluster, request.filter)
        watcher = Watcher(self.effects, self.cluster, selection, self.reads.line)
        self.watchers.add(watcher)
        return watcher

    def read_output(self, caller: Caller, request: jobs.ReadLogsRequest) -> OutputReader:
        """What a run printed, from its agent; give it back with `sessions.stop_reading`. Raises Refusal."""
        run = self.reads.run_of(caller, request)
        reader = OutputReader(self.effects, call=self._new_id(), run=run.id, node=run.node)
        self.sessions.read_log(reader, follow=request.follow, tail_bytes=request.tail_bytes)
        return reader

    # --- requests in general

    def _wish(
        self,
        caller: Caller,
        asked: str,
        target: str,
        now: Now,
        kind: str,
        message: Message,
        *,
        blobs: tuple[bytes, ...] = (),
    ) -> Wish:
        """A request of the kind that is so named in the oneof of Request; raises Refusal when it is too large."""
        key = ids.request_key(client=caller.principal, request=asked)
        request = requests_pb2.Request(
            request=key,
            principal=common_pb2.Principal(name=caller.principal, method=caller.method),
            gateway=self.name,
            at_ms=now.wall_ms,
        )
        getattr(request, kind).CopyFrom(message)
        stored = record(topics.REQUESTS, target, request)
        return Wish(key, ids.request_digest(message), stored, blobs)
