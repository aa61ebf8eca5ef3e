"""Create the state log that the configuration selects."""

from functools import partial

from coordinator.config import Config
from coordinator.errors import ConfigError
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.log.memory import MemoryLog
from coordinator.metrics import Metrics
from coordinator.process.clock import SystemClock
from coordinator.process.optional_dependencies import KAFKA_EXTRA
from coordinator.security.client_security import make_client_security


def make_log(config: Config, metrics: Metrics) -> StateLog:
    """Create the log that the configuration selects. Raises ConfigError if it is not available."""
    if config.log == "memory":
        return MemoryLog(config.state_partitions)
    if config.log == "kafka":
        return _make_kafka_log(config, metrics)
    return Journal(
        config.data_dir,
        state_partitions=config.state_partitions,
        segment_bytes=config.journal_segment_bytes,
        sync=config.journal_sync,
    )


def _make_kafka_log(config: Config, metrics: Metrics) -> StateLog:
    try:
        # Only the Kafka log needs the client library.
        from coordinator.cluster.kafka.brokers import Brokers
    except ModuleNotFoundError:
        raise ConfigError("log", "kafka", f"memory or journal without aiokafka: {KAFKA_EXTRA}") from None
    security = make_client_security(config)
    request_timeout_s = config.request_timeout_ms / 1000
    brokers = Brokers(
        config.bootstrap_servers, config.state_topic, security=security, request_timeout_s=request_timeout_s
    )
    return KafkaLog(
        brokers,
        TopicConfig(
            config.state_topic,
            config.state_partitions,
            config.state_topic_replication_factor,
            config.state_topic_min_isr,
        ),
        owner=str(config.advertise),
        clock=SystemClock(),
        limits=KafkaLogLimits(
            request_timeout_s=request_timeout_s,
            append_timeout_s=config.delivery_timeout_ms / 1000,
            lease_s=config.owner_lease_ms / 1000,
        ),
        prune_failed=partial(metrics.count, "prune_failures"),
    )


def describe_log(config: Config) -> str:
    """Return a short description of the log for the startup message."""
    if config.log == "memory":
        return "memory (lost when the process ends)"
    if config.log == "kafka":
        return f"topic {config.state_topic} of {config.bootstrap_servers}"
    return f"journal in {config.data_dir}, sync {config.journal_sync}"
