"""Where we answer otherwise than Kafka 4.4.0 on purpose: the one list, each with its reason.

The reasons are told to users in docs/differences.md.
"""

from protocol.errors import ErrorCode

# name of the recorded request -> our error code, where Kafka's is another one
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
