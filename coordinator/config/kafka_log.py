"""Settings of the log in a Kafka topic: Kafka's names, or librdkafka's if Kafka's are only for Java."""

from typing import Annotated

from pydantic import Field

from coordinator.config.fields import (
    Addresses,
    Count,
    EndpointIdentification,
    Milliseconds,
    SecurityProtocol,
    SettingGroup,
    TopicName,
    named_field,
    require_values,
)
from coordinator.config.security_groups import SaslSettings, TlsSettings
from coordinator.errors import ConfigError


class KafkaLogSettings(SettingGroup):
    """The settings of `Config` for the log in a Kafka topic."""

    bootstrap_servers: Addresses = ""
    """Brokers of the cluster; one available broker is enough. Required with log=kafka. With other logs, it is
    optional and provides topic names and lag."""

    state_topic: TopicName = named_field("share.coordinator.state.topic.name", "_share-coordinator-state")
    """With log=kafka: the state topic, created if missing. Kafka's internal topics are refused."""

    state_topic_replication_factor: Annotated[int, Field(ge=1, le=32767)] = named_field(
        "share.coordinator.state.topic.replication.factor", 3
    )
    """The replication factor of a state topic that is created. If there are fewer brokers, a lower factor is
    used, with a warning."""

    state_topic_min_isr: Count = named_field("share.coordinator.state.topic.min.isr", 2)
    """min.insync.replicas of a state topic that is created. The maximum is the replication factor."""

    request_timeout_ms: Milliseconds = 10_000
    """With log=kafka: how long to wait for a broker's response before the request is repeated. Kafka's
    default is 30000."""

    delivery_timeout_ms: Milliseconds = 30_000
    """With log=kafka: how long an append is retried. Kafka's default is 120000."""

    owner_lease_ms: Annotated[int, Field(ge=100, le=10_000)] = 3_000
    """With log=kafka: how long after an append the owner of a shard answers reads from memory. After a
    crash, the next owner waits 1.1 times as long."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    """The security protocol of connections to brokers."""

    sasl: SaslSettings = SaslSettings()
    """For connections to brokers."""

    ssl: TlsSettings = TlsSettings()
    """For connections to brokers."""

    ssl_endpoint_identification_algorithm: EndpointIdentification = "https"
    """https: a broker's certificate must match its host. none: the host is not checked."""

    def check_kafka_log(self) -> None:
        require_values(
            {"bootstrap.servers": self.bootstrap_servers},
            "HOST:PORT of at least one broker of the cluster",
        )

    def check_sasl_client(self) -> None:
        """Raise ConfigError if a setting for the SASL login to brokers is missing."""
        if self.security_protocol.startswith("SASL"):
            self.sasl.check_login("sasl", f"given with security.protocol={self.security_protocol}")

    def check_single_replica(self) -> None:
        """Raise ConfigError if replication settings are given for a log with one copy."""
        for attribute, name in (
            ("state_topic_replication_factor", "share.coordinator.state.topic.replication.factor"),
            ("state_topic_min_isr", "share.coordinator.state.topic.min.isr"),
        ):
            value = getattr(self, attribute)
            if attribute in self.model_fields_set and value != 1:
                raise ConfigError(name, str(value), "1, because the journal has one copy; see log=kafka")
