"""Describe the effect of each state record on its share-partition, or on the delivery of one user record.

The recovery job `explain` and the delivery history of the web page use these functions.
"""

from typing import NamedTuple

from coordinator.shard.batches import NO_START_OFFSET, first_batch_index
from coordinator.shard.state import ShareState, apply_record
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import BATCH_BYTES, DELIVERY_STATES, StateBatch, unpack
from protocol.state_records import StateRecord

_AVAILABLE, _ACKNOWLEDGED, _ARCHIVING, _ARCHIVED = 0, 2, 3, 4

# The meaning of a stored delivery state. The state ACQUIRED is never stored.
_OUTCOMES = {
    _AVAILABLE: "released, to be delivered again",
    _ACKNOWLEDGED: "accepted",
    _ARCHIVING: "given up, on its way to the dead letter queue",
    _ARCHIVED: "rejected or given up",
}
_STORED_STATES = {number: DELIVERY_STATES[number] for number in _OUTCOMES}

_NOTHING = "nothing"

# Maximum number of state batches in a line of text.
_BATCHES_SHOWN_MAX = 6


class HistoryStep(NamedTuple):
    """A state record with a valid owner epoch, and the state of its share-partition before and after it."""

    state_partition: int
    log_offset: int
    timestamp_ms: int
    owner_epoch: int
    record: StateRecord
    before: ShareState | None
    after: ShareState | None

    @classmethod
    def apply(
        cls,
        before: ShareState | None,
        record: StateRecord,
        *,
        state_partition: int,
        log_offset: int,
        timestamp_ms: int,
        owner_epoch: int,
    ) -> "HistoryStep":
        """Apply the next record of the share-partition. Owner epoch -1: the log has no owner epochs."""
        after = apply_record(before, record, timestamp_ms)
        return cls(state_partition, log_offset, timestamp_ms, owner_epoch, record, before, after)


class HistoryEvent(NamedTuple):
    """A step, its effect in words, and delivery state and count of the user's record after the step."""

    step: HistoryStep
    what: str
    delivery_state: str | None = None
    delivery_count: int | None = None


def describe_event(step: HistoryStep, offset: int | None) -> HistoryEvent | None:
    """Return the effect of a step on the share-partition, or on the record at `offset` of the user's topic.

    Return None if the step did not change the user's record.
    """
    if offset is None:
        return HistoryEvent(step, describe_step(step))
    before, after = _delivery_state(step.before, offset), _delivery_state(step.after, offset)
    if before == after:
        return None
    if after.description == _NOTHING and before.delivery_count:
        return HistoryEvent(step, "nothing is stored of it any more")
    return HistoryEvent(
        step,
        _format_record_state(after, step.after, offset),
        after.description if after.delivery_count else None,
        after.delivery_count or None,
    )


def describe_state(state: ShareState | None, offset: int | None) -> str:
    """Describe the latest state of the share-partition, or of the user's record at `offset`."""
    if offset is not None:
        return f"record {offset}: {_format_record_state(_delivery_state(state, offset), state, offset)}"
    return "it has no state any more" if state is None else format_state(state)


class _RecordState(NamedTuple):
    description: str
    delivery_count: int = 0


def _delivery_state(state: ShareState | None, offset: int) -> _RecordState:
    if state is None:
        return _RecordState("no state")
    if state.start_offset != NO_START_OFFSET and offset < state.start_offset:
        return _RecordState("done")
    at = first_batch_index(state.batches, offset) * BATCH_BYTES
    for batch in unpack(state.batches[at : at + BATCH_BYTES]):
        if batch.first_offset <= offset:
            return _RecordState(
                _STORED_STATES.get(batch.delivery_state, str(batch.delivery_state)), batch.delivery_count
            )
    return _RecordState(_NOTHING)


def _format_record_state(record_state: _RecordState, state: ShareState | None, offset: int) -> str:
    if record_state.description == "no state":
        return "there is no state of the share-partition"
    if record_state.description == "done":
        assert state is not None
        return f"done: the start offset is {state.start_offset}"
    if record_state.description == _NOTHING:
        return "nothing is stored of it: not delivered yet, or handed out for the first time"
    for number, name in _STORED_STATES.items():
        if name == record_state.description:
            return f"{_OUTCOMES[number]} ({name}) at delivery {record_state.delivery_count}"
    return (
        f"delivery state {record_state.description}, which is never stored, "
        f"at delivery {record_state.delivery_count}"
    )


def describe_step(step: HistoryStep) -> str:
    value, before, after = step.record.value, step.before, step.after
    if value is None:
        return "deleted"
    if isinstance(value, ShareSnapshotValue):
        return f"snapshot {value.snapshot_epoch} {_snapshot_reason(value)}: {format_state(after)}"
    if isinstance(value, ShareUpdateValue):
        parts = []
        if before is None or value.leader_epoch > before.leader_epoch:
            parts.append(f"leader epoch {value.leader_epoch}")
        if after is not None and (before is None or after.start_offset != before.start_offset):
            parts.append(f"start offset {after.start_offset}")
        written = unpack(value.state_batches)
        parts += [_format_batch(batch) for batch in written[:_BATCHES_SHOWN_MAX]]
        if len(written) > _BATCHES_SHOWN_MAX:
            parts.append(f"and {len(written) - _BATCHES_SHOWN_MAX} batches more")
        return "; ".join(parts) or "nothing new"
    return f"a record that cannot be read: {value.reason}"


def _snapshot_reason(snapshot: ShareSnapshotValue) -> str:
    if snapshot.create_timestamp != snapshot.write_timestamp:
        return "renewed"
    return "written" if snapshot.state_batches or snapshot.leader_epoch else "initialised"


def _format_batch(batch: StateBatch) -> str:
    span = str(batch.first_offset)
    if batch.last_offset != batch.first_offset:
        span = f"{batch.first_offset}-{batch.last_offset}"
    outcome = _OUTCOMES.get(batch.delivery_state, f"delivery state {batch.delivery_state}")
    return f"{span} {outcome} at delivery {batch.delivery_count}"


def record_kind(step: HistoryStep) -> str:
    value = step.record.value
    if value is None:
        return "tombstone"
    if isinstance(value, ShareSnapshotValue):
        return "snapshot"
    return "update" if isinstance(value, ShareUpdateValue) else "unreadable"


def record_leader_epoch(step: HistoryStep) -> int | None:
    """Return the leader epoch of the share-partition in a state record."""
    value = step.record.value
    return value.leader_epoch if isinstance(value, ShareSnapshotValue | ShareUpdateValue) else None


def format_state(state: ShareState | None) -> str:
    if state is None:
        return "no state"
    found = unpack(state.batches)
    shown = " ".join(format_batch(batch) for batch in found[:_BATCHES_SHOWN_MAX])
    more = f" and {len(found) - _BATCHES_SHOWN_MAX} more" if len(found) > _BATCHES_SHOWN_MAX else ""
    return (
        f"state epoch {state.state_epoch}, leader epoch {state.leader_epoch}, start offset "
        f"{state.start_offset}, {len(found)} batches{': ' if shown else ''}{shown}{more}"
    )


def format_batch(batch: StateBatch) -> str:
    """Format a state batch: offsets, delivery state, delivery count."""
    state = _STORED_STATES.get(batch.delivery_state, f"delivery state {batch.delivery_state}")
    return f"({batch.first_offset}-{batch.last_offset} {state}, count {batch.delivery_count})"
