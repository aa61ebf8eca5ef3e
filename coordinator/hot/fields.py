"""Fields that the compiled module shares with Python classes: base classes, compiled where that was built.

A class here has fields and nothing else.  The compiled twin declares the same fields with C types, so that
both sides read and write them by name.
"""

from coordinator import hot


class ShardFields:
    """What a write changes in the queue of a shard; see `runtime.turns`."""

    __slots__ = (
        "_append_began_s",
        "_append_bytes",
        "_appending",
        "_changing",
        "_done",
        "_mailbox",
        "_next_log_offset",
        "_queued_seen",
        "_quiet",
        "_reads_come",
        "_rounds",
        "_turn_planned",
        "_waiting",
        "shard",
        "state_partition",
        "status",
    )


class RoundsFields:
    """What planning a turn changes; see `runtime.rounds`."""

    __slots__ = ("_due", "_planned")


class ConnectionFields:
    """What tells whether a connection is idle; see `server.connection`."""

    __slots__ = ("_handler", "_handling", "_partial_bytes", "_reading", "_writable", "active_s", "gone")


class RoomFields:
    """What all connections hold together; see `server.room`."""

    __slots__ = ("bytes_max", "draining", "held_bytes", "waiting")


if hot.compiled is not None:
    ShardFields = hot.compiled.ShardFields  # type: ignore[misc]
    RoundsFields = hot.compiled.RoundsFields  # type: ignore[misc]
    ConnectionFields = hot.compiled.ConnectionFields  # type: ignore[misc]
    RoomFields = hot.compiled.RoomFields  # type: ignore[misc]
