"""A training session: what a trainer calls. Steps, saves, the resume point and its receipt, asks, the end.

Never blocks or kills a step because the gateway is away. Outside Tidemill every call works on a plain directory and
reports to nobody. It must never decide where to resume from inside a cell: the cell says so.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tidemill.training import checkpoint
from tidemill.training.checkpoint import Checkpoint, CheckpointError, Manifest, Staging
from tidemill.training.core import NEVER, Limits, TrainerCore
from tidemill.training.environment import Identity, ResumePoint, read_identity
from tidemill.training.gateway import Gateway, GrpcGateway
from tidemill.training.reporter import Loop, Reporter
from tidemill.v1 import common_pb2 as common_pb
from tidemill.v1 import reports_pb2 as reports_pb

COMMIT_TIMEOUT_S: Final = 600.0
Kind = TypeVar("Kind")
_log = logging.getLogger("tidemill.training")


def session(
    directory: str | Path | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    env: Mapping[str, str] | None = None,
    connect: Callable[[Identity], Gateway] = GrpcGateway,
    limits: Limits | None = None,
    drain_s: float = 30.0,
) -> Session:
    """The session of this process. `directory` is where checkpoints go outside Tidemill ("checkpoints").

    Say `rank` and `world_size` where a launcher inside the job does not set RANK and WORLD_SIZE. Raises ValueError
    naming what is wrong in the environment.
    """
    identity = read_identity(
        os.environ if env is None else env, directory=directory, rank=rank, world_size=world_size
    )
    return Session(identity, connect=connect, limits=limits or Limits(), drain_s=drain_s)


class Session:
    """One rank's session. Use it as a context manager; its calls are for one training thread.

    `drain_s` bounds how long the end of the session waits to send checkpoint reports to a gateway that is away.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        connect: Callable[[Identity], Gateway] = GrpcGateway,
        limits: Limits | None = None,
        drain_s: float = 30.0,
    ) -> None:
        self.identity = identity
        self._drain_s = drain_s
        self._loop = Loop()
        self._tries: Counter[int] = Counter()
        self._staged: dict[int, tuple[Staging, int]] = {}
        # The step that this process started from, the last one saved by it, and the last it tried to save.
        self._began = self._committed = self._left_save = -1
        # When the step under way began, and what of it was no work: waiting for others, saving.
        self._step_ns = time.perf_counter_ns()
        self._idle_ns = 0
        limits = limits or Limits()
        self._core = TrainerCore(identity.job, identity.attempt, identity.rank, limits)
        self._reporter: Reporter | None = None
        if identity.managed and identity.gateway:
            self._reporter = Reporter(identity, self._core, self._loop, connect=connect)
            self._reporter.start()
            atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what is owed (checkpoint reports, for at most `drain_s`) and end the side threads."""
        reporter, self._reporter = self._reporter, None
        if reporter is None:
            return
        atexit.unregister(self.close)
        if not reporter.close(drain_s=self._drain_s):
            where = self.identity.spool_dir or "memory, and are lost"
            _log.warning("the gateway is away: unsent checkpoint reports stay in %s", where)

    # ------------------------------------------------------------ the loop

    def step(self, step: int, /, **metrics: float) -> None:
        """Step `step` is done. Costs a few stores; a side thread reports at most once a second."""
        loop = self._loop
        loop.step = step
        loop.steps += 1
        if loop.measures:
            now_ns = time.perf_counter_ns()
            loop.busy_ns += now_ns - self._step_ns - self._idle_ns
            self._step_ns, self._idle_ns = now_ns, 0
        if metrics:
            loop.metrics = metrics

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what ends only when the other ranks come: an all-reduce, a barrier. So a slow node can be told.

        On a GPU, synchronise the device before it, or what the GPU still computes counts as waiting.
        """
        if not self._loop.measures:
            self._loop.measures, self._step_ns, self._idle_ns = True, time.perf_counter_ns(), 0
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._idle_ns += time.perf_counter_ns() - began_ns

    def phase(self, phase: str) -> None:
        """What the loop is busy with: "setup", "train", "eval", "save", "load"."""
        self._loop.phase = phase

    def should_save_now(self, step: int) -> bool:
        """Whether every rank saves after this step because the cell asked for it. One comparison."""
        return step == self._loop.save_at and step > self._left_save

    def should_stop(self, step: int) -> bool:
        """Whether to leave the loop: the asked save has been tried, and the attempt is to end. One comparison."""
        return min(step, self._left_save) >= self._loop.stop_at

    @property
    def stopping(self) -> bool:
        """Whether a stop is agreed upon; `should_stop` tells at which step."""
        return self._loop.stop_at != NEVER

    @property
    def advised_interval(self) -> float:
        """Advised seconds between saves; 0.0 until the cell knows. The same on no two ranks: let rank 0 decide."""
        return self._core.advised_interval_ms / 1000

    def finished(self, step: int) -> None:
        """Training is complete. Without it, an end that was asked for does not count as success."""
        if self.identity.rank == 0:
            self._report(reports_pb.Report(finished=self._about(reports_pb.Finished, step)))

    # ------------------------------------------------------------ resume

    def resume_point(self) -> ResumePoint:
        """Where to start from: what the cell decided; outside Tidemill the newest checkpoint that verifies."""
        if self.identity.managed:
            return self.identity.resume
        found = checkpoint.newest(self.identity.checkpoint_dir)
        if found is None:
            return ResumePoint()
        return ResumePoint(found.step, found.path.as_uri(), found.digest)

    @contextmanager
    def load(self, *, wait_s: float = 20.0) -> Iterator[Checkpoint | None]:
        """The verified checkpoint to load, None to start from the beginning; sends the receipt afterwards.

        Each rank hashes the files of its own rank, all check the sizes. What fails to verify or to load is reported,
        so that the next attempt falls back one, and raised. `wait_s` allows for file systems that show files late.
        A checkpoint that is not on a file system raises ValueError at once: load it by `resume_point`.
        """
        point = self.resume_point()
        path = point.path
        self.phase("load")
        try:
            yield self._verified(path, point, wait_s) if point else None
        except Exception as error:
            # Running out of memory says nothing about the checkpoint.
            if point and not isinstance(error, MemoryError):
                self.load_failed(point.step, f"{type(error).__name__}: {error}")
            raise
        self.resumed(point.step)

    def resumed(self, step: int) -> None:
        """The receipt: training goes on from `step`. Any rank that loaded another step than decided says so."""
        point = self.identity.resume if self.identity.managed else ResumePoint(step)
        self._loop.step = step
        self._began = step if step > 0 else -1
        self.phase("train")
        if self.identity.rank != 0 and step == point.step:
            return
        receipt = self._about(reports_pb.Resumed, step)
        if step == point.step:
            receipt.uri, receipt.manifest = point.uri, point.manifest
        self._report(reports_pb.Report(resumed=receipt))

    def load_failed(self, step: int, message: str) -> None:
        """The checkpoint of `step` could not be loaded; the next attempt falls back one."""
        failed = self._about(reports_pb.LoadFailed, step, message=message[:4096])
        self._report(reports_pb.Report(load_failed=failed))

    # ------------------------------------------------------------ save

    @contextmanager
    def save(
        self,
        step: int,
        *,
        data_state: bool = False,
        shared: bool = False,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> Iterator[Path]:
        """Yields the directory for this rank's files; every rank calls it for the same steps.

        With `shared` all ranks write into one directory. Rank 0 returns when the checkpoint is committed. What the
        block raises is reported and raised; a commit that fails is reported and logged, and training goes on.
        `data_state`: the position of the data loader is inside.
        """
        before, self._loop.phase = self._loop.phase, "save"
        began_ns = time.perf_counter_ns()
        try:
            directory = self.save_started(step, shared=shared)
            try:
                yield directory
            except BaseException as error:
                self.save_failed(step, f"{type(error).__name__}: {error}")
                raise
            self.saved(step, data_state=data_state, commit_timeout_s=commit_timeout_s)
        finally:
            self._loop.phase = before
            self._idle_ns += time.perf_counter_ns() - began_ns

    def save_started(self, step: int, *, shared: bool = False) -> Path:
        """The directory to write into; then `saved` or `save_failed`, from any thread.

        Raises OSError, reported as a failed save, when there can be none.
        """
        if step <= self._began:
            raise CheckpointError(
                f"step {step} is not above {self._began}, where this attempt began"
            )
        self._tries[step] += 1
        staging = Staging(self.identity, step, tries=self._tries[step], shared=shared)
        if staging.passed is not None:
            why = "step %d: this attempt has saved step %d already; what is saved now is dropped"
            _log.warning(why, step, staging.passed.step)
        elif self.identity.rank == 0:
            self._report(reports_pb.Report(save_began=self._about(reports_pb.SaveBegan, step)))
        try:
            directory = staging.begin()
        except (OSError, CheckpointError) as error:
            self.save_failed(step, str(error))
            raise
        self._staged[step] = (staging, time.monotonic_ns())
        return directory

    def saved(
        self,
        step: int,
        *,
        data_state: bool = False,
        load_ms: int = 0,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> Manifest | None:
        """This rank has written everything. Rank 0 commits and reports; None when that failed or on other ranks.

        Where the attempt has saved this step or a later one already, rank 0 reports that one: a process that died
        between a commit and its report told nobody.
        """
        if step not in self._staged:
            raise CheckpointError(
                f"step {step}: save_started was not called, or it has ended already"
            )
        staging, began_ns = self._staged.pop(step)
        try:
            manifest = self._end_save(staging, data_state=data_state, timeout_s=commit_timeout_s)
        except (OSError, CheckpointError) as error:
            _log.exception("the checkpoint of step %d was not saved", step)
            self._note_failed(step, str(error))
            return None
        self._note_attempted(step)
        if manifest is not None:
            self._report(self._saved_report(manifest, began_ns, load_ms))
        if manifest is not None and staging.passed is None:
            checkpoint.sweep(self.identity.checkpoint_dir, below=self._committed)
            self._committed = max(self._committed, step)
        return manifest

    def save_failed(self, step: int, message: str) -> None:
        """This rank could not write its part."""
        self._staged.pop(step, None)
        self._note_failed(step, message)

    def removed(self, step: int) -> None:
        """The checkpoint of `step` is gone. Only steps that the registry released may be removed."""
        self._report(
            reports_pb.Report(removed=reports_pb.Removed(job=self.identity.job, step=step))
        )

    def verify(self, path: str | Path, *, manifest: str = "") -> Manifest:
        """Recompute every hash of a checkpoint; raises CheckpointError."""
        return checkpoint.verify(path, manifest=manifest)

    # ------------------------------------------------------------ inside

    def _end_save(self, staging: Staging, *, data_state: bool, timeout_s: float) -> Manifest | None:
        """On rank 0 the checkpoint that is there now. Raises OSError, CheckpointError."""
        if staging.passed is not None:
            staging.drop()
        else:
            staging.finish()
        if self.identity.rank != 0:
            return None
        return staging.passed or staging.commit(data_state=data_state, timeout_s=timeout_s)

    def _verified(self, path: Path, point: ResumePoint, wait_s: float) -> Checkpoint:
        me = self.identity
        if not path.parent.is_dir():
            raise CheckpointError(
                f"{path} is not on this node; is the checkpoint root shared between nodes?"
            )
        sizes = checkpoint.verify(path, manifest=point.manifest, ranks=(), wait_s=wait_s)
        if sizes.step != point.step:
            raise CheckpointError(f"{path} holds step {sizes.step}, not {point.step}")
        ranks = range(me.rank, max(sizes.world_size, me.rank + 1), me.world_size)
        manifest = checkpoint.verify(path, manifest=point.manifest, ranks=ranks, wait_s=wait_s)
        return Checkpoint(manifest.step, path, manifest)

    def _note_attempted(self, step: int) -> None:
        self._left_save = max(self._left_save, step)
        if self._reporter is not None:
            self._reporter.save_attempted(step)

    def _note_failed(self, step: int, message: str) -> None:
        self._note_attempted(step)
        failed = self._about(reports_pb.SaveFailed, step, message=message[:4096])
        self._report(reports_pb.Report(save_failed=failed))

    def _saved_report(self, manifest: Manifest, began_ns: int, load_ms: int) -> reports_pb.Report:
        saved = self._about(
            reports_pb.Saved,
            manifest.step,
            uri=manifest.path.as_uri(),
            bytes=manifest.bytes,
            tier=common_pb.TIER_LOCAL if self.identity.reach == "node" else common_pb.TIER_REMOTE,
            reach=common_pb.Reach.Value(f"REACH_{self.identity.reach.upper()}"),
            load_ms=load_ms,
            save_ms=(time.monotonic_ns() - began_ns) // 1_000_000,
            manifest=manifest.digest,
            data_state=manifest.data_state,
            node=self.identity.node,
        )
        return reports_pb.Report(saved=saved)

    def _about(self, kind: Callable[..., Kind], step: int, **rest: Any) -> Kind:
        """A report of `kind` about a step of this attempt."""
        return kind(job=self.identity.job, attempt=self.identity.attempt, step=step, **rest)

    def _report(self, report: reports_pb.Report) -> None:
        if self._reporter is not None:
            report.at_ms = time.time_ns() // 1_000_000
            self._reporter.report(report)
