"""The state topic: made with the configs that keep state safe, or checked for them where it exists.

A partition count that differs is refused: share-partitions would be looked for in other shards.  So is
compaction, which would keep one update of many.  Everything else that is not as it should be is one warning
each: the operator may have reasons, and may not let us see.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

from coordinator.errors import ConfigError, LogUnavailable
from coordinator.kafka.cluster import Cluster, TopicDescription
from coordinator.log.base import RECORD_BYTES_MAX

_logger = logging.getLogger(__name__)

TOPIC_SETTING = "share.coordinator.state.topic.name"
PARTITIONS_SETTING = "share.coordinator.state.topic.num.partitions"
REPLICATION_SETTING = "share.coordinator.state.topic.replication.factor"

# Brokers let only their own coordinators write to these.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")

# A batch holds what one turn of a shard wrote, which may be more than a broker's default.  What is more than
# the topic takes goes in several batches, but a record in one: the snapshot of a large state may need room.
BATCH_BYTES_MAX = 16 << 20
BROKERS_BATCH_BYTES_MAX = 1_048_588

_PAUSE_S = 0.2


class TopicConfig(NamedTuple):
    """What the state topic should be like."""

    name: str = "_share-coordinator-state"
    partitions: int = 50
    replication_factor: int = 3
    min_isr: int = 2


def wanted_configs(min_isr: int) -> dict[str, str]:
    """Return the configs that the topic is made with."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "min.insync.replicas": str(min_isr),
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": str(BATCH_BYTES_MAX),
    }


_WHY = {
    "retention.ms": "records are dropped after that time, and the state of idle share groups is lost",
    "retention.bytes": "old records are dropped beyond that size, and state is lost",
    "unclean.leader.election.enable": "acknowledged records can be lost when a broker fails",
    "message.timestamp.type": "the time of a record is that of the broker, not of the coordinator",
}


class BatchBytes(NamedTuple):
    """How large a batch is made, in bytes, and how large the topic takes it if one record needs more."""

    wanted_max: int
    taken_max: int


async def ensure_topic(
    cluster: Cluster, config: TopicConfig, *, timeout_s: float, allow_few_brokers: bool = True
) -> BatchBytes:
    """Create the topic or check it, and wait until all its partitions have leaders.

    Returns how large batches may be.  Raises ConfigError if the topic cannot be used as it is,
    LogUnavailable if it cannot be made or does not get ready in time; in time, other starting coordinators
    included, one creates it and all find it.  Unless `allow_few_brokers`, it is not created while there are
    fewer brokers than it should have replicas.
    """
    check_name(config.name)
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    topic = await cluster.describe_topic()
    found = topic is not None
    if not found:
        await _create(cluster, config, allow_few_brokers=allow_few_brokers)
    while topic is None or not topic.ready:
        if asyncio.get_running_loop().time() >= deadline_s:
            if topic is not None:
                # What has a leader can be served.
                _logger.warning("some partitions of topic %s have no leader", config.name)
                break
            raise LogUnavailable(f"topic {config.name} was created and does not show up")
        await asyncio.sleep(_PAUSE_S)
        topic = await cluster.describe_topic()
    # If it is new, another coordinator may have been faster, with another number.
    check_partition_count(config, topic)
    if not found:
        return BatchBytes(BATCH_BYTES_MAX, BATCH_BYTES_MAX)
    configs = await cluster.topic_configs()
    for finding in config_problems(config, topic, configs):
        _logger.warning("topic %s: %s", config.name, finding)
    if configs is None:
        # What the topic takes is not known: a record that needs more is tried.
        return BatchBytes(BROKERS_BATCH_BYTES_MAX, RECORD_BYTES_MAX)
    bytes_max = _batch_bytes_max(configs)
    return BatchBytes(min(bytes_max, BATCH_BYTES_MAX), bytes_max)


async def find_topic(cluster: Cluster, config: TopicConfig) -> None:
    """Check that a topic is there to be read. Raises LogUnavailable or ConfigError."""
    topic = await cluster.describe_topic()
    if topic is None:
        raise LogUnavailable(f"there is no topic {config.name}")
    check_partition_count(config, topic)


def check_name(name: str) -> None:
    """Raise ConfigError for the name of a topic that only Kafka itself can write to."""
    if name in INTERNAL_TOPICS:
        raise ConfigError(
            TOPIC_SETTING, name, "an ordinary topic: Kafka lets nobody else write to its internal topics"
        )


def check_partition_count(config: TopicConfig, topic: TopicDescription) -> None:
    """Raise ConfigError if the topic has another number of partitions."""
    if topic.partitions != config.partitions:
        raise ConfigError(
            PARTITIONS_SETTING,
            config.partitions,
            f"{topic.partitions}, as topic {config.name} has; share-partitions would be looked for "
            f"in other shards",
        )


def config_problems(
    config: TopicConfig, topic: TopicDescription, configs: Mapping[str, str] | None
) -> list[str]:
    """Return what is wrong with a topic, one sentence each. Raises ConfigError if it is compacted."""
    found = []
    if topic.replicas < config.replication_factor:
        found.append(
            f"it has {topic.replicas} replicas, not {config.replication_factor}: state is as safe as they are"
        )
    if configs is None:
        found.append("its configs cannot be checked: we are not allowed to see them")
        return found
    if "compact" in configs.get("cleanup.policy", ""):
        raise ConfigError(
            TOPIC_SETTING,
            config.name,
            f"a topic with cleanup.policy=delete, not {configs['cleanup.policy']}: compaction keeps one "
            f"update of many, and state is lost",
        )
    wanted = wanted_configs(config.min_isr)
    for name, why in _WHY.items():
        if configs.get(name, wanted[name]) != wanted[name]:
            found.append(f"{name}={configs[name]}, not {wanted[name]}: {why}")
    bytes_max = _batch_bytes_max(configs)
    if bytes_max < BATCH_BYTES_MAX:
        found.append(
            f"max.message.bytes={bytes_max}, not {BATCH_BYTES_MAX}: the snapshot of a large state may not fit"
        )
    min_isr = int(configs.get("min.insync.replicas", config.min_isr))
    if min_isr < min(config.min_isr, topic.replicas):
        found.append(
            f"min.insync.replicas={min_isr}, not {config.min_isr}: records are acknowledged with fewer copies"
        )
    elif min_isr > topic.replicas:
        found.append(f"min.insync.replicas={min_isr} with {topic.replicas} replicas: nothing can be written")
    return found


def _batch_bytes_max(configs: Mapping[str, str]) -> int:
    return int(configs.get("max.message.bytes", BATCH_BYTES_MAX))


async def _create(cluster: Cluster, config: TopicConfig, *, allow_few_brokers: bool) -> None:
    brokers = await cluster.brokers()
    replicas = min(config.replication_factor, brokers)
    min_isr = min(config.min_isr, replicas)
    if replicas < config.replication_factor and not allow_few_brokers:
        raise LogUnavailable(
            f"topic {config.name} is to have {config.replication_factor} replicas, and there are {brokers} "
            f"brokers until now"
        )
    if replicas < config.replication_factor:
        _logger.warning(
            "%s=%d, but there are %d brokers: topic %s gets %d replicas and min.insync.replicas=%d",
            REPLICATION_SETTING,
            config.replication_factor,
            brokers,
            config.name,
            replicas,
            min_isr,
        )
    if await cluster.create_topic(config.partitions, replicas, wanted_configs(min_isr)):
        _logger.info("created topic %s: %d partitions, %d replicas", config.name, config.partitions, replicas)
