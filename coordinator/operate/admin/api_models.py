"""The response models of the HTTP API. The docstrings of the models are descriptions in OpenAPI.

64-bit integers are JSON numbers. A time has two fields: ISO 8601 in UTC, and milliseconds since 1970.
"""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

from coordinator.operate.admin.owner_directory import Owner

Item = TypeVar("Item")

# Additional responses of a FastAPI route: HTTP status to model and description.
Responses = dict[int | str, dict[str, Any]]


class ErrorResponse(BaseModel):
    """The reason why the request failed."""

    status: int
    message: str


class ErrorWithOwner(ErrorResponse):
    """The reason why the request failed, and the coordinator that can answer it."""

    owner: Owner | None = None


class Page(BaseModel, Generic[Item]):
    """A part of a list: up to `limit` items from `offset` on, of `total` items."""

    items: list[Item]
    total: int
    limit: int
    offset: int


class StatePage(Page[Item], Generic[Item]):
    """A part of a list of groups or share-partitions; the list may be incomplete."""

    next: str | None = Field(
        description="The value of `after` for the next page; null if there is none, or if the order is not "
        "the default one."
    )
    missing_shards: list[int] = Field(
        description="State partitions that are not loaded; the list is incomplete without their state."
    )


class Liveness(BaseModel):
    """The process is alive."""

    status: str
    event_loop_lag_seconds: float = Field(description="Delay of the last timer of the event loop.")


class Readiness(BaseModel):
    """Whether all shards are served, and the reasons if not."""

    status: str
    reasons: list[str]


class Summary(BaseModel):
    """Summary of a coordinator."""

    status: str
    reasons: list[str]
    version: str
    observes: str | None = Field(description="The state topic and cluster of an observer, else null.")
    listen: str
    advertise: str
    log: str
    ownership: str = Field(description="static: this process owns all shards. group: several share them.")
    shards: dict[str, int] = Field(description="Number of shards by status.")
    share_partitions: int
    state_batches: int
    live_bytes: int
    event_loop_lag_seconds: float
    cluster_error: str | None = Field(description="Why topic names and end offsets are unknown, or null.")
    missing_access: list[str] = Field(description="Topics and groups whose lag or members are unknown.")


class Shard(BaseModel):
    """The shard of one state partition, with its log and its owner."""

    owner: Owner | None = Field(description="The owner of the shard, or null if it is not known.")
    here: bool = Field(description="Whether this process owns the shard.")
    state_partition: int
    status: str = Field(description="LOADING, ACTIVE, FAILED or CLOSED.")
    failure: str | None = Field(description="Why the last load failed.")
    owner_epoch: int
    share_partitions: int = Field(description="Number of share-partitions with state.")
    start_log_offset: int = Field(description="The first offset of the log.")
    end_log_offset: int = Field(description="Log offset of the next record.")
    redundant_offset: int = Field(description="Records below this log offset are no longer needed.")
    load_ms: int = Field(description="Duration of the last load.")
    loaded_records: int = Field(description="Records read at the last load.")
    live_bytes: int = Field(description="Bytes of the log records that are not redundant.")
    log_records: int = Field(description="Number of offsets in the log.")
    prune_lag: int = Field(description="Number of offsets in the log that are no longer needed.")
    state_batches: int = Field(description="Offset ranges with a delivery state.")


class Group(BaseModel):
    """A share group with state in this coordinator."""

    group: str
    topics: int
    share_partitions: int
    state_batches: int = Field(description="Offset ranges with a delivery state, over all share-partitions.")
    lag: int | None = Field(description="Incomplete records a few seconds ago, or null if not known.")
    in_flight_records: int | None = Field(description="Records with a delivery state a few seconds ago.")
    problem: str = Field(description="The most severe problem (see /api/v1/signals), or none.")
    last_write: str | None
    last_write_ms: int


