"""Sends records to a cell's topics with confluent-kafka. It decides nothing about them, and never blocks a training step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from tidemill.kafka import records
from tidemill.v1 import job_service_pb2

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from tidemill.training.environment import Identity


class OutsideProducer:
    """One producer for one cell; `options` are librdkafka's own names, for SASL and TLS.

    Progress that cannot be handed over at once is dropped and counted: the next step says more. A submission is
    waited for. Close it, or use it as a context manager, so that what is queued gets out.
    """

    def __init__(
        self, bootstrap: str, cell: str, *, options: Mapping[str, str] | None = None
    ) -> None:
        self.dropped = 0
        self._cell = cell
        self._identity: Identity | None = None
        self._failures: list[str] = []
        self._producer = _producer(bootstrap, options or {})

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """As `close`."""
        self.close()

    def progress(
        self,
        step: int,
        *,
        step_us: int = 0,
        phase: str = "train",
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """Say how far this rank of this attempt is, as the environment of a run names them; whether it was handed over.

        Raises ValueError outside a run of Tidemill.
        """
        mine = self._identity = self._identity or _identity()
        if not (mine.managed and mine.token):
            raise ValueError(
                "TIDEMILL_JOB, TIDEMILL_ATTEMPT and TIDEMILL_TOKEN are not set: only a run of a cell has progress"
            )
        key, value = records.progress_record(
            mine.token,
            job=mine.job,
            attempt=mine.attempt,
            rank=mine.rank,
            step=step,
            step_us=step_us,
            phase=phase,
            metrics=metrics,
        )
        try:
            self._producer.produce(records.topic(self._cell, records.PROGRESS), value, key)
        except BufferError:
            self.dropped += 1
            return False
        self._producer.poll(0)
        return True

    def submit(
        self,
        key: str,
        request: job_service_pb2.SubmitJobRequest,
        *,
        principal: str,
        timeout_s: float = 30.0,
    ) -> None:
        """Store a submission for a gateway to take; what became of it, `tidemill jobs` and the log tell.

        Raises ValueError without a request_id, TimeoutError and RuntimeError when it is not known to be stored: then send
        the same again, it is decided once.
        """
        routing, value = records.submission_record(key, request, principal=principal)
        self._failures.clear()
        name = records.topic(self._cell, records.OUTSIDE)
        self._producer.produce(name, value, routing, on_delivery=self._delivered)
        if self._producer.flush(timeout_s):
            raise TimeoutError(f"{name}: no broker acknowledged it within {timeout_s:g} s")
        if self._failures:
            raise RuntimeError(f"{name}: not stored: {self._failures[0]}")

    def close(self, timeout_s: float = 10.0) -> None:
        """Send what is queued, for at most so long."""
        self._producer.flush(timeout_s)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))


def _identity() -> Identity:
    from tidemill.training.environment import read_identity

    return read_identity(os.environ)


def _producer(bootstrap: str, options: Mapping[str, str]) -> Producer:
    try:
        from confluent_kafka import Producer
    except ImportError as error:
        raise ImportError(
            "confluent-kafka is not installed: pip install 'tidemill[kafka]'"
        ) from error
    return Producer(
        {
            **options,
            "bootstrap.servers": bootstrap,
            "client.id": "tidemill-outside",
            "acks": "all",
            "enable.idempotence": True,
            # As all writers of a cell have it.
            "partitioner": "consistent",
            "allow.auto.create.topics": False,
            "linger.ms": 20,
        }
    )
