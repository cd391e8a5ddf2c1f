"""The Streams port on faust-streaming: one Faust app, its options, and the rule by which a group assigns partitions.

Faust is used where it is safe: plain topics, raw bytes, concurrency 1, at least once, no table, no web server, no
topic of its own, nothing produced. Offsets that it commits serve dashboards; nobody starts from them. It never lets an
agent fail by itself: Faust would acknowledge the record and go on.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

import faust
from faust.assignor.client_assignment import ClientAssignment
from faust.assignor.partition_assignor import PartitionAssignor
from faust.transport.drivers import aiokafka as driver
from faust.types.auth import SASLMechanism

from services.runtime import topics
from services.runtime.adapters.kafka_client import KafkaSettings
from services.runtime.ports import InputRecord
from services.runtime.settings import SettingsError
from services.runtime.streams import StreamHandler, StreamsEndedError

# A member that says nothing for this long is replaced; brokers allow no less by default.
_SESSION_S: Final = 6.0
_HEARTBEAT_S: Final = 1.5
# A broker that is frozen is given up after this; must not be below the session.
_REQUEST_S: Final = 10.0
# The handler does little per record; one that takes this long is said in the log.
_SLOW_S: Final = 30.0
# Records that wait in memory, each up to 100 KB.
_BUFFER: Final = 256
_STOP_S: Final = 10.0
# While a fetch waits at a broker for partitions without records, those of the others there wait too.
_FETCH_WAIT_MS: Final = 50


class OneActiveMember(PartitionAssignor):
    """All partitions to one member: the one that had them, else the first by name. The others stand by."""

    def _perform_assignment(self, cluster: Any, member_metadata: Mapping[str, Any]) -> Any:
        clients = {
            member: self._get_client_metadata(metadata)
            for member, metadata in member_metadata.items()
        }
        self._update_member_urls(clients)
        subscribed = {topic for each in member_metadata.values() for topic in each.subscription}
        everything = {
            topic: sorted(cluster.partitions_for_topic(topic) or ()) for topic in sorted(subscribed)
        }
        active = min(clients, key=lambda member: (not clients[member].assignment.actives, member))
        assignments: MutableMapping[str, ClientAssignment] = {
            member: ClientAssignment(actives=everything if member == active else {}, standbys={})
            for member in clients
        }
        return self._protocol_assignments(assignments, {}, {}, {})


class _Thread(driver.AIOKafkaConsumerThread):
    """Faust lets a fetch wait for 1.5 s, and has no setting for it."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer: Any = super()._create_worker_consumer(transport)
        assert hasattr(consumer, "_fetch_max_wait_ms"), "aiokafka renamed it: look for its new name"
        consumer._fetch_max_wait_ms = _FETCH_WAIT_MS  # noqa: SLF001 - read when it starts
        return consumer


class _Consumer(driver.Consumer):
    def _new_consumer_thread(self) -> Any:
        return _Thread(self, loop=self.loop, beacon=self.beacon)


class _Transport(driver.Transport):
    Consumer = _Consumer  # type: ignore[mutable-override]


