"""The exceptions of the client.

::

    ShareCoordinatorError           any other code: CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR ...
    ├── InvalidRequest              the coordinator refuses the request; a retry would fail again
    │   └── Uninitialised           read or write of a share-partition without state: initialise it
    ├── FencedLeaderEpoch           the partition has a newer leader: stop being its leader
    ├── FencedStateEpoch            the state was re-initialised: read it again
    ├── UnknownTopicOrPartition     (R) the topic or the partition does not exist in the cluster
    ├── CoordinatorUnavailable      (R) the share-partition has no coordinator, or it is still loading
    │   ├── Disconnected            (R) connecting failed, or the connection was lost before the response
    │   └── TimedOut                (R) no response in time
    ├── UnsupportedVersion          the server does not serve the API, or in no common version
    ├── AuthenticationFailed        the login or the verification of a certificate failed
    └── ClientClosed                the client was closed before the response

(R): retriable.  Before the client raises a retriable error, it retries as its `RetryPolicy` configures. After
`Disconnected` or `TimedOut`, a write may or may not be stored. Repeating the write is safe, because a
coordinator keeps the greatest delivery count and state of each offset.
"""

from typing import ClassVar, Self

from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey


class ShareCoordinatorError(Exception):
    """A call failed. `key` is the share-partition of the call, or None."""

    retriable: ClassVar[bool] = False

    def __init__(self, error_code: ErrorCode, message: str, key: SharePartitionKey | None = None) -> None:
        super().__init__(error_code, message, key)
        self.error_code = error_code
        self.message = message
        self.key = key

    def __str__(self) -> str:
        about = f"{self.key}: " if self.key is not None else ""
        return f"{about}{self.message} ({self.error_code.name})"

    def with_key(self, key: SharePartitionKey) -> Self:
        """Return a copy of this error for one share-partition, with this error as its cause."""
        error = type(self)(self.error_code, self.message, key)
        error.__cause__ = self
        return error


class InvalidRequest(ShareCoordinatorError):
    """The coordinator refuses the request; the message has the reason."""


class Uninitialised(InvalidRequest):
    """The share-partition has no state: call `initialize` first."""


class FencedLeaderEpoch(ShareCoordinatorError):
    """A leader with a higher leader epoch has read the state; the caller is no longer the leader."""


class FencedStateEpoch(ShareCoordinatorError):
    """The state was initialised with a higher state epoch; the caller's copy of the state is obsolete."""


class UnknownTopicOrPartition(ShareCoordinatorError):
    """The cluster has no such topic id or partition, or the topic was created just now."""

    retriable = True


class CoordinatorUnavailable(ShareCoordinatorError):
    """No coordinator processed the request, or its response was lost."""

    retriable = True


class Disconnected(CoordinatorUnavailable):
    """Connecting failed, or the connection was lost before the response."""


class TimedOut(CoordinatorUnavailable):
    """No response arrived in time."""


class UnsupportedVersion(ShareCoordinatorError):
    """The server does not serve the API, or only in versions that this client does not support."""


class AuthenticationFailed(ShareCoordinatorError):
    """The server refuses the login, or its certificate is not trusted."""


class ClientClosed(ShareCoordinatorError):
    """The client was closed before the response."""


_CLASSES: dict[ErrorCode, type[ShareCoordinatorError]] = {
    ErrorCode.INVALID_REQUEST: InvalidRequest,
    ErrorCode.FENCED_LEADER_EPOCH: FencedLeaderEpoch,
    ErrorCode.FENCED_STATE_EPOCH: FencedStateEpoch,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartition,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CoordinatorUnavailable,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CoordinatorUnavailable,
    ErrorCode.NOT_COORDINATOR: CoordinatorUnavailable,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedVersion,
}


def error_for_code(
    error_code: int, message: str | None, key: SharePartitionKey, *, needs_state: bool = False
) -> ShareCoordinatorError:
    """Return the exception for an error code in the response for a share-partition.

    `needs_state`: INVALID_REQUEST means that there is no state. An unknown code becomes UNKNOWN_SERVER_ERROR,
    with the number in the message.
    """
    try:
        known = ErrorCode(error_code)
    except ValueError:
        text = f"Error code {error_code}: {message or 'no message'}"
        return ShareCoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR, text, key)
    error_class = _CLASSES.get(known, ShareCoordinatorError)
    if error_class is InvalidRequest and needs_state:
        error_class = Uninitialised
    return error_class(known, message or "The coordinator gave no message.", key)
