"""What every Kafka client of a cell shares: how it is configured, and what an error means to a caller of a port.

Only names of librdkafka and codes of the protocol are known here; it opens no connection and retries nothing. A client
must be made in the process that uses it: none survives a fork.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError, KafkaException

from services.runtime.ports import RECORD_BYTES_MAX, DamagedError, PortError

# Beside its value a record has a key and headers; a topic's max.message.bytes is larger still.
_BESIDE_BYTES: Final = 16_384


class KafkaSettings(msgspec.Struct, frozen=True):
    """Where the brokers are and how to speak with them. `options` are librdkafka's own names, for SASL and TLS.

    `client` is the name that brokers show in their logs and quotas. `answer_timeout_s` bounds every wait for a broker.
    """

    bootstrap: str
    cell: str
    client: str = "tidemilld"
    answer_timeout_s: float = 10.0
    options: Mapping[str, str] = MappingProxyType({})


# What the promises of the ports rest on; an operator's option may not change these.
_OURS: Final = frozenset(
    {
        "acks", "allow.auto.create.topics", "auto.offset.reset", "bootstrap.servers", "check.crcs", "client.id",
        "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence", "enable.partition.eof", "group.id",
        "group.instance.id", "isolation.level", "message.send.max.retries", "message.timeout.ms", "partitioner",
        "request.required.acks", "retries", "transactional.id",
    }
)  # fmt: skip
_COMMON: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "allow.auto.create.topics": False,
        # A frozen broker is noticed by its silence; another may lead the partition by then.
        "socket.timeout.ms": 10_000,
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1_000,
        # A topic that is not there is said within this time, which a new one gets to become known.
        "topic.metadata.propagation.max.ms": 3_000,
        # A line for each refused connection helps nobody; the last error is in the message of what failed.
        "log_level": 2,
    }
)
_PRODUCER: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "acks": "all",
        "enable.idempotence": True,
        # Never given up by itself: the writer decides when to stop waiting, and throws the producer away.
        "message.timeout.ms": 0,
        "request.timeout.ms": 5_000,
        "retry.backoff.max.ms": 500,
        "linger.ms": 0,
        "message.max.bytes": RECORD_BYTES_MAX + _BESIDE_BYTES,
        "queue.buffering.max.kbytes": 65_536,
    }
)
_CONSUMER: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # A position that is not there is an error, never a silent jump.
        "auto.offset.reset": "error",
        "check.crcs": True,
        # A record that comes ends a fetch at once; this bounds how long a newly read partition waits for its turn.
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 100,
        # The default, a second, stalls a reader each time it has drained what it had fetched ahead.
        "fetch.queue.backoff.ms": 5,
        "fetch.message.max.bytes": 2 << 20,
        "queued.min.messages": 2_000,
        "queued.max.messages.kbytes": 16_384,
    }
)
_TLS_AND_LOGIN: Final = "Check its user, password and certificates"
_UNREACHABLE: Final = "Check that a broker runs there and can be reached"
_TOPICS: Final = "Make the topics of the cell: `tidemilld topics apply`"
_RIGHTS: Final = "Grant each role its rights: `tidemilld topics apply --acls`"
_REPLICAS: Final = "Too few brokers are in sync; bring the missing ones back"
_ADVICE: Final[Mapping[int, str]] = MappingProxyType(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART: _TOPICS,
        KafkaError._UNKNOWN_TOPIC: _TOPICS,
        KafkaError._UNKNOWN_PARTITION: _TOPICS,
        KafkaError.TOPIC_AUTHORIZATION_FAILED: _RIGHTS,
        KafkaError.GROUP_AUTHORIZATION_FAILED: _RIGHTS,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: _RIGHTS,
        KafkaError._AUTHENTICATION: _TLS_AND_LOGIN,
        KafkaError.SASL_AUTHENTICATION_FAILED: _TLS_AND_LOGIN,
        KafkaError._SSL: _TLS_AND_LOGIN,
        KafkaError.MSG_SIZE_TOO_LARGE: "Let the topic take it: `tidemilld topics check` compares max.message.bytes",
        KafkaError.NOT_ENOUGH_REPLICAS: _REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _REPLICAS,
        KafkaError.KAFKA_STORAGE_ERROR: "Look at the broker's disk: it may be full",
        KafkaError._TRANSPORT: _UNREACHABLE,
        KafkaError._ALL_BROKERS_DOWN: _UNREACHABLE,
        KafkaError._RESOLVE: _UNREACHABLE,
        KafkaError._TIMED_OUT: _UNREACHABLE,
    }
)
_DAMAGED: Final = frozenset(
    {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG}
)
_LASTING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)
_CONSEQUENCES: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})
_LOGGER: Final = logging.getLogger("tidemill.kafka")


class LastError:
    """Remembers why a client could not reach its brokers, for the message of a wait that was in vain."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.fatal = False

    def __call__(self, error: KafkaError) -> None:
        """Take what librdkafka reports outside of any call. That all are down says less than why they turned us away."""
        follows = error.code() in _CONSEQUENCES
        if not (follows and self.error is not None and self.error.code() in _LASTING):
            self.error = error
        self.fatal = self.fatal or error.fatal()

    def forget(self) -> None:
        """All is well again."""
        self.error = None

    def raise_if_lasting(self, doing: str) -> None:
        """Raise what will not heal by itself, once each time that it is heard."""
        error = self.error
        if error is not None and error.code() in _LASTING:
            self.error = None
            raise meaning(error, doing)

    def explain(self) -> str:
        """What is known, and what to do."""
        if self.error is None:
            return f"{_UNREACHABLE}, then try again."
        return f"Last heard: {self.error.str()}. {_ADVICE.get(self.error.code(), _UNREACHABLE)}, then try again."


