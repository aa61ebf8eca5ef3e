"""All settings: name, type, default, range and meaning of each, in one class.

`Config` is the frozen, validated configuration that the program uses. `SETTINGS` is the same table as data,
for the command line, the documentation and error messages. If Kafka has a setting, its name and default are
used. If a default intentionally differs, the meaning mentions it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Field, model_validator

from coordinator.config.admin import HttpSettings
from coordinator.config.expiry import ExpirySettings
from coordinator.config.fields import (
    INT32_MAX,
    MASK,
    WILDCARD_HOSTS,
    Address,
    Count,
    Folder,
    HostPort,
    Milliseconds,
    SettingInfo,
    to_upper,
)
from coordinator.config.kafka_log import KafkaLogSettings
from coordinator.config.listener_security import ListenerSecuritySettings
from coordinator.config.ownership import OwnershipSettings
from coordinator.config.relay import RelaySettings
from coordinator.config.signals import SignalSettings
from coordinator.errors import ConfigError

# The node ids of replicas are above the first by a hash. A large range makes collisions unlikely.
NODE_ID_FIRST_MAX_IN_GROUP = 2**30


class Config(
    ListenerSecuritySettings,
    OwnershipSettings,
    KafkaLogSettings,
    HttpSettings,
    RelaySettings,
    ExpirySettings,
    SignalSettings,
):
    """All settings of one coordinator process. Frozen: a change requires a restart.

    Raises pydantic.ValidationError for a value outside its range, and ConfigError for inconsistent values.
    """

    listen: Annotated[
        Address,
        SettingInfo("listen", "The address of the Kafka protocol listener for brokers."),
    ] = HostPort("127.0.0.1", 9095)
    http: Annotated[
        Address,
        SettingInfo("http", "The address of the HTTP server: page, API, metrics and probes."),
    ] = HostPort("127.0.0.1", 9096)
    advertise: Annotated[
        Address,
        SettingInfo(
            "advertise",
            "The address that FindCoordinator returns. Default: that of listen. Required if listen is "
            "a wildcard address. Port 0: the port of listen.",
        ),
    ] = HostPort("127.0.0.1", 9095)

    log: Annotated[
        Literal["memory", "journal", "kafka"],
        SettingInfo(
            "log",
            "The state log: a journal on disk, a Kafka topic (at bootstrap.servers), or memory (not "
            "stored; for tests).",
        ),
    ] = "journal"
    data_dir: Annotated[
        Folder, SettingInfo("data.dir", "The directory of the journal, created if missing.")
    ] = Path("data")
    journal_sync: Annotated[
        Literal["always", "os"],
        SettingInfo(
            "journal.sync",
            "When a write is acknowledged. always: after fdatasync. os: when the operating system has "
            "it, so it survives a crash of the process, but not of the machine.",
        ),
    ] = "always"
    journal_segment_bytes: Annotated[
        int,
        Field(ge=1 << 20, le=1 << 30),
        SettingInfo(
            "journal.segment.bytes",
            "The size of a journal segment, allocated in advance.",
        ),
    ] = 64 << 20

    state_partitions: Annotated[
        Count,
        SettingInfo(
            "share.coordinator.state.topic.num.partitions",
            "The number of state partitions. Do not change it while there is state: keys would map to "
            "other shards.",
        ),
    ] = 50
    snapshot_updates_max: Annotated[
        int,
        Field(ge=0, le=500),
        SettingInfo(
            "share.coordinator.snapshot.update.records.per.snapshot",
            "Updates of a share-partition before its next snapshot. Snapshots are also written by "
            "size and age.",
        ),
    ] = 500
    write_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo("share.coordinator.write.timeout.ms", "The time limit for a record to become durable."),
    ] = 5000
    prune_interval_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "share.coordinator.state.topic.prune.interval.ms",
            "How often redundant records are pruned.",
        ),
    ] = 300_000
    cold_snapshot_interval_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "share.coordinator.cold.partition.snapshot.interval.ms",
            "How often share-partitions without recent writes get a snapshot, so that older records "
            "can be pruned.",
        ),
    ] = 300_000

    node_id_first: Annotated[
        int,
        Field(ge=0, le=INT32_MAX),
        SettingInfo(
            "node.id.first",
            "The first node id in FindCoordinator responses, outside the range of the brokers' ids. "
            "At most 1073741824 with ownership=group.",
        ),
    ] = 1_000_000
    node_ids: Annotated[
        int,
        Field(ge=1, le=1000),
        SettingInfo(
            "node.ids",
            "Node ids of a coordinator. A broker opens one connection for each, with one request in flight.",
        ),
    ] = 4

    connections_max: Annotated[
        Count,
        SettingInfo(
            "max.connections",
            "The maximum number of connections; old ones of unauthorized clients are closed for new ones. "
            "ulimit -n may lower it. Kafka's default is unlimited.",
        ),
    ] = 2000
    connections_idle_max_ms: Annotated[
        Milliseconds,
        SettingInfo("connections.max.idle.ms", "Connections without a request for this time are closed."),
    ] = 600_000
    frame_bytes_max: Annotated[
        int,
        Field(ge=1024, le=INT32_MAX),
        SettingInfo(
            "socket.request.max.bytes",
            "The maximum size of a request; a larger one closes its connection. Kafka's default is "
            "104857600.",
        ),
    ] = 16 << 20
    request_elements_max: Annotated[
        int,
        Field(ge=100, le=10_000_000),
        SettingInfo(
            "request.max.elements",
            "The maximum number of elements in a request; more close the connection. Each topic, "
            "partition and key counts 1, as do 16 state batches and 64 bytes of a long text. A "
            "request for 10 000 share-partitions has at most 20 000.",
        ),
    ] = 30_000
    response_bytes_max: Annotated[
        int,
        Field(ge=100, le=INT32_MAX),
        SettingInfo(
            "response.max.bytes",
            "The maximum bytes of state batches in a response. Further share-partitions get "
            "COORDINATOR_NOT_AVAILABLE, and brokers read them again.",
        ),
    ] = 16 << 20
    write_batches_max: Annotated[
        int,
        Field(ge=100, le=1_000_000),
        SettingInfo(
            "share.partition.write.max.batches",
            "The maximum number of state batches for one share-partition in a request; more get "
            "INVALID_REQUEST. Brokers send at most group.share.partition.max.record.locks (10 000).",
        ),
    ] = 20_000
    requests_in_flight_max: Annotated[
        Count,
        SettingInfo(
            "max.in.flight.requests.per.connection",
            "The maximum number of unanswered requests of a connection; then reading pauses.",
        ),
    ] = 64
    queued_bytes_max: Annotated[
        int,
        Field(ge=1024, le=2**63 - 1),
        SettingInfo(
            "queued.max.request.bytes",
            "The maximum bytes of all unanswered requests; then reading pauses. At least "
            "socket.request.max.bytes. Kafka's default is unlimited.",
        ),
    ] = 256 << 20
    decoded_bytes_max: Annotated[
        int,
        Field(ge=1024, le=2**63 - 1),
        SettingInfo(
            "decoded.max.request.bytes",
            "The maximum estimated bytes of decoded large requests (8 KiB and more) of all connections. "
            "Further large requests wait undecoded and count in queued.max.request.bytes.",
        ),
    ] = 128 << 20
    queued_operations_max: Annotated[
        Count,
        SettingInfo(
            "queued.max.operations",
            "The maximum length of the queue of a shard; further operations get COORDINATOR_NOT_AVAILABLE.",
        ),
    ] = 100_000
    load_wait_ms: Annotated[
        int,
        Field(ge=0, le=INT32_MAX),
        SettingInfo(
            "load.wait.ms",
            "How long a request waits for a loading shard before it gets COORDINATOR_LOAD_IN_PROGRESS.",
        ),
    ] = 10_000
    request_age_max_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "request.max.age.ms",
            "An older request is dropped, because brokers wait for 30 s only.",
        ),
    ] = 25_000
    stop_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "stop.timeout.ms",
            "The time limit of a graceful stop: hand-over of shards and responses to accepted requests.",
        ),
    ] = 25_000

    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        BeforeValidator(to_upper),
        SettingInfo("logging.level", "The lowest severity that is logged."),
    ] = "INFO"
    log_format: Annotated[
        Literal["auto", "text", "json"],
        SettingInfo(
            "logging.format",
            "text for terminals, json (an object per line) for log collectors; auto chooses by the output.",
        ),
    ] = "auto"
    metrics_partition_level: Annotated[
        Literal["off", "all"],
        SettingInfo("metrics.partition.level", "all: add metrics per share-partition."),
    ] = "off"
    metrics_partitions_max: Annotated[
        Count,
        SettingInfo(
            "metrics.partition.max",
            "The maximum number of share-partitions with metrics; further ones are omitted.",
        ),
    ] = 10_000

    @model_validator(mode="before")
    @classmethod
    def _default_advertised_address(cls, values: object) -> object:
        if isinstance(values, Mapping) and "listen" in values and "advertise" not in values:
            return {**values, "advertise": values["listen"]}
        return values

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.advertise.host in WILDCARD_HOSTS:
            raise ConfigError("advertise", str(self.advertise), "an address, not a wildcard, for brokers")
        if self.log == "kafka":
            self.check_kafka_log()
        else:
            self.check_single_replica()
        if self.bootstrap_servers:
            self.check_sasl_client()
        self.check_ownership(self.log)
        self.check_expiry()
        self.check_http()
        self.check_signals(self.bootstrap_servers)
        self.check_listener_security(self.listen, forwards=self.ownership == "group")
        if self.queued_bytes_max < self.frame_bytes_max:
            raise ConfigError(
                "queued.max.request.bytes",
                str(self.queued_bytes_max),
                f"at least socket.request.max.bytes ({self.frame_bytes_max})",
            )
        self._check_node_ids()
        return self

    def _check_node_ids(self) -> None:
        most, why = INT32_MAX - self.node_ids + 1, "node.ids ids"
        if self.ownership == "group":
            most, why = NODE_ID_FIRST_MAX_IN_GROUP, "ownership=group"
        if self.node_id_first > most:
            raise ConfigError("node.id.first", str(self.node_id_first), f"at most {most} with {why}")


class Setting(NamedTuple):
    """One row of the table of settings; `attribute` is the field name in `Config`."""

    attribute: str
    name: str
    env: str
    flag: str
    kind: str
    default: str
    allowed: str
    meaning: str
    secret: bool

    def display_value(self, config: Config) -> str:
        """Return the setting's value as text; secrets are masked."""
        value = str(getattr(config, self.attribute))
        return MASK if self.secret and value else value


