"""The limits of an audit; each has a command-line option."""

from typing import NamedTuple


class Limits(NamedTuple):
    """Limits of the checks; comments begin with the id of the check in `catalogue`."""

    # K9: Kafka's share.coordinator.snapshot.update.records.per.snapshot; Kafka 4.0 to 4.2.0 writes one more
    # update.
    updates_max: int = 500
    # R4: the maximum value of group.share.max.delivery.count.limit.
    delivery_count_max: int = 25
    # R9: the maximum value of group.share.max.partition.max.record.locks, and a size just below the default
    # of max.message.bytes.
    in_flight_max: int = 10_000
    record_bytes_max: int = 1_000_000
    # R10: the maximum difference between two clocks.
    clock_ms_max: int = 60_000
    # P1: the maximum number of log offsets that could be pruned, and that one old snapshot prevents from
    # being pruned.
    prune_backlog_max: int = 100_000
    cold_snapshot_interval_ms: int = 300_000
    pinned_intervals_max: int = 3
    # P6: the maximum duration of a transaction, by default Kafka's transaction.max.timeout.ms.
    transaction_ms_max: int = 900_000
    # P7: the maximum estimated time to load a state partition, in seconds.
    replay_s_max: float = 10.0
    # X5: the maximum number of offsets by which a start offset may be below the log start of its user-topic
    # partition.
    below_data_start_max: int = 100_000
