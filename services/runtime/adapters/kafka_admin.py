"""Describes and changes topics and ACLs of a broker cluster, as values of topic_plan and topic_rights.

It does what it is told, step by step, and decides nothing; each step may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from services.runtime.adapters.kafka_client import (
    KafkaSettings,
    LastError,
    admin_config,
    mapped,
    meaning,
)
from services.runtime.ports import PortError
from services.runtime.topic_plan import FoundTopic, WantedTopic
from services.runtime.topic_rights import Operation, Resource, Right

_LOOK_EVERY_S: Final = 0.05
_OPERATIONS: Final = {
    Operation.READ: AclOperation.READ,
    Operation.WRITE: AclOperation.WRITE,
    Operation.DESCRIBE: AclOperation.DESCRIBE,
    Operation.CREATE: AclOperation.CREATE,
}
_RESOURCES: Final = {Resource.TOPIC: ResourceType.TOPIC, Resource.GROUP: ResourceType.GROUP}


class KafkaAdmin:
    """Administration of one broker cluster."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._timeout_s = settings.answer_timeout_s
        self._bootstrap = settings.bootstrap
        self._last = LastError()
        with mapped("the admin client"):
            self._client = AdminClient(admin_config(settings, self._last))

    def brokers(self) -> int:
        """How many are up; raises PortError when none answers."""
        try:
            return len(self._client.list_topics(timeout=self._timeout_s).brokers)
        except KafkaException as error:
            raise PortError(
                f"no broker of {self._bootstrap} answered: {error.args[0].str()}. {self._last.explain()}"
            ) from error

    def find(self, names: Sequence[str]) -> dict[str, FoundTopic]:
        """Those of the topics that exist."""
        with mapped("listing topics"):
            known = self._client.list_topics(timeout=self._timeout_s).topics
        there = [name for name in names if name in known]
        if not there:
            return {}
        configs = self._client.describe_configs(
            [ConfigResource(ResourceType.TOPIC, name) for name in there]
        )
        found = {}
        for resource, future in configs.items():
            with mapped(f"describing {resource.name}"):
                entries = future.result(timeout=self._timeout_s)
            partitions = known[resource.name].partitions
            found[resource.name] = FoundTopic(
                len(partitions),
                min((len(partition.replicas) for partition in partitions.values()), default=0),
                {key: entry.value or "" for key, entry in entries.items()},
            )
        return found

    def create(self, topic: WantedTopic) -> None:
        """Make it, and wait until it can be used; one that another has just made is no error."""
        new = NewTopic(topic.name, topic.partitions, topic.replicas, config=dict(topic.config))
        (future,) = self._client.create_topics([new]).values()
        try:
            future.result(timeout=self._timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise meaning(error.args[0], f"making {topic.name}") from error
        self._await_leaders(topic.name)

    def leader(self, name: str) -> int:
        """Id of the broker that leads the first partition; -1 when none does."""
        with mapped(name):
            topic = self._client.list_topics(name, timeout=self._timeout_s).topics[name]
        return int(topic.partitions[0].leader)

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics with all they hold; for trials, no command of an operator does this."""
        for name, future in self._client.delete_topics(list(names)).items():
            with mapped(f"deleting {name}"):
                future.result(timeout=self._timeout_s)

    def raise_partitions(self, name: str, count: int) -> None:
        """Add partitions until there are `count`."""
        (future,) = self._client.create_partitions([NewPartitions(name, count)]).values()
        with mapped(f"raising partitions of {name}"):
            future.result(timeout=self._timeout_s)

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Set these settings of a topic and leave the others as they are."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        (future,) = self._client.incremental_alter_configs([resource]).values()
        with mapped(f"configuring {name}"):
            future.result(timeout=self._timeout_s)

    def granted(self, wanted: Sequence[Right]) -> set[Right]:
        """Those of the rights that the brokers have."""
        with mapped("describing ACLs"):
            found = self._client.describe_acls(_any_acl()).result(timeout=self._timeout_s)
        have = set(found)
        return {right for right in wanted if _binding(right) in have}

    def grant(self, rights: Sequence[Right]) -> None:
        """Add the rights."""
        with mapped("granting rights"):
            for future in self._client.create_acls([_binding(right) for right in rights]).values():
                future.result(timeout=self._timeout_s)

    def _await_leaders(self, name: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            with mapped(name):
                topic = self._client.list_topics(name, timeout=self._timeout_s).topics[name]
            if topic.error is None and all(p.leader >= 0 for p in topic.partitions.values()):
                return
            if time.monotonic() > deadline:
                raise PortError(
                    f"{name} was made but has no leader after {self._timeout_s:g} s. {self._last.explain()}"
                )
            time.sleep(_LOOK_EVERY_S)


def _binding(right: Right) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    return AclBinding(
        _RESOURCES[right.resource], right.name, pattern, right.principal, "*",
        _OPERATIONS[right.operation], AclPermissionType.ALLOW,
    )  # fmt: skip


def _any_acl() -> AclBindingFilter:
    kind, pattern = ResourceType.ANY, ResourcePatternType.ANY
    operation, permission = AclOperation.ANY, AclPermissionType.ANY
    # The library says that names are strings, and takes None for any.
    return AclBindingFilter(kind, None, pattern, None, None, operation, permission)  # type: ignore[arg-type]
