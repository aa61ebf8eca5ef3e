"""Create the state log that the configuration selects."""

from collections.abc import Callable
from functools import partial

from coordinator.cluster.kafka.configured_brokers import make_brokers
from coordinator.config import Config
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.log.memory import MemoryLog
from coordinator.metrics import Metrics
from coordinator.process.clock import SystemClock


def make_log(config: Config, metrics: Metrics) -> StateLog:
    """Create the log that the configuration selects. Raises ConfigError without its packages."""
    if config.log == "memory":
        return MemoryLog(config.state_partitions)
    if config.log == "kafka":
        return make_kafka_log(
            config,
            config.state_topic,
            owner=str(config.advertise),
            prune_failed=partial(metrics.count, "prune_failures"),
        )
    return Journal(
        config.data_dir,
        state_partitions=config.state_partitions,
        segment_bytes=config.journal_segment_bytes,
        sync=config.journal_sync,
    )


def make_kafka_log(
    config: Config,
    topic: str,
    *,
    owner: str,
    state_partitions: int | None = None,
    prune_failed: Callable[[str], None] = lambda reason: None,
) -> KafkaLog:
    """Return the log in a topic; `owner` is this process's name in claims.

    By default, the log has the configured number of state partitions. Raises ConfigError without aiokafka.
    """
    return KafkaLog(
        make_brokers(config, topic, setting="log", value="kafka"),
        TopicConfig(
            topic,
            config.state_partitions if state_partitions is None else state_partitions,
            config.state_topic_replication_factor,
            config.state_topic_min_isr,
        ),
        owner=owner,
        clock=SystemClock(),
        limits=KafkaLogLimits(
            request_timeout_s=config.request_timeout_ms / 1000,
            append_timeout_s=config.delivery_timeout_ms / 1000,
            lease_s=config.owner_lease_ms / 1000,
        ),
        prune_failed=prune_failed,
    )


def describe_log(config: Config) -> str:
    """Return a short description of the log for the startup message."""
    if config.log == "memory":
        return "memory (lost when the process ends)"
    if config.log == "kafka":
        return f"topic {config.state_topic} of {config.bootstrap_servers}"
    return f"journal in {config.data_dir}, sync {config.journal_sync}"
