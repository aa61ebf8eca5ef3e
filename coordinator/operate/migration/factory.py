"""Make sources and targets from locations and settings."""

from collections.abc import Callable
from pathlib import Path

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.cluster import Cluster
from coordinator.config import Config
from coordinator.errors import ConfigError
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.operate.migration.coordinator_target import CoordinatorTarget
from coordinator.operate.migration.locations import KAFKA_STATE_TOPIC, LocationKind, MigrationLocation
from coordinator.operate.migration.log_target import OWNER, LogTarget
from coordinator.operate.migration.readers import JournalReader, LogReader, TopicReader
from coordinator.operate.migration.target import MigrationTarget
from coordinator.process.clock import SystemClock
from coordinator.process.optional_dependencies import KAFKA_EXTRA
from coordinator.security.client_security import make_client_security


def make_source(place: MigrationLocation, config: Config) -> LogReader:
    """Return the reader of the source at a location."""
    if place.kind is LocationKind.JOURNAL:
        return JournalReader(Path(place.where))
    return _make_topic_reader(place.where, config, config.bootstrap_servers)


def make_target(
    place: MigrationLocation, config: Config, security: ClientSecurity | None = None
) -> MigrationTarget:
    """Return the target at a location; `security` is for connections to a coordinator."""
    if place.kind is LocationKind.COORDINATOR or place.is_kafka_state_topic:
        bootstrap = place.where if place.kind is LocationKind.COORDINATOR else config.bootstrap_servers
        # Kafka's own coordinator is in the cluster of bootstrap.servers, which has its own security settings.
        if place.is_kafka_state_topic or security is None:
            security = make_client_security(config)
        return CoordinatorTarget(
            bootstrap, _make_topic_reader(KAFKA_STATE_TOPIC, config, bootstrap), security=security
        )
    if place.kind is LocationKind.JOURNAL:
        folder = Path(place.where)

        def make_journal(state_partitions: int) -> StateLog:
            return Journal(
                folder,
                state_partitions=state_partitions,
                segment_bytes=config.journal_segment_bytes,
                sync="always",
            )

        return _make_log_target(JournalReader(folder), make_journal, config)

    def make_topic(state_partitions: int) -> StateLog:
        return KafkaLog(
            _make_connect(config, config.bootstrap_servers)(place.where),
            TopicConfig(
                place.where,
                state_partitions,
                config.state_topic_replication_factor,
                config.state_topic_min_isr,
            ),
            owner=OWNER,
            clock=SystemClock(),
            limits=KafkaLogLimits(
                request_timeout_s=config.request_timeout_ms / 1000,
                append_timeout_s=config.delivery_timeout_ms / 1000,
            ),
        )

    return _make_log_target(
        _make_topic_reader(place.where, config, config.bootstrap_servers), make_topic, config
    )


def _make_log_target(
    reader: JournalReader | TopicReader, make_log: Callable[[int], StateLog], config: Config
) -> LogTarget:
    return LogTarget(reader, make_log, state_partitions=config.state_partitions, clock=SystemClock())


def _make_topic_reader(topic: str, config: Config, bootstrap: str) -> TopicReader:
    return TopicReader(topic, _make_connect(config, bootstrap), timeout_s=config.delivery_timeout_ms / 1000)


def _make_connect(config: Config, bootstrap: str) -> Callable[[str], Cluster]:
    """Return a function that makes the cluster client of a topic. It raises ConfigError without aiokafka."""

    def connect(topic: str) -> Cluster:
        try:
            from coordinator.cluster.kafka.brokers import Brokers
        except ModuleNotFoundError:
            raise ConfigError(
                "--from or --to",
                f"kafka:{topic}",
                f"another place without aiokafka: {KAFKA_EXTRA}",
            ) from None
        request_timeout_s = config.request_timeout_ms / 1000
        return Brokers(bootstrap, topic, security=security, request_timeout_s=request_timeout_s)

    security = make_client_security(config)
    return connect
