"""The marker watch of one run: where its checkpoints are, and what is claimed of one that was found.

It never decides whether a checkpoint counts: the leader does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Final

from services.agent.environment import Surroundings, environments
from services.agent.markers import Found, Watch
from services.agent.orders import Order
from services.agent.outbox import Saved
from statemachines.values import Reach, Tier
from tidemill.v1 import common_pb2

URI_MAX: Final = 4096
BYTES_MAX: Final = (1 << 63) - 1
TIERS: Final = {Reach.NODE: Tier.LOCAL, Reach.DOMAIN: Tier.PEER}


class Watching:
    """One run's watch. `look` may block: it reads what was saved."""

    def __init__(self, order: Order, watch: Watch, reach: Reach) -> None:
        self.job = order.job
        self._order = order
        self._watch = watch
        self._reach = reach

    def look(self, *, last: bool) -> Sequence[Saved]:
        """Claims about checkpoints that were committed since the last look."""
        return [
            Saved(
                job=self._order.job,
                attempt=self._order.attempt,
                step=found.step,
                uri=str(found.folder),
                bytes=found.bytes,
                tier=TIERS.get(self._reach, Tier.REMOTE),
                reach=self._reach,
                manifest=found.manifest,
            )
            for found in self._watch.look(last=last)
            if _can_be_told(found)
        ]


def _can_be_told(found: Found) -> bool:
    """A path of bytes that are no text, or too long for a report, could not be resumed from either."""
    uri = str(found.folder)
    return len(uri) <= URI_MAX and uri.isprintable() and found.bytes <= BYTES_MAX


def begin_watch(
    order: Order, launch: common_pb2.Launch, around: Surroundings, *, ignore_present: bool
) -> Watching:
    """Watch the directory that the launch names; $NAMES in it are those of the run's environment.

    Raises ValueError for a preset or a directory that cannot be.
    """
    root = launch.checkpoint_root
    [environment, *_] = environments(order, around, job=launch.env, checkpoint_root=root)
    known = dict(environment)
    directory = Path(
        launch.workdir or "/", Template(launch.marker.directory).safe_substitute(known)
    )
    if "\0" in str(directory):
        raise ValueError("the watched directory holds a NUL character; no path can")
    own = root or around.checkpoint_root
    inside = directory.is_relative_to(own)
    reach = Reach(known["TIDEMILL_CHECKPOINT_REACH"]) if inside else Reach.CELL
    watch = Watch(
        launch.marker.preset,
        directory,
        marker=launch.marker.marker,
        ignore_present=ignore_present,
    )
    return Watching(order, watch, reach)
