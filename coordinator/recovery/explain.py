"""The job `explain`: show the history of a share-partition or of one of its records, step by step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.errors import ConfigError
from coordinator.recovery.history import HistoryStep, read_history
from coordinator.recovery.live_comparison import format_batch
from coordinator.recovery.manifest import iso_time
from coordinator.recovery.sources.base import Cut, Source
from coordinator.shard import ShareState
from coordinator.shard.batches import NO_START_OFFSET
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition as routed_to
from protocol.state_batches import StateBatch, unpack
from protocol.state_records import SharePartitionKey, topic_id_text

_AVAILABLE, _ACKNOWLEDGED, _ARCHIVING, _ARCHIVED = 0, 2, 3, 4

# The meaning of a stored delivery state. The state ACQUIRED is never stored.
_OUTCOMES = {
    _AVAILABLE: "released, to be delivered again",
    _ACKNOWLEDGED: "accepted",
    _ARCHIVING: "given up, on its way to the dead letter queue",
    _ARCHIVED: "rejected or given up",
}
STATE_NAMES = {
    _AVAILABLE: "AVAILABLE",
    _ACKNOWLEDGED: "ACKNOWLEDGED",
    _ARCHIVING: "ARCHIVING",
    _ARCHIVED: "ARCHIVED",
}

_NOTHING = "nothing"

# Maximum number of state batches in a line of text.
_BATCHES_SHOWN_MAX = 6


class HistoryEvent(NamedTuple):
    """One record of a share-partition, the states before and after it, and a description of its effect."""

    step: HistoryStep
    what: str

    def as_row(self) -> dict[str, Any]:
        """Return the event as values for JSON."""
        state = self.step.after
        return {
            "state_partition": self.step.state_partition,
            "log_offset": self.step.log_offset,
            "time": iso_time(self.step.timestamp_ms),
            "owner_epoch": self.step.owner_epoch,
            "record": kind_of(self.step),
            "leader_epoch": leader_epoch_of(self.step),
            "what": self.what,
            "state": None if state is None else state_as_row(state),
        }


@dataclass(frozen=True)
class Explanation:
    """The history of a share-partition; `offset` is the selected record, if any."""

    key: SharePartitionKey
    state_partition: int
    offset: int | None
    events: Sequence[HistoryEvent]
    steps: int
    summary: str

    def as_row(self) -> dict[str, Any]:
        """Return the explanation as values for JSON."""
        return {
            "group_id": self.key.group_id,
            "topic_id": topic_id_text(self.key.topic_id),
            "partition": self.key.partition,
            "state_partition": self.state_partition,
            "offset": self.offset,
            "records": self.steps,
            "summary": self.summary,
            "events": [event.as_row() for event in self.events],
        }


def explain(
    source: Source,
    key: SharePartitionKey,
    offset: int | None = None,
    *,
    cut: Cut | None = None,
    state_partitions: int | None = None,
) -> Explanation:
    """Return the history of a share-partition, or of one record of its topic.

    Reads the state partition that the hash selects; if it has no records of the share-partition, reads all.
    Raises ConfigError if the share-partition is not in the log, and LogError or OSError if reading fails.
    """
    plan = source.plan(cut or Cut())
    partitions = set(plan.starts)
    if state_partitions is None and partitions == set(range(len(partitions))):
        state_partitions = len(partitions) or None
    steps: list[HistoryStep] = []
    if state_partitions is not None:
        steps = list(read_history(source, plan, [key], {routed_to(key, state_partitions)}))
    if not steps:
        steps = list(read_history(source, plan, [key]))
    if not steps:
        raise ConfigError("share-partition", str(key), f"one that {source.text} has records of")
    events = [HistoryEvent(step, describe_step(step)) for step in steps]
    last = steps[-1].after
    summary = "it has no state any more" if last is None else format_state(last)
    if offset is not None:
        events = list(_steps_of_offset(steps, offset))
        summary = f"record {offset}: {_format_record_state(_delivery_state(last, offset), last, offset)}"
    return Explanation(key, steps[-1].state_partition, offset, events, len(steps), summary)


def _steps_of_offset(steps: Sequence[HistoryStep], offset: int) -> Iterator[HistoryEvent]:
    """Yield the steps that changed the state of one record of the user's topic."""
    for step in steps:
        before, after = _delivery_state(step.before, offset), _delivery_state(step.after, offset)
        if before == after:
            continue
        if after.known == _NOTHING and before.delivery_count:
            yield HistoryEvent(step, "nothing is stored of it any more")
        else:
            yield HistoryEvent(step, _format_record_state(after, step.after, offset))


