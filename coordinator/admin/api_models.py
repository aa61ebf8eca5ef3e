"""What the HTTP API answers with. The descriptions here are the OpenAPI page's.

Every 64-bit number is a JSON number; times are given twice, as ISO 8601 in UTC and as milliseconds since
1970.
"""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from coordinator.admin.owner_directory import Owner

Item = TypeVar("Item")

# How FastAPI wants to be told of other answers: status to what is known of it.
Responses = dict[int | str, dict[str, Any]]


class ErrorResponse(BaseModel):
    """Why there is no answer."""

    status: int
    message: str


class ErrorWithOwner(ErrorResponse):
    """There is no answer here, and who would have one."""

    owner: Owner | None = None


class Page(BaseModel, Generic[Item]):
    """A part of a list: `limit` items from the `offset`th on, of `total` in all."""

    items: list[Item]
    total: int
    limit: int
    offset: int


class Liveness(BaseModel):
    """That this answer came at all is the news."""

    status: str
    event_loop_lag_seconds: float = Field(description="How late the event loop called back last time.")


class Readiness(BaseModel):
    """Whether all shards are served, and if not, why."""

    status: str
    reasons: list[str]


class Summary(BaseModel):
    """A coordinator at a glance."""

    status: str
    reasons: list[str]
    version: str
    listen: str
    advertise: str
    log: str
    ownership: str = Field(description="static: this process owns all shards. group: several share them.")
    shards: dict[str, int] = Field(description="Number of shards by status.")
    share_partitions: int
    state_batches: int
    live_bytes: int
    event_loop_lag_seconds: float
    cluster_trouble: str | None = Field(
        description="Why names of topics and end offsets are not known, or None."
    )


class Shard(BaseModel):
    """One state partition: a share of all share-partitions, with a log and an owner of its own."""

    model_config = ConfigDict(from_attributes=True)

    owner: Owner | None = Field(description="Who owns the shard, here or elsewhere, if that is known.")
    here: bool = Field(description="Whether the shard belongs to this process.")
    state_partition: int
    status: str = Field(description="LOADING, ACTIVE, FAILED or CLOSED.")
    failure: str | None = Field(description="Why the last load failed.")
    owner_epoch: int
    share_partitions: int = Field(description="Number of share-partitions with state.")
    start_log_offset: int = Field(description="First log offset that is still there.")
    end_log_offset: int = Field(description="Log offset of the next record.")
    redundant_offset: int = Field(description="Records below this log offset are not needed any more.")
    load_ms: int = Field(description="How long the last load took.")
    loaded_records: int = Field(description="Records read at the last load.")
    live_bytes: int = Field(description="Bytes on the log that are not redundant.")
    log_records: int = Field(description="Log offsets that are still there.")
    prune_lag: int = Field(description="Log offsets that are still there and not needed any more.")
    state_batches: int = Field(description="Runs of offsets with a delivery state.")


class Group(BaseModel):
    """A share group that has state here."""

    group: str
    topics: int
    share_partitions: int
    state_batches: int = Field(
        description="Runs of offsets with a delivery state, over all share-partitions."
    )
    last_write: str | None
    last_write_ms: int


class GroupPage(Page[Group]):
    """A part of the list of groups."""

    missing_shards: list[int] = Field(
        description="State partitions that are not loaded: what they hold is not in the list."
    )


class SharePartition(BaseModel):
    """The state of one partition of a topic as one share group consumes it."""

    group: str
    topic: str | None = Field(description="The name of the topic, if the cluster told it.")
    topic_id: str = Field(description="The topic id as Kafka writes it: base64url.")
    topic_uuid: str = Field(description="The same with hyphens.")
    partition: int
    state_partition: int
    start_offset: int = Field(
        description="Share-partition start offset: everything below is done with. -1: not known yet, the "
        "leader begins by share.auto.offset.reset."
    )
    end_offset: int | None = Field(
        description="The offset of the next record of the user's partition, if the cluster told it."
    )
    lag: int | None = Field(
        description="Records that are not done with, as kafka-share-groups.sh counts them: end offset - "
        "start offset - delivery complete count. None if one of these is not known."
    )
    state_epoch: int = Field(description="Rises when the group coordinator (re)initialises the state.")
    leader_epoch: int = Field(
        description="The leader epoch of the last share-partition leader that read the state."
    )
    in_flight_records: int = Field(
        description="Offsets at or above the start offset that have a delivery state."
    )
    records_by_state: dict[str, int] = Field(description="Number of in-flight records by delivery state.")
    delivery_count_max: int = Field(description="The highest delivery count of these, 0 without any.")
    state_batches: int = Field(description="Runs of such offsets.")
    delivery_complete_count: int = Field(
        description="Offsets at or above the start offset whose delivery is complete. -1: never told."
    )
    last_write: str | None
    last_write_ms: int
    unreadable: str | None = Field(
        description="Why the state cannot be served: a record that this release does not understand."
    )


class SharePartitionPage(Page[SharePartition]):
    """A part of a list of share-partitions."""

    missing_shards: list[int] = Field(
        description="State partitions that are not loaded: what they hold is not in the list."
    )


class OffsetRange(BaseModel):
    """A run of offsets, both ends inclusive, with one delivery state and delivery count."""

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
        description="None: nothing is noted of it; it is with its first consumer, or with none yet."
    )
    delivery_count: int


class SharePartitionDetail(SharePartition):
    """The whole state of one share-partition."""

    leader_epoch_max: int = Field(description="The highest leader epoch ever seen: lower ones are fenced.")
    snapshot_epoch: int = Field(description="Counts the snapshots of this share-partition.")
    snapshot_created_ms: int
    snapshot_written_ms: int
    updates_since_snapshot: int
    last_in_flight_offset: int | None = Field(description="The highest offset that has a delivery state.")
    oldest_unfinished: IncompleteRecord | None = Field(
        description="The record that holds the start offset back. None: there is none, or none is known of."
    )
    most_delivered: list[OffsetRange] = Field(
        description="Runs that were delivered more than once, the most often delivered first."
    )
    in_flight: Page[OffsetRange]


class WindowChart(BaseModel):
    """What a picture of a share-partition is made of, however many runs it has."""

    near: list[OffsetRange] = Field(
        description="The first 256 runs that end at or above `from_offset`: all that touch the 256 offsets "
        "from there on."
    )
    columns: list[dict[str, int]] = Field(
        description="The window, from the start offset to the last offset in flight, in parts of equal "
        "width: the number of the records of each by delivery state."
    )


class SharePartitionWithChart(SharePartitionDetail):
    """The whole state of one share-partition, and if it is asked for what a picture is made of."""

    drawing: WindowChart | None = Field(default=None, description="Only there if `columns` are asked for.")


class GroupDetail(Group):
    """A share group and its share-partitions, by topic id and partition."""

    partitions: Page[SharePartition]
    missing_shards: list[int] = Field(
        description="State partitions that are not loaded: what they hold is not in the list."
    )
