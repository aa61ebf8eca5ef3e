"""The job `explain`: show the history of a share-partition or of one of its records, step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.errors import ConfigError
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.history import read_history
from coordinator.recovery.manifest import iso_time
from coordinator.recovery.share_partitions import count_state_partitions
from coordinator.recovery.sources.base import LogCut, Source
from coordinator.shard import ShareState
from coordinator.shard.history import (
    HistoryEvent,
    describe_event,
    describe_state,
    record_kind,
    record_leader_epoch,
)
from protocol.routing import state_partition as routed_to
from protocol.state_batches import unpack
from protocol.state_records import SharePartitionKey, topic_id_text


@dataclass(frozen=True)
class Explanation:
    """The history of a share-partition, or of the record at `offset` of its user topic.

    `damages` are those of its state partition: records may be missing in the history.
    """

    key: SharePartitionKey
    state_partition: int
    offset: int | None
    events: Sequence[HistoryEvent]
    steps: int
    summary: str
    damages: Sequence[Mapping[str, Any]]

    def to_json_values(self) -> dict[str, Any]:
        """Return the explanation as values for JSON."""
        return {
            "group_id": self.key.group_id,
            "topic_id": topic_id_text(self.key.topic_id),
            "partition": self.key.partition,
            "state_partition": self.state_partition,
            "offset": self.offset,
            "records": self.steps,
            "summary": self.summary,
            "damages": self.damages,
            "events": [_event_to_json_values(event) for event in self.events],
        }


def explain(
    source: Source,
    key: SharePartitionKey,
    offset: int | None = None,
    *,
    cut: LogCut | None = None,
    state_partitions: int | None = None,
) -> Explanation:
    """Return the history of a share-partition, or of one record of its user topic.

    The function reads the state partition that the hash selects. If there are no records of the
    share-partition, the function reads all state partitions. Raises ConfigError if the share-partition is not
    in the log, and LogError or OSError if reading fails.
    """
    engine = LocalEngine(1)
    state_partitions = state_partitions or count_state_partitions(source.plan(cut or LogCut()).starts)
    hashed = None if state_partitions is None else {routed_to(key, state_partitions)}
    log, found = read_history(engine, source, [key], cut=cut, state_partitions=hashed)
    steps = [step for step in found if hashed is None or step.state_partition in hashed]
    if not steps and hashed is not None:
        log, found = read_history(engine, source, [key], cut=cut)
        steps = list(found)
    if not steps:
        raise ConfigError("share-partition", str(key), f"one that {source.text} has records of")
    events = [event for step in steps if (event := describe_event(step, offset)) is not None]
    number, summary = steps[-1].state_partition, describe_state(steps[-1].after, offset)
    damages = [each for each in log.damages if each["state_partition"] == number]
    return Explanation(key, number, offset, events, len(steps), summary, damages)


def _event_to_json_values(event: HistoryEvent) -> dict[str, Any]:
    """Convert an event of the history to values for JSON."""
    step = event.step
    return {
        "state_partition": step.state_partition,
        "log_offset": step.log_offset,
        "time": iso_time(step.timestamp_ms),
        "owner_epoch": step.owner_epoch,
        "record": record_kind(step),
        "leader_epoch": record_leader_epoch(step),
        "what": event.what,
        "state": None if step.after is None else state_to_json_values(step.after),
    }


def state_to_json_values(state: ShareState) -> dict[str, Any]:
    """Convert a share-partition's state to values for JSON."""
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
