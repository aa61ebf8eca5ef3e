"""Kafka's error codes, and the exceptions of encoding and decoding.

An invalid request for which Kafka has a code is a return value (an `ErrorCode`), not an exception.
Exceptions are for bytes that cannot be decoded and values that cannot be encoded::

    ProtocolError
    ├── DecodeError               bytes that do not parse
    │   └── TooManyElementsError  a request that exceeds the decoding budget of its sender
    ├── EncodeError               a value that has no wire form (also a ValueError)
    ├── FrameError                a frame size that is negative or above the limit
    └── UnsupportedVersionError   an API or a version that this project does not implement
"""

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """The error codes of Kafka's `Errors` that this project sends or handles."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FENCED_STATE_EPOCH = 124


def kafka_error(code: int) -> str:
    """Return "Kafka's error" with the name and the number of a code, which may be unknown here."""
    name = ErrorCode(code).name if code in ErrorCode.__members__.values() else "with the number"
    return f"Kafka's error {name} ({code:d})"


class ProtocolError(Exception):
    """Base class of this package's exceptions; `error_code` is the code for the error response, if any."""

    error_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR


class DecodeError(ProtocolError):
    """Bytes that do not parse: truncated, trailing, a bad length, bad UTF-8."""

    error_code = ErrorCode.INVALID_REQUEST


class TooManyElementsError(DecodeError):
    """A request has more array elements, tagged fields or text than is decoded for its sender."""


class EncodeError(ProtocolError, ValueError):
    """A value has no wire form: out of range, too long, or not part of the requested version."""


class FrameError(ProtocolError):
    """A frame size is negative or above the limit; the rest of the stream cannot be decoded."""

    error_code = ErrorCode.INVALID_REQUEST


class UnsupportedVersionError(ProtocolError):
    """An API key, or a version of an API, is not in the schemas of this project."""

    error_code = ErrorCode.UNSUPPORTED_VERSION
