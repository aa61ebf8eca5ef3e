"""Parse the locations of state on the command line.

``kafka:TOPIC``     a topic of the cluster at bootstrap.servers; __share_group_state selects Kafka's own
                    coordinator
``journal:DIR``     the folder of a journal
``rpc:HOST:PORT``   a share coordinator, accessed through its RPCs; only as a target, because no RPC lists the
                    share-partitions
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from coordinator.config import HostPort
from coordinator.errors import ConfigError

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
        """True for the topic of Kafka's own coordinator."""
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
