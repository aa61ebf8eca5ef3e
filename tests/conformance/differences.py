"""List the error codes that intentionally differ from the error codes of Kafka 4.4.0, with reasons.

docs/differences.md explains the reasons to users.
"""

from protocol.errors import ErrorCode

# The name of a recorded request, and the error code of this coordinator that differs from Kafka's.
ERROR_CODES: dict[str, tuple[ErrorCode, str]] = {
    "batch with last below first": (
        ErrorCode.INVALID_REQUEST,
        "Kafka fails with a NullPointerException (UNKNOWN_SERVER_ERROR); we say what is wrong.",
    ),
    "partition the topic lacks: delete": (
        ErrorCode.NONE,
        "Kafka refuses to delete state of what is gone from the cluster, and so a group that once "
        "consumed a deleted topic cannot be deleted; deletion succeeds whatever the cluster knows.",
    ),
}
