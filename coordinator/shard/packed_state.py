"""Pack the state of a share-partition into one bytes object, because a shard may hold millions of states.

A `ShareState` object for each state would take twice the memory, in eight objects.  The garbage collector
does not traverse bytes.  The compiled modules (`coordinator.fastpath`) read and write the same layout in C::

    numbers in native byte order (`NUMBERS`) | batches, 20 bytes each | reason if unreadable

The first number is the log offset of the first needed record (see `coordinator.shard.pruning_offsets`). The
first needed offset is not part of the state. Packed states never leave the process.
"""

from struct import Struct

from coordinator.shard.state import RECORD_OVERHEAD_BYTES, ShareState

# The numbers of a packed state, in the order of `pack`.
NUMBERS = Struct("=7q6i")

# First needed offset of a state whose first record is not durable yet.
NOT_DURABLE = -1

_FIRST_NEEDED_OFFSET = Struct("=q")
_REASON_LENGTH = Struct("=i")
_REASON_BYTES_AT = NUMBERS.size - _REASON_LENGTH.size
_NOT_UNREADABLE = -1


def pack(state: ShareState, first_needed_offset: int) -> bytes:
    """Pack a state and the log offset of its first needed record."""
    reason = b"" if state.unreadable is None else state.unreadable.encode()
    numbers = NUMBERS.pack(
        first_needed_offset,
        state.start_offset,
        state.create_timestamp,
        state.write_timestamp,
        state.last_write_ms,
        state.updates,
        state.update_bytes,
        state.snapshot_epoch,
        state.state_epoch,
        state.leader_epoch,
        state.leader_epoch_max,
        state.delivery_complete_count,
        _NOT_UNREADABLE if state.unreadable is None else len(reason),
    )
    return b"".join((numbers, state.batches, reason))


def unpack(packed: bytes) -> ShareState:
    """Unpack a state; the first needed offset is dropped."""
    (
        _,
        start_offset,
        create_timestamp,
        write_timestamp,
        last_write_ms,
        updates,
        update_bytes,
        snapshot_epoch,
        state_epoch,
        leader_epoch,
        leader_epoch_max,
        delivery_complete_count,
        reason_bytes,
    ) = NUMBERS.unpack_from(packed)
    batches_end = len(packed) - max(reason_bytes, 0)
    return ShareState(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        leader_epoch_max=leader_epoch_max,
        start_offset=start_offset,
        delivery_complete_count=delivery_complete_count,
        create_timestamp=create_timestamp,
        write_timestamp=write_timestamp,
        batches=packed[NUMBERS.size : batches_end],
        updates=updates,
        update_bytes=update_bytes,
        last_write_ms=last_write_ms,
        unreadable=None if reason_bytes == _NOT_UNREADABLE else packed[batches_end:].decode(),
    )


def first_needed_offset(packed: bytes) -> int:
    """Return the log offset of the first needed record of a packed state, or NOT_DURABLE."""
    log_offset: int = _FIRST_NEEDED_OFFSET.unpack_from(packed)[0]
    return log_offset


def with_first_needed_offset(packed: bytes, log_offset: int) -> bytes:
    return _FIRST_NEEDED_OFFSET.pack(log_offset) + packed[_FIRST_NEEDED_OFFSET.size :]


def snapshot_bytes(packed: bytes) -> int:
    """Return the approximate size of a snapshot on the log; see `ShareState.snapshot_bytes`."""
    (reason_bytes,) = _REASON_LENGTH.unpack_from(packed, _REASON_BYTES_AT)
    return RECORD_OVERHEAD_BYTES + len(packed) - NUMBERS.size - max(int(reason_bytes), 0)


def is_readable(packed: bytes) -> bool:
    """Return whether the last record of a packed state could be decoded."""
    (reason_bytes,) = _REASON_LENGTH.unpack_from(packed, _REASON_BYTES_AT)
    return bool(reason_bytes == _NOT_UNREADABLE)
