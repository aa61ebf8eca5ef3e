"""The bounds of the runtime, each with a name. Times in seconds of loop time."""

from typing import NamedTuple


class RuntimeLimits(NamedTuple):
    """How much may wait for a shard, and how long.

    `request_age_max_s` is below the 30 s after which a broker gives a request up and may write
    something else: no write is begun later than that.
    """

    queued_operations_max: int = 100_000
    operations_per_append_max: int = 4_096
    # Keys and values of an append; the last operation in it may exceed that.
    bytes_per_append_max: int = 4 << 20
    write_timeout_s: float = 5.0
    load_wait_s: float = 10.0
    request_age_max_s: float = 25.0
    tick_s: float = 0.25
    reload_backoff_first_s: float = 0.1
    reload_backoff_max_s: float = 30.0
    load_slice_batches: int = 256
    # What a job writes at a time, so that no client waits long behind it.
    job_records_max: int = 500
    job_bytes_max: int = 1 << 20
    compaction_interval_s: float = 10.0
    # How long a claimant lets the owner before it finish its append and release the shard.
    release_wait_s: float = 8.0
    # How long a stop waits for the releases of the shards that are still ours.
    release_timeout_s: float = 3.0