class SharePartition(BaseModel):
    """The state of one topic partition for one share group."""

    group: str
    topic: str | None = Field(description="The name of the topic, or null if it is not known.")
    topic_id: str = Field(description="The topic id as Kafka writes it: base64url.")
    topic_uuid: str = Field(description="The topic id as a UUID with hyphens.")
    partition: int
    state_partition: int
    start_offset: int = Field(
        description="Share-partition start offset: all records below it are complete. -1: not known yet, the "
        "leader uses share.auto.offset.reset."
    )
    end_offset: int | None = Field(
        description="The end offset of the topic partition, or null if it is not known."
    )
    lag: int | None = Field(
        description="Incomplete records, as kafka-share-groups.sh counts them: end offset - start offset - "
        "delivery complete count. null if one of these is not known."
    )
    state_epoch: int = Field(description="Increases when the group coordinator (re)initialises the state.")
    leader_epoch: int = Field(
        description="The leader epoch of the last share-partition leader that read the state."
    )
    in_flight_records: int = Field(
        description="Offsets at or above the start offset that have a delivery state."
    )
    records_by_state: dict[str, int] = Field(description="Number of in-flight records by delivery state.")
    delivery_count_max: int = Field(description="The highest delivery count of in-flight records, or 0.")
    state_batches: int = Field(description="Number of offset ranges of the in-flight records.")
    delivery_complete_count: int = Field(
        description="Offsets at or above the start offset whose delivery is complete. -1: not known."
    )
    last_write: str | None
    last_write_ms: int
    unreadable: str | None = Field(
        description="Why the state cannot be served: this release cannot read a record. null otherwise."
    )


class OffsetRange(BaseModel):
    """A range of offsets, both ends inclusive, with one delivery state and delivery count."""

    first_offset: int
    last_offset: int
    records: int
    delivery_state: str
    delivery_state_number: int
    delivery_count: int


class IncompleteRecord(BaseModel):
    """A record whose delivery is not complete."""

    offset: int
    delivery_state: str | None = Field(
        description="null: no state is stored; the record is in its first delivery, or was not delivered."
    )
    delivery_count: int


class SharePartitionDetail(SharePartition):
    """The whole state of one share-partition."""

    leader_epoch_max: int = Field(description="The highest leader epoch so far; lower ones are fenced.")
    snapshot_epoch: int = Field(description="Number of snapshots of this share-partition, minus one.")
    snapshot_created_ms: int
    snapshot_written_ms: int
    updates_since_snapshot: int
    last_in_flight_offset: int | None = Field(description="The highest offset that has a delivery state.")
    oldest_incomplete: IncompleteRecord | None = Field(
        description="The lowest incomplete record, at which the start offset stops. null if none is known."
    )
    most_delivered: list[OffsetRange] = Field(
        description="Offset ranges that were delivered more than once, most often delivered first."
    )
    in_flight: Page[OffsetRange]


class SharePartitionWithNearRanges(SharePartitionDetail):
    """The whole state of one share-partition, and its offset ranges from `from_offset` on."""

    near: list[OffsetRange] = Field(
        default=[],
        description="The first 256 offset ranges that end at or above `from_offset`. They cover at least 256 "
        "offsets. Present only if `from_offset` is given.",
    )


class DeliveryEvent(BaseModel):
    """A record of the state log, and what it did to the share-partition or to the selected record."""

    log_offset: int = Field(description="The offset in the log of the state partition.")
    time: str | None
    time_ms: int
    owner_epoch: int | None = Field(
        description="The owner epoch of the coordinator that wrote it. null: the log has none."
    )
    record: str = Field(description="snapshot, update, tombstone or unreadable.")
    leader_epoch: int | None
    what: str = Field(description="The effect in words, as `recovery explain` prints it.")
    delivery_state: str | None = Field(description="The stored delivery state of the selected record.")
    delivery_count: int | None
    start_offset: int | None
    state_batches: int


class DeliveryHistory(BaseModel):
    """What the state log contains about a share-partition, or about one record; the latest event first.

    Acquisitions are not stored, only their results; the delivery count shows them.
    """

    group: str
    topic: str | None
    topic_id: str
    partition: int
    state_partition: int
    record_offset: int | None = Field(description="The selected record, or null.")
    events: list[DeliveryEvent]
    next: int | None = Field(description="The value of `before` for earlier events; null if there are none.")
    records: int = Field(description="Number of records of the share-partition in the log.")
    summary: str = Field(description="The state after the last event.")
    log_start_offset: int
    log_start: str | None = Field(description="The time of the first record in the log.")
    pruned: str | None = Field(
        description="Why earlier events are unknown; null if the history begins with the initialisation."
    )
