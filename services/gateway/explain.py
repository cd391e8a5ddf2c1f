"""Why a job is in its state, now or at an earlier moment: its view, its reason, and what happened, in order."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import chain

from services.gateway.driver import Driver
from services.gateway.lookback import Lookback
from services.gateway.names import find_job
from services.gateway.progress import ProgressTable
from services.gateway.refold import Moment, Walk, history, picked, refold
from services.gateway.refusal import Refusal, Status
from services.gateway.validation import check
from services.gateway.views import job_view
from services.runtime.ports import EventLog
from statemachines.job import Job
from tidemill.v1 import job_service_pb2 as jobs


def moment_of(*, at_ms: int, at_offset: int) -> Moment:
    """The moment that a request names; raises Refusal for two or a negative one."""
    if at_ms and at_offset:
        raise Refusal(Status.INVALID_ARGUMENT, "two_moments", "give at_ms or at_offset, not both")
    if at_ms < 0 or at_offset < 0:
        raise Refusal(
            Status.INVALID_ARGUMENT, "bad_moment", "at_ms and at_offset count from 0 upwards"
        )
    return Moment(at_ms=at_ms, at_offset=at_offset)


async def explain(
    driver: Driver, lookback: Lookback, request: jobs.ExplainJobRequest
) -> jobs.ExplainJobResponse:
    """Now: from the live fold. Earlier: the cell is folded again up to then, so that it is explained as it was known."""
    check(request)
    moment = moment_of(at_ms=request.at_ms, at_offset=request.at_offset)
    if moment.given:
        return await _at(driver, lookback, request.job, moment)
    core = driver.core
    job = find_job(core.cluster, request.job)
    view = core.reads.job(job.id)
    up_to = core.cluster.offset
    lines = await _history(driver, lookback, job, up_to)
    return jobs.ExplainJobResponse(job=view, history=lines, reason=view.reason)


async def _at(
    driver: Driver, lookback: Lookback, text: str, moment: Moment
) -> jobs.ExplainJobResponse:
    cell = driver.core.cluster.cell

    def work(log: EventLog, stop: threading.Event) -> tuple[jobs.ExplainJobResponse, Job, int]:
        with closing(lookback.snapshots()) as snapshots:
            cluster = refold(log, cell, moment, stop, snapshots=snapshots).cluster
        job = find_job(cluster, text)
        view = job_view(cluster, ProgressTable(), job)
        return jobs.ExplainJobResponse(job=view, reason=view.reason), job, cluster.offset

    response, job, up_to = await lookback.run(work)
    response.history.extend(await _history(driver, lookback, job, up_to))
    return response


async def _history(
    driver: Driver, lookback: Lookback, job: Job, up_to: int
) -> list[jobs.HistoryLine]:
    """What happened to the job: by the trail of the live fold where it reaches, by a walk where it does not."""
    trail, cell = driver.core.trail, driver.core.cluster.cell
    offsets = [each for each in trail.offsets(job.id) if each <= up_to]
    walked_to = -1 if trail.is_whole(job.id) else min(trail.since - 1, up_to)
    if job.id not in driver.core.cluster.jobs:
        walked_to = up_to  # It has left since, and its trail with it.

    def work(log: EventLog, stop: threading.Event) -> list[jobs.HistoryLine]:
        walked = Walk(log, cell).steps(stop, up_to=walked_to)
        return history(chain(walked, picked(log, offsets, stop)), job.id)

    return await lookback.run(work)
