"""What a call of the client raises, in one tree.

::

    ShareCoordinatorError           any other code: CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR ...
    ├── InvalidRequest              the coordinator refuses the request as it stands
    │   └── Uninitialised           read or write of a share-partition without state: initialise it
    ├── FencedLeaderEpoch           the partition has a newer leader: stop being its leader
    ├── FencedStateEpoch            the state was initialised anew since: read it again
    ├── UnknownTopicOrPartition     (R) the cluster does not know the topic or the partition
    ├── CoordinatorUnavailable      (R) no coordinator for the share-partition, or it is still loading
    │   ├── Disconnected            (R) no connection, or it was lost before the answer came
    │   └── TimedOut                (R) no answer in time
    ├── UnsupportedVersion          the server does not serve the API, or in no version that we speak
    ├── AuthenticationFailed        one side does not believe that the other is who it says
    └── ClientClosed                the client was closed before the answer came

(R): retriable.  The client has tried again by itself, as often as its `RetryPolicy` says, before it raises
one of these.  After `Disconnected` and `TimedOut` of a write nobody knows whether it is stored; repeating
it is safe, because a coordinator keeps the greatest delivery count and state of each offset.
"""

from typing import ClassVar, Self

from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey


class ShareCoordinatorError(Exception):
    """A call did not succeed. `key` is the share-partition it was about, None if it was about none."""

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
        """Return the same error as that of one share-partition, with this one as its cause."""
        error = type(self)(self.error_code, self.message, key)
        error.__cause__ = self
        return error


class InvalidRequest(ShareCoordinatorError):
    """The coordinator refuses the request as it stands; its message says why."""


class Uninitialised(InvalidRequest):
    """The share-partition has no state: `initialize` comes first."""


class FencedLeaderEpoch(ShareCoordinatorError):
    """A leader with a higher leader epoch has read the state; the caller does not lead any more."""


class FencedStateEpoch(ShareCoordinatorError):
    """The state was initialised with a higher state epoch; what the caller knows of it is void."""


class UnknownTopicOrPartition(ShareCoordinatorError):
    """The cluster does not know the topic id or the partition; right after creation this passes."""

    retriable = True


class CoordinatorUnavailable(ShareCoordinatorError):
    """No coordinator carried the request out, or none said so."""

    retriable = True


class Disconnected(CoordinatorUnavailable):
    """There was no connection to be had, or it was lost before the answer came."""


class TimedOut(CoordinatorUnavailable):
    """The answer did not come in time."""


class UnsupportedVersion(ShareCoordinatorError):
    """The server does not serve the API, or only in versions that we do not speak."""


class AuthenticationFailed(ShareCoordinatorError):
    """The server does not take our login, or its certificate is not one that we trust."""


class ClientClosed(ShareCoordinatorError):
    """The client was closed before the answer came."""


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
    """Make the exception for an error code in an answer about a share-partition.

    `needs_state`: the operation is refused with INVALID_REQUEST where there is no state. A code that we
    do not know becomes UNKNOWN_SERVER_ERROR, its number in the message.
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
