"""Following jobs: a table that redraws on a terminal, a line a change in a pipe. Ctrl-C detaches, jobs go on."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import typer

from tidemill.cli import views
from tidemill.cli.frame import NO, Format, say
from tidemill.cli.output import (
    moment,
    plain,
    screen,
    style_of,
    table,
    write_csv_line,
    write_json_line,
    write_line,
)
from tidemill.client import ENDED_STATES
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill.client import Client
    from tidemill.v1 import job_service_pb2 as job_pb
    from tidemill.v1 import views_pb2

REDRAW_S = 0.25


def follow_list(client: Client, chosen: job_pb.JobFilter, output: Format) -> None:
    """Until Ctrl-C."""
    if output in {Format.TABLE, Format.WIDE} and sys.stdout.isatty():
        _redraw(client, chosen, wide=output is Format.WIDE)
        return
    for change in client.watch(chosen):
        if change.job.job:
            write_change(change.job, output)


def follow_to_end(client: Client, jobs: Sequence[str], output: Format) -> None:
    """Follow until all have ended, or wait for a person; exit code 1 unless all succeeded.

    Array elements belong to their array. A job that was submitted held is waited for: whoever did that will release it.
    """
    from tidemill.v1 import job_service_pb2 as job_pb

    said: dict[str, tuple[str, str]] = {}
    state: dict[str, str] = {}
    stuck: set[str] = set()
    listed = False
    for change in client.watch(job_pb.JobFilter(jobs=list(jobs))):
        view = change.job
        if view.job:
            state[view.job] = view.state
            waits = view.state == "held" and view.reason.code != "submitted_held"
            stuck = (stuck - {view.job}) | ({view.job} if waits else set())
            if said.get(view.job) != (view.state, view.reason.code) or output is Format.JSON:
                said[view.job] = (view.state, view.reason.code)
                write_change(view, output)
        listed = listed or change.current
        if listed and state and all(state[job] in ENDED_STATES or job in stuck for job in state):
            break
    for job in sorted(stuck):
        say(f"job {job} is held and goes on only when it is released: tidemill release {job}")
    if any(found != "succeeded" for found in state.values()):
        failed = next(job for job, found in state.items() if found != "succeeded")
        say(f"next: tidemill why {failed}")
        raise typer.Exit(NO)


def write_change(view: views_pb2.JobView, output: Format) -> None:
    """One change, one line."""
    match output:
        case Format.JSON:
            write_json_line(plain(view))
        case Format.NAME:
            print(view.job, flush=True)
        case Format.CSV:
            write_csv_line([view.job, view.state, view.changed_at_ms, view.reason.code])
            sys.stdout.flush()
        case Format.TABLE | Format.WIDE:
            time_of_day = moment(view.changed_at_ms or view.admitted_at_ms)[11:19]
            words = [time_of_day, view.job, view.state, views.progress(view), views.why(view)]
            text = "  ".join(word for word in words if word)
            write_line(screen(), text, style_of(view.state))
            sys.stdout.flush()


def _redraw(client: Client, chosen: job_pb.JobFilter, *, wide: bool) -> None:
    """Changes are taken in by a side thread; the screen is drawn at most four times a second."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    jobs: dict[str, views_pb2.JobView] = {}
    failure: list[TidemillError] = []
    lock = threading.Lock()

    def take_in() -> None:
        try:
            for change in client.watch(chosen):
                with lock:
                    if change.job.job:
                        jobs[change.job.job] = change.job
        except TidemillError as error:
            failure.append(error)

    threading.Thread(target=take_in, name="watch", daemon=True).start()
    console = screen()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while not failure:
            with lock:
                rows = sorted(
                    jobs.values(), key=lambda job: (job.state in ENDED_STATES, -job.changed_at_ms)
                )
            room = max(3, console.height - 3)
            note = Text(f"{min(len(rows), room)} of {len(rows)} jobs; Ctrl-C leaves", style="dim")
            live.update(Group(*table(rows[:room], views.JOBS, wide=wide), note), refresh=True)
            time.sleep(REDRAW_S)
    raise failure[0]
