"""The main job: a real distributed training job loses a node, then the cell loses its leader, and nothing is lost.

Two trainings of the same task run at once. One is left alone. The other loses a host, with all its processes, in the
middle; it must resume elsewhere from its last durable checkpoint and end with the same weights, bit for bit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from services.demo.picture import Picture
from services.demo.timeline import Follower, Timeline
from statemachines.facts import Fact
from tidemill import Client, TidemillError, job_request
from tidemill.errors import UnavailableError
from tidemill.v1 import log_service_pb2, views_pb2

STEPS: Final = 400
SAVE_EVERY: Final = 40
FAULT_AT_STEP: Final = 220
DEVICES: Final = "2xH100"
NODES: Final = ("node-a", "node-b", "node-c", "node-d")
_WAIT_S: Final = 120.0
_HERE: Final = Path(__file__).resolve().parent


def trainer_path() -> str:
    """The example that this interpreter can run: in PyTorch where that is installed, else in numpy."""
    name = "train_torch.py" if importlib.util.find_spec("torch") else "train_numpy.py"
    # A wheel carries the examples beside this file; a checkout has them where people look for examples.
    places = (_HERE / name, _HERE.parents[1] / "examples" / name)
    return str(next(filter(Path.is_file, places)))


class Mortal(Protocol):
    """A host that can be made to die."""

    def die(self) -> int:
        """SIGKILL to all of it; how many processes that were."""

    def end(self) -> None:
        """End it in good order."""


class Cell(Protocol):
    """The cell that the demo runs on."""

    # The interpreter, where it finds packages, and the example trainer, as its hosts see them.
    python: str
    python_path: str
    trainer: str
    doors: int

    def client(self, door: int = 0) -> Client:
        """Another connection to it, through one of its gateways."""

    def host(self, name: str) -> Mortal:
        """One more host of it."""

    def kill_leader(self, client: Client) -> object:
        """SIGKILL to the process that leads; what names it."""

    def own_fold(self, offset: int) -> OwnFold:
        """A fold of our own over the stored log, up to that offset."""


class OwnFold(msgspec.Struct, frozen=True):
    """State digest, and the accepted facts with their times."""

    digest: bytes
    facts: tuple[tuple[int, Fact], ...]


class Failed(Exception):
    """Something that must hold does not; the message says what."""


class Result(msgspec.Struct):
    """What out/demo.json holds."""

    ok: bool = False
    seconds: float = 0.0
    fault_step: int = -1
    resumed_step: int = -1
    weights_equal: bool = False
    digests_equal: bool = False
    log_verified: bool = False
    log_entries: int = 0
    failover_seconds: float = -1.0
    leaders: list[dict[str, object]] = []
    problem: str = ""
    timeline: list[dict[str, object]] = []


class Story:
    """Tells it once.

    `also` is what a richer cell breaks between the node and the end, while steps of the main training take
    `step_delay_s` or longer.
    """

    def __init__(
        self,
        cell: Cell,
        timeline: Timeline,
        also: Sequence[Callable[[Timeline], None]] = (),
        *,
        step_delay_s: float = 0.03,
    ) -> None:
        self.result = Result()
        self._cell = cell
        self._tell = timeline.add
        self._timeline = timeline
        self._also = also
        self._step_delay_s = step_delay_s
        self._hosts: dict[str, Mortal] = {}
        self._names: dict[str, str] = {}
        self._faults: list[tuple[int, str]] = []
        self.picture = ""

    def run(self) -> None:
        """Everything, in order; raises Failed, TidemillError."""
        with self._cell.client() as client, self._cell.client() as watching:
            follower = Follower(watching, self._timeline)
            try:
                self._start_hosts(client)
                alone, main, small = self._submit(client, follower)
                self._wait_for_step(client, main)
                self._kill_a_host(client, main)
                self._kill_the_leader(client)
                for breaks in self._also:
                    breaks(self._timeline)
                self._wait_for_ends(client, (alone, main, *small))
                self._compare(alone, main)
                self._explain(client, main)
                self._verify(client)
            finally:
                self.result.leaders = follower.leaders
                follower.close()

    def close(self) -> None:
        """End the hosts and all that they run."""
        for host in self._hosts.values():
            host.end()

    # --- scenes

    def _start_hosts(self, client: Client) -> None:
        self._tell(
            "act",
            f"start {len(NODES)} hosts, each with {DEVICES} (simulated devices, real processes)",
        )
        for name in NODES:
            self._hosts[name] = self._cell.host(name)
        _until(
            "all hosts to join",
            lambda: sum(node.state == "ready" for node in client.nodes()) == len(NODES),
        )

    def _submit(self, client: Client, follower: Follower) -> tuple[str, str, list[str]]:
        self._tell(
            "act",
            f"submit two trainings of one task ({Path(self._cell.trainer).name}), 2 processes each, and three small jobs",
        )
        alone = self._train(client, follower, "undisturbed", delay_s=0.005)
        main = self._train(client, follower, "main", delay_s=self._step_delay_s)
        small = []
        for i in range(3):
            job = job_request(
                {
                    "name": f"small-{i}",
                    "cpu": 1,
                    "command": [self._cell.python, "-c", f"print('small {i}')"],
                }
            )
            small.append(client.submit(job).job)
        return alone, main, small

    def _train(self, client: Client, follower: Follower, name: str, *, delay_s: float) -> str:
        command = [
            self._cell.python, self._cell.trainer, "--steps", str(STEPS), "--save-every", str(SAVE_EVERY),
            "--step-delay", str(delay_s),
        ]  # fmt: skip
        job = job_request(
            {
                "name": name,
                "nodes": 2,
                "cpu": 1,
                "gpus": 2,
                "overlap_safe": True,
                "command": command,
                "env": {
                    "OPENBLAS_NUM_THREADS": "1",
                    "PYTHONPATH": self._cell.python_path,
                },
            }
        )
        answer = client.submit(job)
        follower.names[answer.job] = self._names[answer.job] = name
        return answer.job

    def _wait_for_step(self, client: Client, job: str) -> None:
        def far_enough() -> bool:
            view = client.job(job)
            if view.state in {"succeeded", "failed", "cancelled", "held"}:
                raise Failed(f"job {job} is {view.state} before the fault: {view.reason.message}")
            return view.seen_step >= FAULT_AT_STEP and view.durable_step > 0

        _until(f"the main job to reach step {FAULT_AT_STEP}", far_enough)

    def _kill_a_host(self, client: Client, job: str) -> None:
        view = client.job(job)
        victim = next(run.node for run in view.attempts[-1].runs if run.rank == 1)
        self._faults.append((_wall_ms(), f"kill -9 {victim}"))
        count = self._hosts.pop(victim).die()
        self.result.fault_step = view.seen_step
        self._tell(
            "fault",
            f"kill -9 of {victim} with all its {count} processes, main at step {view.seen_step} "
            f"(last durable checkpoint: step {view.durable_step})",
        )
        durable = view.durable_step

        def resumed() -> bool:
            now = client.job(job)
            return now.attempt > 1 and now.attempts[-1].resumed_step >= 0

        _until("the main job to resume elsewhere", resumed)
        again = client.job(job).attempts[-1]
        self.result.resumed_step = again.resumed_step
        self._tell("good", f"main trains again on {_places(again)}, from step {again.resumed_step}")
        if again.resumed_step < durable:
            raise Failed(
                f"resumed from step {again.resumed_step}, below the durable step {durable}"
            )

    def _kill_the_leader(self, client: Client) -> None:
        before = client.cell()
        began = time.monotonic()
        self._faults.append((_wall_ms(), "kill -9 leader"))
        killed = self._cell.kill_leader(client)
        self._tell("fault", f"kill -9 of the leader (process {killed}, term {before.term})")
        _until("another leader", lambda: client.cell().term > before.term)
        self.result.failover_seconds = round(time.monotonic() - began, 3)
        after = client.cell()
        self._tell(
            "good",
            f"{after.leader} leads after {self.result.failover_seconds:.2f} s, term {after.term}",
        )

    def _wait_for_ends(self, client: Client, jobs: Sequence[str]) -> None:
        for job in jobs:
            view = client.wait(job, timeout_s=_WAIT_S)
            if view.state != "succeeded":
                raise Failed(f"job {job} ({view.spec.name}) {view.state}: {view.reason.message}")
        self._tell("good", "every job has succeeded")

    def _compare(self, alone: str, main: str) -> None:
        expected, got = (self._weights(job) for job in (alone, main))
        self.result.weights_equal = expected == got
        self._tell(
            "good" if expected == got else "bad",
            f"final weights undisturbed {expected[:16]}  main {got[:16]}",
        )
        if expected != got:
            raise Failed("the interrupted training did not end with the undisturbed one's weights")

    def _weights(self, job: str) -> str:
        """Digest of the final weights, as rank 0 printed it: at the gateway that its host is attached to."""
        for door in range(self._cell.doors):
            with self._cell.client(door) as client, contextlib.suppress(UnavailableError):
                return _weights(b"".join(chunk.data for chunk in client.logs(job, rank=0)))
        raise Failed(f"no gateway has the output of job {job}")

    def _explain(self, client: Client, job: str) -> None:
        self._tell("act", f"tidemill why {job}")
        for line in client.explain(job).history:
            if line.fact in {"GangPlaced", "AttemptStopping", "AttemptEnded", "AttemptResumed"}:
                self._tell("why", f"@{line.offset} {line.text}")

    def _verify(self, client: Client) -> None:
        last = None
        for progress in client.verify_log():
            last = progress
        self.result.log_verified = bool(last and last.done and last.ok)
        if last is None or not self.result.log_verified:
            raise Failed(f"the log does not verify: {last.problem if last else 'no answer'}")
        self.result.log_entries = last.entries
        self._tell(
            "good",
            f"tidemill log verify: {last.entries} entries, {last.facts} facts, {last.voided} void, chain whole",
        )
        replayed = _at_one_offset(client)
        own = self._cell.own_fold(replayed.offset)
        self._draw(own)
        self.result.digests_equal = replayed.state_digest == replayed.live_digest == own.digest
        self._tell(
            "good" if self.result.digests_equal else "bad",
            f"state at {replayed.offset}: live {replayed.live_digest.hex()[:16]}, replayed "
            f"{replayed.state_digest.hex()[:16]}, folded here {own.digest.hex()[:16]}",
        )
        if not self.result.digests_equal:
            raise Failed("a replay of the log differs from the live state")

    def _draw(self, own: OwnFold) -> None:
        picture = Picture(self._names)
        for at_ms, fact in own.facts:
            picture.take(fact, at_ms)
        for at_ms, text in self._faults:
            picture.fault(text, at_ms)
        self.picture = picture.svg()


def _until(what: str, holds: Callable[[], bool], *, within_s: float = _WAIT_S) -> None:
    """Look again and again until it holds; a gateway that is away for a moment is looked at again too."""
    ends = time.monotonic() + within_s
    while True:
        try:
            if holds():
                return
        except TidemillError:
            if time.monotonic() > ends:
                raise
        if time.monotonic() > ends:
            raise Failed(f"waited {within_s:g} s for {what}")
        time.sleep(0.1)


def _at_one_offset(client: Client) -> log_service_pb2.ReplayLogResponse:
    """A replay that ended where the live fold was, so that both digests are of one state."""
    for _ in range(50):
        replayed = client.replay()
        if replayed.live_digest:
            return replayed
    raise Failed("the log kept growing: no replay ended where the live fold was")


def _weights(output: bytes) -> str:
    """Of the one line of JSON in it."""
    found = [line for line in output.decode().splitlines() if line.startswith("{")]
    if not found:
        raise Failed(f"a training printed no result; its output ends with {output[-300:]!r}")
    digest = json.loads(found[-1])["weights_sha256"]
    assert isinstance(digest, str), "the trainer prints text"
    return digest


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _places(attempt: views_pb2.AttemptView) -> str:
    return " and ".join(run.node for run in attempt.runs)
