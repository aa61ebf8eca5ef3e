"""Validate requests in the order in which Kafka does; the first check that fails decides the error.

Each check returns None or a `Refusal`: an invalid request is a return value, not an exception.  Order and
error codes are those of ShareCoordinatorShard of Kafka 4.4.  The error messages are this project's.

Intended differences are marked "Kafka ...; we ...".
"""

from typing import NamedTuple

from coordinator.shard.batches import find_inverted_batch
from coordinator.shard.state import ShareState
from protocol.errors import ErrorCode


class Refusal(NamedTuple):
    """Reason for refusing an operation: Kafka's error code and a message for the client."""

    error_code: ErrorCode
    error_message: str


NEGATIVE_PARTITION = Refusal(
    ErrorCode.INVALID_REQUEST, "The partition is negative; name a partition of the topic, from 0 up."
)
NEGATIVE_LEADER_EPOCH = Refusal(
    ErrorCode.INVALID_REQUEST, "The leader epoch is negative; send the epoch of the partition's leader."
)
NEGATIVE_STATE_EPOCH = Refusal(
    ErrorCode.INVALID_REQUEST, "The state epoch is negative; send the epoch that a read returned."
)
UNINITIALISED = Refusal(
    ErrorCode.INVALID_REQUEST, "The share-partition is not initialised; initialise its state first."
)
UNKNOWN_TOPIC = Refusal(
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "The cluster has no such topic id, or the topic has no such partition.",
)


def check_leader_epoch(state: ShareState, leader_epoch: int) -> Refusal | None:
    """Refuse a leader epoch below the greatest leader epoch of earlier requests."""
    if leader_epoch >= state.leader_epoch_max:
        return None
    return Refusal(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"Leader epoch {leader_epoch} is older than {state.leader_epoch_max}, "
        "which the coordinator has seen; the partition has a newer leader.",
    )


def check_state_epoch(state: ShareState, state_epoch: int) -> Refusal | None:
    """Refuse a state epoch below the current one."""
    if state_epoch >= state.state_epoch:
        return None
    return Refusal(
        ErrorCode.FENCED_STATE_EPOCH,
        f"State epoch {state_epoch} is older than {state.state_epoch}; "
        "the state was initialised anew, read it again.",
    )


def check_readable(state: ShareState) -> Refusal | None:
    """Refuse an operation on a state whose last record this release could not decode.

    Kafka stops the whole state partition for one such record; we stop one share-partition.
    """
    if state.unreadable is None:
        return None
    return Refusal(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"The state of this share-partition cannot be read ({state.unreadable}); "
        "upgrade the coordinator, or delete and initialise the state anew.",
    )


def check_batch_order(state_batches: bytes) -> Refusal | None:
    """Refuse a batch that ends before it begins.

    Kafka stores such a batch if it is the only one and fails on it otherwise; we refuse it with
    INVALID_REQUEST.
    """
    batch = find_inverted_batch(state_batches)
    if batch is None:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"A state batch ends at offset {batch.last_offset}, before it begins at {batch.first_offset}.",
    )
