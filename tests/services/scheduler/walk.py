"""A random history of a cell: a seed chooses inputs that mostly fit the present state, and some that fit nothing.

Looks at the leader's state to find something to talk about, so that rare states are reached within a hundred inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from statemachines.attempt import Attempt, AttemptState
from statemachines.run import Run, RunState
from statemachines.values import Evidence, JobSpec, RetryPolicy
from tests.services.scheduler.cell import POLICY, Cell, apply, spec, uri
from tidemill.v1 import common_pb2, reports_pb2, requests_pb2, verdicts_pb2

JOBS = ("a", "b", "c", "d", "e")
NODES = ("n0", "n1", "n2", "n3")
QUEUES = ("default", "team", "small")
ENDS = [each for each in Evidence if each is not Evidence.OPERATOR_SAID]
TIMES_MS = (0, 1, 500, 5_000, 31_000, 71_000, -10_000, 200_000)


class Walk:
    """One history. `go` takes so many steps of the walk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cell = Cell(policy=msgspec.structs.replace(POLICY, retire_after_ms=120_000))
        # The health processor keeps its breaker; here verdicts are drawn.
        self.cell.watcher_ignores("I:")
        self.cell.nodes("n0", "n1", devices=2)
        self._ways: list[tuple[int, Callable[[], None]]] = [
            (8, self._submit),
            (4, self._ask_job),
            (3, self._ask_fleet),
            (2, self._remove_left),
            (4, self._attach),
            (14, self._begin),
            (7, self._end),
            (14, self._train),
            (5, self._judge_node),
            (5, self._judge_part),
            (2, self._hostile),
            (20, self._step),
            (1, self._take_over),
        ]

    def go(self, length: int) -> None:
        """Live on; fails at the first step that breaks something."""
        weights = [weight for weight, _ in self._ways]
        for _, way in self.random.choices(self._ways, weights, k=length):
            way()
        self.cell.run(after_ms=200_000)

    # --- people

    def _submit(self) -> None:
        job, r = self.random.choice(JOBS), self.random
        wanted = self._spec() if r.random() < 0.9 else spec(members=0, devices=-1)
        self.cell.submit(job, wanted, count=r.choice((0, 0, 0, 2)))

    def _spec(self) -> JobSpec:
        r = self.random
        return spec(
            queue=r.choice(QUEUES) if r.random() < 0.3 else "default",
            members=r.choice((1, 1, 2, 3)),
            devices=r.choice((0, 1, 1, 2)),
            overlap_safe=r.random() < 0.5,
            held=r.random() < 0.1,
            max_run_ms=r.choice((0, 0, 0, 40_000)),
            fence_after_ms=r.choice((0, 0, -1, 5_000)),
            retry=RetryPolicy(max_attempts=r.choice((-1, 0, 2, 4))),
            keep_checkpoints=r.choice((0, 1, 3)),
        )

    def _ask_job(self) -> None:
        job = self.random.choice([*JOBS, *self.cell.cluster.jobs])
        self.cell.ask(
            self.random.choice(
                [
                    requests_pb2.CancelJob(job=job),
                    requests_pb2.HoldJob(job=job),
                    requests_pb2.ReleaseJob(job=job),
                    requests_pb2.RequeueJob(job=job),
                    requests_pb2.RequeueJob(job=job, save_first=True),
                    requests_pb2.RequeueJob(job=job, save_first=True),
                ]
            )
        )

    def _ask_fleet(self) -> None:
        r = self.random
        node, queue = r.choice(NODES), r.choice(QUEUES)
        self.cell.ask(
            r.choice(
                [
                    requests_pb2.CordonNode(node=node),
                    requests_pb2.UncordonNode(node=node),
                    requests_pb2.UncordonNode(node=node),
                    requests_pb2.DrainNode(node=node, within_ms=r.choice((0, 60_000))),
                    requests_pb2.ConfirmNodeDead(node=node),
                    requests_pb2.RemoveNode(node=node),
                    apply(queue, job_limit=r.choice((-1, 2)), device_limit=r.choice((-1, 3))),
                    apply("small", "team"),
                    requests_pb2.RemoveQueue(queue=r.choice(("team", "small"))),
                    requests_pb2.AcceptInputGap(topic="reports", to_offset=5, message="x"),
                ]
            )
        )

    def _remove_left(self) -> None:
        """All is done on a node of a gang, which is taken away; the gang's other members go on, or fail."""
        runs = self._runs(RunState.RUNNING)
        apart = [run for run in runs if any(o.job == run.job and o.node != run.node for o in runs)]
        if apart:
            gone = self.random.choice(apart)
            for run in self._runs(RunState.PLACED, RunState.RUNNING, RunState.LOST):
                if run.node == gone.node:
                    self.cell.ended(run.id)
            self.cell.ask(requests_pb2.CordonNode(node=gone.node))
            self.cell.ask(requests_pb2.RemoveNode(node=gone.node))
            if self.random.random() < 0.3:
                self.cell.ended(self.random.choice(apart).id, 1)

    # --- agents

    def _attach(self) -> None:
        r, name = self.random, self.random.choice(NODES)
        node = self.cell.cluster.nodes.get(name)  # type: ignore[call-overload]
        incarnation = max(1, (node.incarnation if node else 1) + r.choice((0, 1, 1, -1)))
        self.cell.attach(
            name,
            devices=r.choice((2, 2, 3)),
            incarnation=incarnation,
            boot=r.choice(("x", "x", "x", "y")),
            nics=("ib0", "ib1"),
        )

    def _runs(self, *states: RunState) -> list[Run]:
        return [run for run in self.cell.cluster.runs.values() if run.state in states]

    def _begin(self) -> None:
        for run in self._runs(RunState.PLACED):
            if self.random.random() < 0.8:
                self.cell.began(run.id)

    def _end(self) -> None:
        r = self.random
        runs = self._runs(*RunState)
        if not runs:
            return
        run = r.choice(runs)
        evidence = Evidence.EXIT_STATUS if r.random() < 0.7 else r.choice(ENDS)
        code = r.choice((0, 0, 0, 1, 16, 17))
        for each in runs if r.random() < 0.5 else [run]:
            if each.job == run.job:
                self.cell.ended(each.id, code, signal=r.choice((0, 0, 0, 9)), evidence=evidence)

    # --- trainers

    def _train(self) -> None:
        tried = [attempts[-1] for attempts in self.cell.cluster.attempts.values()]
        live = [attempt for attempt in tried if attempt.state is not AttemptState.ENDED]
        if not live:
            return
        attempt = self.random.choice(live)
        number = attempt.number if self.random.random() < 0.9 else attempt.number - 1
        self._say(attempt, max(1, number))

    def _say(self, attempt: Attempt, number: int) -> None:
        r, cell, job = self.random, self.cell, attempt.job
        step = max(0, cell.job(job).durable_step) + r.choice((0, 1, 1, 2))
        resume = attempt.resume
        if attempt.ask and not attempt.ask_step and r.random() < 0.5:
            answer = reports_pb2.SaveAnswered(
                job=job, attempt=number, ask=attempt.ask, at_step=step + 1
            )
            cell.report(answer)
            return
        match r.randrange(10):
            case 0 | 1:
                cell.report(reports_pb2.SaveBegan(job=job, attempt=number, step=step))
            case 2 | 3 | 4:
                reach = r.choice(("CELL", "CELL", "NODE", "UNSPECIFIED"))
                cell.saved(job, step, attempt=number, reach=reach, node=r.choice(NODES))
            case 5:
                known = cell.cluster.checkpoints.get(job, ())
                at = r.choice(known).step if known else step
                cell.report(reports_pb2.Removed(job=job, step=at))
                cell.report(reports_pb2.SaveFailed(job=job, attempt=number, step=step))
            case 6:
                where = resume.uri if r.random() < 0.8 else uri(job, 9, 9)
                cell.report(
                    reports_pb2.Resumed(
                        job=job, attempt=number, step=resume.step, uri=where, manifest=resume.manifest
                    )
                )  # fmt: skip
            case 7:
                cell.report(reports_pb2.LoadFailed(job=job, attempt=number, step=resume.step))
            case 8:
                ask = max(1, attempt.ask)
                cell.report(
                    reports_pb2.SaveAnswered(job=job, attempt=number, ask=ask, at_step=step)
                )
            case _:
                cell.report(reports_pb2.Finished(job=job, attempt=number, step=step))

    # --- health

    def _judge_node(self) -> None:
        r, node = self.random, self.random.choice(NODES)
        known = self.cell.cluster.nodes.get(node)  # type: ignore[call-overload]
        now = (known.incarnation if known else 1) + (r.random() < 0.1)
        jobs = [job for job in self.cell.cluster.jobs.values() if job.attempt]
        job = r.choice(jobs) if jobs else None
        self.cell.verdict(
            r.choice(
                [
                    verdicts_pb2.NodeSuspect(node=node, incarnation=now),
                    verdicts_pb2.NodeBack(node=node, incarnation=now),
                    verdicts_pb2.NodeGone(node=node, incarnation=now),
                    verdicts_pb2.MassSilence(incident="i"),
                    verdicts_pb2.SilenceOver(incident="i"),
                    verdicts_pb2.SilenceOver(incident="i"),
                    verdicts_pb2.JobHung(
                        job=job.id if job else "a", attempt=job.attempt if job else 1
                    ),
                ]
            )
        )

    def _judge_part(self) -> None:
        r, node = self.random, self.random.choice(NODES)
        known = self.cell.cluster.nodes.get(node)  # type: ignore[call-overload]
        condition = r.choice([*verdicts_pb2.Condition.values(), verdicts_pb2.CONDITION_HEALTHY])
        reason = common_pb2.Reason(code="test")
        now = known.incarnation if known else 1
        self.cell.verdict(
            r.choice(
                [
                    verdicts_pb2.DeviceVerdict(
                        node=node, incarnation=now, index=r.randrange(2), condition=condition, reason=reason
                    ),
                    verdicts_pb2.NicVerdict(
                        node=node, incarnation=now, nic=r.choice(("ib0", "ib1")), condition=condition, reason=reason
                    ),
                ]
            )
        )  # fmt: skip

    # --- chaos

    def _hostile(self) -> None:
        """Bytes of nobody, or something sent a moment ago with one byte changed."""
        r = self.random
        inputs = self.cell.take_inputs()
        if inputs and r.random() < 0.8:
            *before, last = inputs
            changed = bytearray(last.value or b"\0")
            changed[r.randrange(len(changed))] = r.randrange(256)
            inputs = [*before, msgspec.structs.replace(last, value=bytes(changed))]
        self.cell.give(inputs)
        if r.random() < 0.3:
            topic = r.choice(("requests", "reports", "verdicts"))
            self.cell.raw(topic, r.randbytes(r.randrange(40)), partition=r.randrange(2))

    def _step(self) -> None:
        self.cell.step(after_ms=self.random.choice(TIMES_MS))

    def _take_over(self) -> None:
        """What was sent before is decided by the new leader."""
        inputs = self.cell.take_inputs()
        self.cell.take_over()
        self.cell.give(inputs)