def producer_config(settings: KafkaSettings, last: LastError) -> dict[str, Any]:
    """Configuration of an idempotent producer; raises PortError when an option may not be set."""
    return {**_PRODUCER, **_config(settings, last)}


def consumer_config(
    settings: KafkaSettings, last: LastError, *, committed_only: bool
) -> dict[str, Any]:
    """Configuration of a consumer that is told its positions. Its group is a name under which lag is shown."""
    isolation = "read_committed" if committed_only else "read_uncommitted"
    ours = {"group.id": f"{settings.cell}.{settings.client}", "isolation.level": isolation}
    return {**_CONSUMER, **_config(settings, last), **ours}


def admin_config(settings: KafkaSettings, last: LastError) -> dict[str, Any]:
    """Configuration of a client that makes and describes topics."""
    config = _config(settings, last)
    del config["allow.auto.create.topics"]
    return config


def _config(settings: KafkaSettings, last: LastError) -> dict[str, Any]:
    if forbidden := sorted(_OURS & settings.options.keys()):
        raise PortError(
            f"{', '.join(forbidden)}: not an option of an operator, the cell's correctness rests on it. Remove it."
        )
    ours = {
        "bootstrap.servers": settings.bootstrap,
        "client.id": f"{settings.cell}.{settings.client}",
        "error_cb": last,
        "logger": _LOGGER,
    }
    return {**_COMMON, **settings.options, **ours}


# --- errors


def meaning(error: KafkaError, doing: str) -> PortError:
    """The error of a port; its message says what to do."""
    if error.code() in _DAMAGED:
        return DamagedError(
            f"{doing}: {error.str()}. What the broker keeps is not what was written: look at its disk, and let a "
            "replica that is whole lead the partition."
        )
    advice = _ADVICE.get(error.code(), "Look at the broker's log")
    return PortError(f"{doing}: {error.str()} ({error.name()}). {advice}, then try again.")


@contextmanager
def mapped(doing: str) -> Iterator[None]:
    """Errors of the library leave this block as what they mean."""
    try:
        yield
    except KafkaException as error:
        raise meaning(_inner(error), doing) from error


def _inner(error: KafkaException) -> KafkaError:
    inner = error.args[0]
    assert isinstance(inner, KafkaError)
    return inner
