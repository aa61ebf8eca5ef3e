"""Fields that the compiled module shares with Python classes: base classes, compiled where that was built.

A class here has fields and nothing else.  The compiled twin declares the same fields with C types, so that
both sides read and write them by name.
"""

from coordinator import fastpath


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
    ConnectionFields = fastpath.compiled.ConnectionFields  # type: ignore[misc]
    RequestMemoryFields = fastpath.compiled.RequestMemoryFields  # type: ignore[misc]
