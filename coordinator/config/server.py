"""Settings of the coordinator itself: addresses, the log, timing, limits and logging."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from coordinator.config.fields import (
    INT32_MAX,
    UPPER_CASE,
    Address,
    Count,
    Folder,
    HostPort,
    Milliseconds,
    NonNegative,
    SettingGroup,
    named_field,
)

# Each state partition takes about 2 KB of memory in each process.
STATE_PARTITIONS_MAX = 10_000


class ServerSettings(SettingGroup):
    """The settings of `Config` for the coordinator itself."""

    listen: Address = HostPort("127.0.0.1", 9095)
    """The address of the Kafka protocol listener for brokers."""

    http: Address = HostPort("127.0.0.1", 9096)
    """The address of the HTTP server: page, API, metrics and probes."""

    advertise: Address = HostPort("127.0.0.1", 9095)
    """The address that FindCoordinator returns. Default: the address of listen. Required if listen is a
    wildcard address. With port 0, the port of listen is returned."""

    log: Literal["memory", "journal", "kafka"] = "journal"
    """The state log: a journal on disk, a Kafka topic (at bootstrap.servers), or memory (not stored; for
    tests)."""

    data_dir: Folder = Path("data")
    """The directory of the journal, created if missing."""

    journal_sync: Literal["always", "os"] = "always"
    """When a write is acknowledged. always: after fdatasync. os: when the operating system has it, so it
    survives a crash of the process, but not of the machine."""

    journal_segment_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 30)] = 64 << 20
    """The size of a journal segment, allocated in advance."""

    state_partitions: Annotated[int, Field(ge=1, le=STATE_PARTITIONS_MAX)] = named_field(
        "share.coordinator.state.topic.num.partitions", 50
    )
    """The number of state partitions. Do not change it while there is state: keys would map to other
    shards."""

    snapshot_updates_max: Annotated[int, Field(ge=0, le=500)] = named_field(
        "share.coordinator.snapshot.update.records.per.snapshot", 500
    )
    """The number of updates of a share-partition before its next snapshot. Snapshots are also written by size
    and age."""

    write_timeout_ms: Milliseconds = named_field("share.coordinator.write.timeout.ms", 5000)
    """The time limit for a record to become durable."""

    prune_interval_ms: Milliseconds = named_field("share.coordinator.state.topic.prune.interval.ms", 300_000)
    """How often redundant records are pruned."""

    cold_snapshot_interval_ms: Milliseconds = named_field(
        "share.coordinator.cold.partition.snapshot.interval.ms", 300_000
    )
    """How often share-partitions without recent writes get a snapshot, so that older records can be
    pruned."""

    node_id_first: NonNegative = 1_000_000
    """The first node id in FindCoordinator responses, outside the range of the brokers' ids. At most
    1073741824 with ownership=group."""

    node_ids: Annotated[int, Field(ge=1, le=1000)] = 4
    """The number of node ids of a coordinator. A broker opens one connection for each id, with one request in
    flight."""

    connections_max: Count = named_field("max.connections", 2000)
    """The maximum number of connections; old connections of unauthorized clients are closed for new
    connections. ulimit -n may lower it. Kafka's default is unlimited."""

    connections_idle_max_ms: Milliseconds = named_field("connections.max.idle.ms", 600_000)
    """Connections without a request for this time are closed."""

    frame_bytes_max: Annotated[int, Field(ge=1024, le=INT32_MAX)] = named_field(
        "socket.request.max.bytes", 16 << 20
    )
    """The maximum size of a request; a larger request closes its connection. Kafka's default is 104857600."""

    request_elements_max: Annotated[int, Field(ge=100, le=10_000_000)] = named_field(
        "request.max.elements", 30_000
    )
    """The maximum number of elements in a request; a request with more closes its connection. Each topic,
    partition and key counts 1, as do 16 state batches and 64 bytes of a long text. A request for 10 000
    share-partitions has at most 20 000 elements."""

    response_bytes_max: Annotated[int, Field(ge=100, le=INT32_MAX)] = named_field(
        "response.max.bytes", 16 << 20
    )
    """The maximum bytes of state batches in a response. Further share-partitions get
    COORDINATOR_NOT_AVAILABLE, and brokers read them again."""

    write_batches_max: Annotated[int, Field(ge=100, le=1_000_000)] = named_field(
        "share.partition.write.max.batches", 20_000
    )
    """The maximum number of state batches for one share-partition in a request; more get INVALID_REQUEST.
    Brokers send at most group.share.partition.max.record.locks (10 000)."""

    requests_in_flight_max: Count = named_field("max.in.flight.requests.per.connection", 64)
    """The maximum number of unanswered requests of a connection; at the limit, reading pauses."""

    queued_bytes_max: Annotated[int, Field(ge=1024, le=2**63 - 1)] = named_field(
        "queued.max.request.bytes", 256 << 20
    )
    """The maximum bytes of all unanswered requests; at the limit, reading pauses. At least
    socket.request.max.bytes. Kafka's default is unlimited."""

    decoded_bytes_max: Annotated[int, Field(ge=1024, le=2**63 - 1)] = named_field(
        "decoded.max.request.bytes", 128 << 20
    )
    """The maximum estimated bytes of decoded large requests (8 KiB and more) of all connections. Further
    large requests wait undecoded and count in queued.max.request.bytes."""

    queued_operations_max: Count = named_field("queued.max.operations", 100_000)
    """The maximum length of the queue of a shard; further operations get COORDINATOR_NOT_AVAILABLE."""

    load_wait_ms: NonNegative = 10_000
    """How long a request waits for a loading shard before it gets COORDINATOR_LOAD_IN_PROGRESS."""

    request_age_max_ms: Milliseconds = named_field("request.max.age.ms", 25_000)
    """An older request is dropped, because brokers wait for 30 s only."""

    stop_timeout_ms: Milliseconds = 25_000
    """The time limit of a graceful stop: hand-over of shards and responses to accepted requests."""

    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], UPPER_CASE] = named_field(
        "logging.level", "INFO"
    )
    """The lowest severity that is logged."""

    log_format: Literal["auto", "text", "json"] = named_field("logging.format", "auto")
    """text for terminals, json (an object per line) for log collectors; auto chooses by the output."""

    metrics_partition_level: Literal["off", "all"] = "off"
    """all: /metrics includes metrics per share-partition."""

    metrics_partitions_max: Count = named_field("metrics.partition.max", 10_000)
    """The maximum number of share-partitions with metrics; further ones are omitted."""