class _RecordState(NamedTuple):
    known: str
    delivery_count: int = 0


def _delivery_state(state: ShareState | None, offset: int) -> _RecordState:
    """Return the delivery state of one record of the user's topic."""
    if state is None:
        return _RecordState("no state")
    if state.start_offset != NO_START_OFFSET and offset < state.start_offset:
        return _RecordState("done")
    for batch in unpack(state.batches):
        if batch.first_offset <= offset <= batch.last_offset:
            return _RecordState(
                STATE_NAMES.get(batch.delivery_state, str(batch.delivery_state)), batch.delivery_count
            )
    return _RecordState(_NOTHING)


def _format_record_state(fate: _RecordState, state: ShareState | None, offset: int) -> str:
    if fate.known == "no state":
        return "there is no state of the share-partition"
    if fate.known == "done":
        assert state is not None
        return f"done: the start offset is {state.start_offset}"
    if fate.known == _NOTHING:
        return "nothing is stored of it: not delivered yet, or handed out for the first time"
    for number, name in STATE_NAMES.items():
        if name == fate.known:
            return f"{_OUTCOMES[number]} ({name}) at delivery {fate.delivery_count}"
    return f"delivery state {fate.known}, which is never stored, at delivery {fate.delivery_count}"


def describe_step(step: HistoryStep) -> str:
    """Describe the effect of a record."""
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
    """Return the likely reason of a snapshot."""
    if snapshot.create_timestamp != snapshot.write_timestamp:
        return "renewed"
    return "written" if snapshot.state_batches or snapshot.leader_epoch else "initialised"


def _format_batch(batch: StateBatch) -> str:
    span = str(batch.first_offset)
    if batch.last_offset != batch.first_offset:
        span = f"{batch.first_offset}-{batch.last_offset}"
    outcome = _OUTCOMES.get(batch.delivery_state, f"delivery state {batch.delivery_state}")
    return f"{span} {outcome} at delivery {batch.delivery_count}"


def kind_of(step: HistoryStep) -> str:
    """Return the name of a record's kind."""
    value = step.record.value
    if value is None:
        return "tombstone"
    if isinstance(value, ShareSnapshotValue):
        return "snapshot"
    return "update" if isinstance(value, ShareUpdateValue) else "unreadable"


def leader_epoch_of(step: HistoryStep) -> int | None:
    """Return the share-partition leader's epoch that a record names."""
    value = step.record.value
    return value.leader_epoch if isinstance(value, ShareSnapshotValue | ShareUpdateValue) else None


def format_state(state: ShareState | None) -> str:
    """Format a state as one line of text."""
    if state is None:
        return "no state"
    found = unpack(state.batches)
    shown = " ".join(format_batch(batch) for batch in found[:_BATCHES_SHOWN_MAX])
    more = f" and {len(found) - _BATCHES_SHOWN_MAX} more" if len(found) > _BATCHES_SHOWN_MAX else ""
    return (
        f"state epoch {state.state_epoch}, leader epoch {state.leader_epoch}, start offset "
        f"{state.start_offset}, {len(found)} batches{': ' if shown else ''}{shown}{more}"
    )


def state_as_row(state: ShareState) -> dict[str, Any]:
    """Return a state as values for JSON."""
    return {
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "leader_epoch_max": state.leader_epoch_max,
        "snapshot_epoch": state.snapshot_epoch,
        "state_batches": [batch._asdict() for batch in unpack(state.batches)],
        "unreadable": state.unreadable,
    }
