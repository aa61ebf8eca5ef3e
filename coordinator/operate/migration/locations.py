"""Parse the locations of state on the command line, and make sources and targets from them.

``kafka:TOPIC``     a topic of the cluster at bootstrap.servers; __share_group_state selects Kafka's own
                    coordinator
``journal:DIR``     the folder of a journal
``rpc:HOST:PORT``   a share coordinator, accessed through its RPCs; only as a target, because no RPC lists the
                    share-partitions
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.configured_brokers import make_brokers
from coordinator.config import Config, HostPort
from coordinator.errors import ConfigError
from coordinator.log.assembly import make_kafka_log
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from coordinator.operate.migration.coordinator_target import CoordinatorTarget
from coordinator.operate.migration.log_target import OWNER, LogTarget
from coordinator.operate.migration.plan import MigrationTarget
from coordinator.operate.migration.readers import JournalReader, LogReader, TopicReader
from coordinator.process.clock import SystemClock
from coordinator.security.client_security import make_client_security

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

# The state topic of Kafka's own coordinator; brokers reject all other writers.
KAFKA_STATE_TOPIC = "__share_group_state"
_OTHER_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class LocationKind(StrEnum):
    """The kinds of locations; the value is the prefix before the colon."""

    TOPIC = "kafka"
    JOURNAL = "journal"
    COORDINATOR = "rpc"


class MigrationLocation(NamedTuple):
    """A location: `where` is a topic, a folder, or host:port."""

    kind: LocationKind
    where: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}"

    @property
    def needs_cluster(self) -> bool:
        """True if the location is in the cluster of bootstrap.servers."""
        return self.kind is LocationKind.TOPIC

    @property
    def is_kafka_state_topic(self) -> bool:
        """True for the state topic of Kafka's own coordinator."""
        return self == MigrationLocation(LocationKind.TOPIC, KAFKA_STATE_TOPIC)


def parse_source(text: str) -> MigrationLocation:
    """Parse the value of --from. Raises ConfigError."""
    place = _parse_location("--from", text)
    if place.kind is LocationKind.COORDINATOR:
        raise ConfigError(
            "--from", text, "kafka:TOPIC or journal:DIR; no RPC of a coordinator lists its share-partitions"
        )
    return place


def parse_target(text: str, source: MigrationLocation) -> MigrationLocation:
    """Parse the value of --to. Raises ConfigError."""
    place = _parse_location("--to", text)
    same = place == source
    if place.kind is source.kind is LocationKind.JOURNAL:
        same = Path(place.where).resolve() == Path(source.where).resolve()
    if same:
        raise ConfigError("--to", text, "another place than --from")
    return place


def _parse_location(flag: str, text: str) -> MigrationLocation:
    word, _, where = text.partition(":")
    allowed = "kafka:TOPIC, journal:DIR or rpc:HOST:PORT"
    if word not in set(LocationKind) or not where:
        raise ConfigError(flag, text, allowed)
    kind = LocationKind(word)
    if kind is LocationKind.COORDINATOR:
        try:
            where = str(HostPort.parse(where))
        except ValueError:
            raise ConfigError(flag, text, allowed) from None
    if kind is LocationKind.TOPIC and (not _TOPIC_NAME.fullmatch(where) or where in _OTHER_INTERNAL_TOPICS):
        raise ConfigError(
            flag, text, f"{KAFKA_STATE_TOPIC}, or a topic that a share-coordinator keeps state in"
        )
    return MigrationLocation(kind, where)


def make_source(place: MigrationLocation, config: Config) -> LogReader:
    if place.kind is LocationKind.JOURNAL:
        return JournalReader(Path(place.where))
    return _make_topic_reader(place.where, config)


def make_target(
    place: MigrationLocation,
    config: Config,
    security: ClientSecurity | None = None,
    *,
    only: Sequence[int] | None = None,
) -> MigrationTarget:
    """Return the target at a location; `security` is for connections to a coordinator.

    If `only` is given, the target is these state partitions of a topic of this project.
    """
    if place.kind is LocationKind.COORDINATOR or place.is_kafka_state_topic:
        bootstrap = place.where if place.kind is LocationKind.COORDINATOR else config.bootstrap_servers
        # Kafka's own coordinator is in the cluster of bootstrap.servers, which has its own security settings.
        if place.is_kafka_state_topic or security is None:
            security = make_client_security(config)
        return CoordinatorTarget(
            bootstrap, _make_topic_reader(KAFKA_STATE_TOPIC, config, bootstrap), security=security
        )
    if place.kind is LocationKind.JOURNAL:
        reader: LogReader = JournalReader(Path(place.where))
        make_log = partial(_make_journal, config, place.where)
    else:
        reader = _make_topic_reader(place.where, config, only=only)
        make_log = partial(_make_topic_log, config, place.where)
    return LogTarget(
        reader, make_log, state_partitions=config.state_partitions, clock=SystemClock(), only=only
    )


def _make_journal(config: Config, folder: str, state_partitions: int) -> StateLog:
    segment_bytes = config.journal_segment_bytes
    return Journal(
        Path(folder), state_partitions=state_partitions, segment_bytes=segment_bytes, sync="always"
    )


def _make_topic_log(config: Config, topic: str, state_partitions: int) -> StateLog:
    return make_kafka_log(config, topic, owner=OWNER, state_partitions=state_partitions)


def _make_topic_reader(
    topic: str,
    config: Config,
    bootstrap_servers: str | None = None,
    only: Sequence[int] | None = None,
) -> TopicReader:
    def make_unconnected_brokers(topic: str) -> "Brokers":
        return make_brokers(
            config,
            topic,
            bootstrap_servers=bootstrap_servers,
            setting="--from or --to",
            value=f"kafka:{topic}",
        )

    return TopicReader(
        topic, make_unconnected_brokers, timeout_s=config.delivery_timeout_ms / 1000, only=only
    )