class FaustStreams:
    """A member of the group `group`."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._settings = settings
        self._group = group
        self._security = _security(settings.options)

    async def run(self, topics: Sequence[str], handler: StreamHandler) -> None:
        """Until cancelled."""
        scratch = Path(tempfile.mkdtemp(prefix="tidemill-faust-"))  # Faust insists on a directory.
        app = self._app(scratch)
        app.transport = _Transport(app.conf.broker_consumer, app)
        self._listen(app, topics, handler)
        try:
            try:
                await app.start()
                await app.wait_until_stopped()
            except Exception as error:  # Of any kind: Faust, its driver and its services have many.
                raise StreamsEndedError(f"Faust ended: {error}. {_ADVICE}") from error
            raise StreamsEndedError(f"Faust ended: {app.crash_reason!r}. {_ADVICE}")
        finally:
            await asyncio.shield(_stop(app))
            shutil.rmtree(scratch, ignore_errors=True)

    def _app(self, scratch: Path) -> faust.App:
        settings = self._settings
        return faust.App(
            self._group,
            broker=[f"kafka://{address}" for address in settings.bootstrap.split(",")],
            broker_client_id=f"{settings.cell}.{settings.client}",
            broker_session_timeout=_SESSION_S,
            broker_heartbeat_interval=_HEARTBEAT_S,
            broker_request_timeout=_REQUEST_S,
            broker_credentials=self._security,
            # What was said before we were assigned is skipped or read again by the handler.
            consumer_auto_offset_reset="latest",
            PartitionAssignor=OneActiveMember,
            processing_guarantee="at_least_once",
            stream_buffer_maxsize=_BUFFER,
            stream_processing_timeout=_SLOW_S,
            # A handler that waits to be opened must not hold up the assignment that opens it.
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
            store="memory://",
            datadir=scratch,
            autodiscover=False,
        )

    def _listen(self, app: faust.App, suffixes: Sequence[str], handler: StreamHandler) -> None:
        for suffix in suffixes:
            topic = app.topic(
                topics.TOPICS[suffix].name(self._settings.cell),
                key_type=bytes,
                value_type=bytes,
                key_serializer="raw",
                value_serializer="raw",
            )
            app.agent(topic, name=f"{self._group}.{suffix}", concurrency=1)(_taker(suffix, handler))

        async def assigned(_app: Any, /, *sent: Any, **_: Any) -> None:
            (places,) = sent
            handler.assigned(frozenset((self._suffix(tp.topic), tp.partition) for tp in places))

        async def revoked(_app: Any, /, *_: Any, **__: Any) -> None:
            handler.assigned(frozenset())

        app.on_partitions_assigned.connect(assigned)
        app.on_partitions_revoked.connect(revoked)

    def _suffix(self, name: str) -> str:
        return name.removeprefix(f"{self._settings.cell}.")


def _taker(suffix: str, handler: StreamHandler) -> Any:
    """The agent of one topic."""

    async def take(stream: Any) -> None:
        events: AsyncIterator[Any] = stream.events()
        async for event in events:
            message = event.message
            await handler.take(
                InputRecord(
                    suffix,
                    message.partition,
                    message.offset,
                    message.key or b"",
                    event.value or b"",
                )
            )

    return take


async def _stop(app: faust.App) -> None:
    """Leave the group, so that a standby takes over at once; a broker that is away is not waited for."""
    try:
        await asyncio.wait_for(app.stop(), _STOP_S)
    except TimeoutError:
        app.log.warning("left without a word: the broker did not answer within %s s", _STOP_S)


_ADVICE: Final = "The supervisor starts it again; if it keeps ending, look at the brokers"
_KNOWN: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
    }
)


def _security(options: Mapping[str, str]) -> Any:
    """The operator's options, as Faust has them. Raises SettingsError for one that it has not."""
    secret = [name for name in options if name.startswith(("sasl.", "ssl.", "security."))]
    if unknown := sorted(set(secret) - _KNOWN):
        raise SettingsError(
            f"kafka_options: {unknown[0]} has no counterpart in Faust. Use {', '.join(sorted(_KNOWN))}, or run the "
            "health processor with --host loop"
        )
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    tls = _tls(options) if protocol.endswith("SSL") else None
    match protocol:
        case "PLAINTEXT":
            return None
        case "SSL":
            return faust.SSLCredentials(tls)
        case "SASL_PLAINTEXT" | "SASL_SSL":
            return faust.SASLCredentials(
                username=options.get("sasl.username", ""),
                password=options.get("sasl.password", ""),
                ssl_context=tls,
                mechanism=_mechanism(options),
            )
        case _:
            raise SettingsError(
                f"kafka_options: security.protocol {protocol!r} is not one of Kafka's"
            )


def _mechanism(options: Mapping[str, str]) -> SASLMechanism:
    name = options.get("sasl.mechanism") or options.get("sasl.mechanisms") or "PLAIN"
    try:
        return SASLMechanism(name)
    except ValueError:
        known = ", ".join(each.value for each in SASLMechanism)
        raise SettingsError(
            f"kafka_options: sasl.mechanism {name!r} is not one of {known}"
        ) from None


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
        if certificate := options.get("ssl.certificate.location"):
            context.load_cert_chain(
                certificate, options.get("ssl.key.location"), options.get("ssl.key.password")
            )
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"kafka_options: {error}") from error
    return context
