"""Base classes with the fields that the compiled module shares with Python classes.

A class here has only fields.  If the compiled module was built, its classes replace them: they declare the
same fields with C types, so that Python and C code access them by name.
"""

from coordinator import fastpath


class ConnectionFields:
    """The fields that show whether a connection is idle; see `server.connection`."""

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
    """The request memory that all connections share; see `server.request_memory`."""

    __slots__ = ("bytes_max", "draining", "held_bytes", "waiting")


if fastpath.compiled is not None:
    ConnectionFields = fastpath.compiled.ConnectionFields  # type: ignore[misc]
    RequestMemoryFields = fastpath.compiled.RequestMemoryFields  # type: ignore[misc]
