"""Create the state topic with configs that keep state safe, or check an existing topic.

A different partition count is refused, because share-partitions would be looked up in other shards.
Compaction is refused, because it would keep only one of several updates. Any other deviation is a warning,
because it may be intended. Configs that this client may not read are also a warning.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from coordinator.cluster.kafka.broker_results import TopicDescription
from coordinator.errors import ConfigError, LogUnavailable
from coordinator.log.base import RECORD_BYTES_MAX

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)

TOPIC_SETTING = "share.coordinator.state.topic.name"
PARTITIONS_SETTING = "share.coordinator.state.topic.num.partitions"
REPLICATION_SETTING = "share.coordinator.state.topic.replication.factor"

# Internal topics of Kafka; brokers reject writes by other clients.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")

# A commit batch of a shard may exceed a broker's default limit. An append above the topic's limit is split
# into several batches. A record cannot be split, and the snapshot of a large state is one record.
BATCH_BYTES_MAX = 16 << 20
BROKERS_BATCH_BYTES_MAX = 1_048_588
# The configs that limit the size of a batch.
_BATCH_LIMITS = ("max.message.bytes", "segment.bytes")

_PAUSE_S = 0.2


class TopicConfig(NamedTuple):
    """The configured name, partition count and replication of the state topic."""

    name: str = "_share-coordinator-state"
    partitions: int = 50
    replication_factor: int = 3
    min_isr: int = 2


def required_configs(min_isr: int) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "min.insync.replicas": str(min_isr),
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "CreateTime",
        # Brokers accept timestamps of a clock that is wrong (KIP-937).
        "message.timestamp.after.max.ms": str((1 << 63) - 1),
        "max.message.bytes": str(BATCH_BYTES_MAX),
    }


_CONSEQUENCES = {
    "retention.ms": "records are dropped after that time, and the state of idle share groups is lost",
    "retention.bytes": "old records are dropped beyond that size, and state is lost",
    "unclean.leader.election.enable": "acknowledged records can be lost when a broker fails",
    "message.timestamp.after.max.ms": "nothing can be written while this host's clock is ahead by more",
    "message.timestamp.type": "the time of a record is that of the broker, not of the coordinator",
}


class BatchLimits(NamedTuple):
    """Limits in bytes.

    A batch above `split_max` is split; a single record may have up to `accepted_max` bytes.
    """

    split_max: int
    accepted_max: int


async def ensure_topic(
    cluster: "Brokers", config: TopicConfig, *, timeout_s: float, allow_few_brokers: bool = True
) -> BatchLimits:
    """Create or check the topic, and wait until all its partitions have leaders; return the batch limits.

    Raises ConfigError if the topic is unusable, LogUnavailable if it cannot be created or does not appear in
    time. If several coordinators start concurrently, one creates the topic and the others find it. Without
    `allow_few_brokers`, the topic is not created while there are fewer brokers than replicas.
    """
    check_topic_name(config.name)
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    topic = await cluster.describe_topic()
    created = topic is None and await _create_topic(cluster, config, allow_few_brokers=allow_few_brokers)
    while topic is None or not topic.ready:
        if asyncio.get_running_loop().time() >= deadline_s:
            if topic is not None:
                # Continue, because the partitions with a leader can be served.
                _logger.warning("some partitions of topic %s have no leader", config.name)
                break
            raise LogUnavailable(f"topic {config.name} was created, but brokers do not report it yet")
        await asyncio.sleep(_PAUSE_S)
        topic = await cluster.describe_topic()
    # Another coordinator may have created the topic meanwhile, with another partition count.
    check_partition_count(config, topic)
    if created:
        return BatchLimits(BATCH_BYTES_MAX, BATCH_BYTES_MAX)
    configs = await cluster.topic_configs()
    for problem in config_problems(config, topic, configs):
        _logger.warning("topic %s: %s", config.name, problem)
    if configs is None:
        # The limit of the topic is not known. Batches stay below the brokers' default limit. A larger single
        # record is sent all the same, because the topic may accept it.
        return BatchLimits(BROKERS_BATCH_BYTES_MAX, RECORD_BYTES_MAX)
    bytes_max = _batch_bytes_max(configs)
    return BatchLimits(min(bytes_max, BATCH_BYTES_MAX), bytes_max)


def check_topic_name(name: str) -> None:
    """Raise ConfigError if only Kafka itself can write to the topic."""
    if name in INTERNAL_TOPICS:
        raise ConfigError(
            TOPIC_SETTING, name, "an ordinary topic: clients cannot write to Kafka's internal topics"
        )


def check_partition_count(config: TopicConfig, topic: TopicDescription) -> None:
    """Raise ConfigError if the topic has another partition count."""
    if topic.partitions != config.partitions:
        raise ConfigError(
            PARTITIONS_SETTING,
            config.partitions,
            f"{topic.partitions}, as topic {config.name} has; share-partitions would be searched "
            f"in other shards",
        )


def config_problems(
    config: TopicConfig, topic: TopicDescription, configs: Mapping[str, str] | None
) -> list[str]:
    """Return the deviations of the topic, one sentence each. Raises ConfigError if it is compacted."""
    found = []
    if topic.replicas < config.replication_factor:
        found.append(
            f"it has {topic.replicas} replicas, not {config.replication_factor}: fewer failures lose state"
        )
    if configs is None:
        found.append("its configs cannot be checked: this client is not authorized to describe them")
        return found
    if "compact" in configs.get("cleanup.policy", ""):
        raise ConfigError(
            TOPIC_SETTING,
            config.name,
            f"a topic with cleanup.policy=delete, not {configs['cleanup.policy']}: compaction keeps one "
            f"update of many, and state is lost",
        )
    wanted = required_configs(config.min_isr)
    for name, why in _CONSEQUENCES.items():
        if configs.get(name, wanted[name]) != wanted[name]:
            found.append(f"{name}={configs[name]}, not {wanted[name]}: {why}")
    for name in _BATCH_LIMITS:
        bytes_max = int(configs.get(name, BATCH_BYTES_MAX))
        if bytes_max < BATCH_BYTES_MAX:
            found.append(
                f"{name}={bytes_max}, not {BATCH_BYTES_MAX}: the snapshot of a large state may not fit"
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
    return min((int(configs[name]) for name in _BATCH_LIMITS if name in configs), default=BATCH_BYTES_MAX)


async def _create_topic(cluster: "Brokers", config: TopicConfig, *, allow_few_brokers: bool) -> bool:
    """Create the topic; return False if another process has created it."""
    brokers = await cluster.broker_count()
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
    created = await cluster.create_topic(config.partitions, replicas, required_configs(min_isr))
    if created:
        _logger.info("created topic %s: %d partitions, %d replicas", config.name, config.partitions, replicas)
    return created
