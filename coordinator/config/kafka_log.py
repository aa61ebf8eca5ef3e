"""Settings of the log in a Kafka topic: Kafka's names, or librdkafka's if Kafka's are only for Java."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from coordinator.config.fields import Count, HostPort, Milliseconds, SettingInfo, to_upper
from coordinator.errors import ConfigError

_TOPIC = "share.coordinator.state.topic."
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def _parse_addresses(value: object) -> object:
    if isinstance(value, str) and value:
        return ",".join(str(HostPort.parse(address)) for address in value.split(","))
    return value


def _check_topic_name(value: object) -> object:
    if isinstance(value, str) and (not _TOPIC_NAME.fullmatch(value) or value in (".", "..")):
        raise ValueError(value)
    return value


class KafkaLogSettings(BaseModel):
    """The settings of `Config` for the log in a Kafka topic."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    bootstrap_servers: Annotated[
        str,
        BeforeValidator(_parse_addresses),
        SettingInfo(
            "bootstrap.servers",
            "Brokers of the cluster; one available broker is enough. Required with log=kafka. "
            "Otherwise optional: provides topic names and lag.",
            "HOST:PORT,HOST:PORT",
        ),
    ] = ""
    state_topic: Annotated[
        str,
        BeforeValidator(_check_topic_name),
        SettingInfo(
            _TOPIC + "name",
            "With log=kafka: the state topic, created if missing. Kafka's internal topics are refused.",
            "the name of a topic: letters, digits, dots, dashes and underscores",
        ),
    ] = "_share-coordinator-state"
    state_topic_replication_factor: Annotated[
        int,
        Field(ge=1, le=32767),
        SettingInfo(
            _TOPIC + "replication.factor",
            "The replication factor of a state topic that is created. Lowered with a warning if there "
            "are fewer brokers.",
        ),
    ] = 3
    state_topic_min_isr: Annotated[
        Count,
        SettingInfo(
            _TOPIC + "min.isr",
            "min.insync.replicas of a state topic that is created. At most its replication factor.",
        ),
    ] = 2
    request_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "request.timeout.ms",
            "With log=kafka: how long to wait for a broker's response before the request is repeated. "
            "Kafka's default is 30000.",
        ),
    ] = 10_000
    delivery_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "delivery.timeout.ms",
            "With log=kafka: how long an append is retried. Kafka's default is 120000.",
        ),
    ] = 30_000
    owner_lease_ms: Annotated[
        int,
        Field(ge=100, le=10_000),
        SettingInfo(
            "owner.lease.ms",
            "With log=kafka: how long after an append the owner of a shard answers reads from memory. "
            "After a crash, the next owner waits 1.1 times as long.",
        ),
    ] = 3_000
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        BeforeValidator(to_upper),
        SettingInfo("security.protocol", "The security protocol of connections to brokers."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
        BeforeValidator(to_upper),
        SettingInfo("sasl.mechanism", "The SASL mechanism for connections to brokers."),
    ] = "PLAIN"
    sasl_username: Annotated[str, SettingInfo("sasl.username", "The SASL user name.")] = ""
    sasl_password: Annotated[
        str,
        SettingInfo(
            "sasl.password",
            "The SASL password. Set it in the environment or in a file: other users can see flags.",
            secret=True,
        ),
    ] = ""
    sasl_token_file: Annotated[
        str,
        SettingInfo(
            "sasl.oauthbearer.token.file",
            "With OAUTHBEARER: a file with the token; read at each login.",
            "a file",
        ),
    ] = ""
    ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "ssl.ca.location",
            "A PEM file with the authorities of the brokers. Empty: the system's authorities.",
            "a file",
        ),
    ] = ""
    ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "ssl.certificate.location", "A PEM file with the client certificate. Empty: none.", "a file"
        ),
    ] = ""
    ssl_key_location: Annotated[
        str,
        SettingInfo(
            "ssl.key.location",
            "A PEM file with the key, if it is not in that of the certificate.",
            "a file",
        ),
    ] = ""
    ssl_key_password: Annotated[
        str, SettingInfo("ssl.key.password", "The password of the key.", secret=True)
    ] = ""
    ssl_endpoint_identification_algorithm: Annotated[
        Literal["https", "none"],
        SettingInfo(
            "ssl.endpoint.identification.algorithm",
            "https: a broker's certificate must match its host. none: the host is not checked.",
        ),
    ] = "https"

    def check_kafka_log(self) -> None:
        """Raise ConfigError if a setting that this log requires is missing."""
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap.servers", "", "HOST:PORT of at least one broker of the cluster")

    def check_sasl_client(self) -> None:
        """Raise ConfigError if a setting for the SASL login to brokers is missing."""
        if not self.security_protocol.startswith("SASL"):
            return
        wanted = (
            {"sasl.oauthbearer.token.file": self.sasl_token_file}
            if self.sasl_mechanism == "OAUTHBEARER"
            else {"sasl.username": self.sasl_username, "sasl.password": self.sasl_password}
        )
        for name, value in wanted.items():
            if not value:
                raise ConfigError(name, "", f"given with security.protocol={self.security_protocol}")

    def check_single_replica(self) -> None:
        """Raise ConfigError if replication settings are given for a log with one copy."""
        for attribute, name in (
            ("state_topic_replication_factor", _TOPIC + "replication.factor"),
            ("state_topic_min_isr", _TOPIC + "min.isr"),
        ):
            value = getattr(self, attribute)
            if attribute in self.model_fields_set and value != 1:
                raise ConfigError(
                    name,
                    str(value),
                    "1, because the journal has one copy; see log=kafka",
                )
