"""The limits of the runtime. Times are in seconds of loop time."""

from typing import NamedTuple


class RuntimeLimits(NamedTuple):
    """Limits of the queues, appends, loads and maintenance jobs of the shards.

    `request_age_max_s` is below the request timeout of a broker (30 s). After its timeout, a broker may send
    another write, so an older write must not be executed any more.
    """

    queued_operations_max: int = 100_000
    operations_per_append_max: int = 4_096
    # Maximum work of one callback of the event loop for all shards, in writes to small states: about 10 ms.
    work_per_run_max: int = 4_096
    # Bytes of the keys and values in an append; the last operation of the append may exceed this limit.
    bytes_per_append_max: int = 4 << 20
    write_timeout_s: float = 5.0
    load_wait_s: float = 10.0
    request_age_max_s: float = 25.0
    tick_s: float = 0.25
    reload_backoff_first_s: float = 0.1
    reload_backoff_max_s: float = 30.0
    # Bytes of record batches that are loaded without a pause for other callbacks: about 4 ms.
    load_slice_bytes: int = 64 << 10
    # Records and bytes of one step of a maintenance job. A step takes about 5 ms, and clients wait for it.
    job_records_max: int = 200
    job_bytes_max: int = 256 << 10
    # How long a job pauses after a step of this size; shorter while the log grows.
    job_pause_s: float = 0.015
    compaction_interval_s: float = 10.0
    # How long a new owner waits for the previous one to finish its append and release the shard.
    release_wait_s: float = 8.0
    # How long a stop waits for the releases of the remaining shards.
    release_timeout_s: float = 3.0
