"""The limits of an audit; each has a flag."""

from typing import NamedTuple


class Limits(NamedTuple):
    """Limits of the checks; times in milliseconds."""

    # K9: Kafka's share.coordinator.snapshot.update.records.per.snapshot; 4.0 to 4.2.0 write one more.
    updates_max: int = 500
    # R4: the highest that group.share.max.delivery.count.limit may be set to.
    delivery_count_max: int = 25
    # R9: the highest that group.share.max.partition.max.record.locks may be set to; max.message.bytes.
    in_flight_max: int = 10_000
    record_bytes_max: int = 1_000_000
    # R10
    clock_ms_max: int = 60_000
    # P1: records that could be pruned; also the number held back by a snapshot that is much older than usual.
    prune_backlog_max: int = 100_000
    cold_snapshot_interval_ms: int = 300_000
    pinned_intervals_max: int = 3
    # P6: the default of transaction.max.timeout.ms.
    transaction_ms_max: int = 900_000
    # P7
    replay_s_max: float = 10.0
    # X5
    below_data_start_max: int = 100_000
