"""Kafka's error codes, and what can go wrong between bytes and values.

A client's mistake that Kafka has a code for is data (an `ErrorCode` in an answer), not an exception.
Exceptions are for bytes that cannot be answered in their own terms::

    ProtocolError
    ├── DecodeError               bytes that do not parse
    │   └── TooManyElementsError  a request that costs more to decode than its sender may spend
    ├── EncodeError               a value that has no wire form (also a ValueError)
    ├── FrameError                a frame size that is negative or above the limit
    └── UnsupportedVersionError   an API or a version of it that we do not speak
"""

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """The codes of Kafka's `Errors` that this project sends or reacts to."""

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


class ProtocolError(Exception):
    """Root of what this package raises. `error_code` is what it becomes where an answer is possible."""

    error_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR


class DecodeError(ProtocolError):
    """Bytes that do not parse: truncated, trailing, a bad length, bad UTF-8."""

    error_code = ErrorCode.INVALID_REQUEST


class TooManyElementsError(DecodeError):
    """A request with more array elements, tagged fields or text than its sender may have decoded."""


class EncodeError(ProtocolError, ValueError):
    """A value that has no wire form: out of range, too long, or not part of the version asked for."""


class FrameError(ProtocolError):
    """A frame size that is negative or above the limit; the stream cannot be followed any further."""

    error_code = ErrorCode.INVALID_REQUEST


class UnsupportedVersionError(ProtocolError):
    """An API key, or a version of an API, that is not in our schemas."""

    error_code = ErrorCode.UNSUPPORTED_VERSION