def env_variable_name(name: str) -> str:
    """Return a setting's environment variable: `max.connections` becomes SHARE_..._MAX_CONNECTIONS."""
    return "SHARE_COORDINATOR_" + name.removeprefix("share.coordinator.").replace(".", "_").upper()


def flag_name(name: str) -> str:
    """Return a setting's flag: `max.connections` becomes --max-connections."""
    return "--" + name.removeprefix("share.coordinator.").replace(".", "-")


def _type_and_allowed_values(annotation: Any, metadata: list[Any], named: SettingInfo) -> tuple[str, str]:
    if get_origin(annotation) is Literal:
        choices = [str(choice) for choice in get_args(annotation)]
        return "choice", f"{', '.join(choices[:-1])} or {choices[-1]}"
    if annotation is HostPort:
        return "address", "HOST:PORT, an IPv6 address in brackets, a port from 0 to 65535"
    if annotation is Path:
        return "path", "a folder"
    if annotation is str:
        return "text", named.allowed
    assert annotation is int
    (low,) = (mark.ge for mark in metadata if isinstance(mark, Ge))
    (high,) = (mark.le for mark in metadata if isinstance(mark, Le))
    return "int", f"a whole number from {low} to {high}"


def _list_settings() -> tuple[Setting, ...]:
    rows = []
    # Python lists fields of base classes first; the documentation lists them last.
    later = {
        **ListenerSecuritySettings.model_fields,
        **HttpSettings.model_fields,
        **KafkaLogSettings.model_fields,
        **OwnershipSettings.model_fields,
        **ExpirySettings.model_fields,
        **SignalSettings.model_fields,
        **RelaySettings.model_fields,
    }
    ours = [attribute for attribute in Config.model_fields if attribute not in later]
    for attribute in (*ours, *later):
        field = Config.model_fields[attribute]
        (named,) = (mark for mark in field.metadata if isinstance(mark, SettingInfo))
        kind, allowed = _type_and_allowed_values(field.annotation, field.metadata, named)
        default = "as listen" if attribute == "advertise" else str(field.default)
        rows.append(
            Setting(
                attribute,
                named.name,
                env_variable_name(named.name),
                flag_name(named.name),
                kind,
                default,
                allowed,
                named.meaning,
                named.secret,
            )
        )
    return tuple(rows)


SETTINGS = _list_settings()
