"""Fields that the compiled module shares with Python classes: base classes, compiled where that was built.

A class here has fields and nothing else.  The compiled twin declares the same fields with C types, so that
both sides read and write them by name.
"""

from coordinator import fastpath


class ShardFields:
    """What a write changes in the queue of a shard; see `runtime.shard_queue`."""

    __slots__ = (
        "_append_bytes",
        "_append_finished",
        "_append_started_s",
        "_awaiting",
        "_batch_scheduled",
        "_callback",
        "_in_flight_keys",
        "_next_log_offset",
        "_queue",
        "_queued_indexed",
        "_reads_come",
        "_records_in_flight",
        "_scheduler",
        "shard",
        "state_partition",
        "status",
    )


class SchedulerFields:
    """What planning a turn changes; see `runtime.commit_scheduler`."""

    __slots__ = ("_run_scheduled", "_scheduled")


class ConnectionFields:
    """What tells whether a connection is idle; see `server.connection`."""

    __slots__ = (
        "_handler",
        "_handling",
        "_partial_bytes",
        "_reading",
        "_writable",
        "active_s",
        "disconnected",
    )


class RequestMemoryFields:
    """What all connections hold together; see `server.request_memory`."""

    __slots__ = ("bytes_max", "draining", "held_bytes", "waiting")


if fastpath.compiled is not None:
    ShardFields = fastpath.compiled.ShardFields  # type: ignore[misc]
    SchedulerFields = fastpath.compiled.SchedulerFields  # type: ignore[misc]
    ConnectionFields = fastpath.compiled.ConnectionFields  # type: ignore[misc]
    RequestMemoryFields = fastpath.compiled.RequestMemoryFields  # type: ignore[misc]
