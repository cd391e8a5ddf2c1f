"""Submissions at a steady pace beside a test, with what was acknowledged; and how many rounds a test does."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Self

from services.runtime.trial import TrialCell
from statemachines.facts import JobAdmitted
from tests.live.audit import Audit
from tidemill import job_request
from tidemill.v1 import job_service_pb2

# Decided, or durable and going to be decided: both are promises.
ACKNOWLEDGED = (job_service_pb2.SUBMIT_STATUS_ADMITTED, job_service_pb2.SUBMIT_STATUS_DURABLE)


def rounds(few: int, many: int) -> int:
    """Few in `make test`; many with TIDEMILL_LONG=1, as `make chaos` has it."""
    return many if os.environ.get("TIDEMILL_LONG") == "1" else few


class Load:
    """A stream of submissions that nothing is to run: they wait, on a model that no node has."""

    def __init__(self, cell: TrialCell, per_s: int) -> None:
        self.acknowledged: list[str] = []
        self._cell, self._per_s = cell, per_s
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Submit no more, and wait until all is answered; raises what ended it before."""
        self._ending.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a submission was not answered within two minutes"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with self._cell.client() as client:
                for _, answer in client.submit_many(self._jobs(), give_up_after_s=120.0):
                    assert answer.status in ACKNOWLEDGED, answer
                    self.acknowledged.append(answer.job)
        except BaseException as error:  # noqa: BLE001 - raised again where the test looks
            self._failure = error

    def _jobs(self) -> Iterator[job_service_pb2.SubmitJobRequest]:
        began, count = time.monotonic(), 0
        wanted = {"name": "load", "command": ["true"], "cpu": 1, "gpus": 1, "gpu_models": ["none"]}
        while not self._ending.is_set():
            if count / self._per_s > time.monotonic() - began:
                self._ending.wait(0.005)
                continue
            job = job_request(wanted)
            job.request_id = f"load-{count}"
            count += 1
            yield job


def assert_decided_once(audit: Audit, acknowledged: list[str]) -> None:
    """No acknowledged request is lost, none was decided twice, and no invariant broke."""
    assert audit.broken == []
    admitted = Counter(fact.job for fact in audit.of(JobAdmitted))
    assert max(admitted.values()) == 1
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= set(admitted)


def scheduler_ends(cell: TrialCell) -> set[int]:
    """Exit codes of schedulers that `up` has started again."""
    lines = (cell.directory / "up.log").read_text().splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    hows = [line["how"] for line in said if line.get("event") == "child_ended"]
    return {int(how.removeprefix("exit ")) for how in hows}
