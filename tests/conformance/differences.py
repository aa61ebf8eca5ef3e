"""List the error codes that intentionally differ from the error codes of Kafka 4.4.0, with reasons.

docs/differences.md explains the reasons to users.
"""

from protocol.errors import ErrorCode

# The name of a recorded request, and the error code of this coordinator that differs from Kafka's.
ERROR_CODES: dict[str, tuple[ErrorCode, str]] = {
    "batch with last below first": (
        ErrorCode.INVALID_REQUEST,
        "Kafka fails with a NullPointerException (UNKNOWN_SERVER_ERROR); we respond with the cause.",
    ),
    "partition the topic lacks: delete": (
        ErrorCode.NONE,
        "Kafka refuses to delete the state of a deleted topic, so a group that consumed the topic cannot "
        "be deleted; we delete the state even if the topic does not exist.",
    ),
}
