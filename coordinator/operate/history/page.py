"""Read one page of a delivery history from a log. Only the events of the page are kept in memory."""

from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from coordinator.log.claims import FencingFilter
from coordinator.operate.history.request import HistoryRequest, SkipsRequest
from coordinator.shard import ShareState
from coordinator.shard.history import (
    HistoryEvent,
    HistoryStep,
    describe_event,
    describe_state,
    record_kind,
    record_leader_epoch,
)
from protocol.record_batch import LogRecord, decode_batches
from protocol.state_records import StateRecord, decode_record, encode_record

_NO_OWNER_EPOCH = -1


async def read_page(request: HistoryRequest) -> dict[str, Any]:
    """Return the page as values for JSON, the latest event first. Raises LogError and DecodeError."""
    fold = _HistoryFold(request)
    # Keep one more event than the page contains, to know whether there is another page.
    events: deque[HistoryEvent] = deque(maxlen=request.limit + 1)
    async for record in read_records(request):
        step = fold.take(record)
        if step is None or (request.before is not None and step.log_offset >= request.before):
            continue
        event = describe_event(step, request.offset)
        if event is not None:
            events.append(event)
    has_more = len(events) > request.limit
    if has_more:
        events.popleft()
    return {
        "events": [_as_row(event) for event in reversed(events)],
        "next": events[0].step.log_offset if has_more else None,
        "records": fold.records,
        "summary": describe_state(fold.state, request.offset),
        "log_start_offset": fold.log_start_offset,
        "log_start_ms": fold.log_start_ms,
        "pruned": bool(fold.log_start_offset) and not fold.begins_initialised,
    }


class _HistoryFold:
    """Folds the valid records of one share-partition, given all records of its state partition."""

    def __init__(self, request: HistoryRequest) -> None:
        self._state_partition = request.state_partition
        # The keys of snapshots and updates differ only in the record type before this suffix.
        self._key_suffix = encode_record(StateRecord(request.key, None))[0][2:]
        self._fencing_filter = FencingFilter()
        self.state: ShareState | None = None
        self.records = 0
        self.log_start_offset: int | None = None
        self.log_start_ms = 0
        self.begins_initialised = False

    def take(self, record: LogRecord) -> HistoryStep | None:
        """Process the next record; return a step if it is one of the share-partition."""
        if self.log_start_offset is None:
            self.log_start_offset, self.log_start_ms = record.offset, record.timestamp_ms
        if not self._fencing_filter.accepts(record) or record.key is None:
            return None
        if record.key[2:] != self._key_suffix or (decoded := decode_record(record.key, record.value)) is None:
            return None
        owner_epoch = self._fencing_filter.owner_epoch
        step = HistoryStep.apply(
            self.state,
            decoded,
            state_partition=self._state_partition,
            log_offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            owner_epoch=_NO_OWNER_EPOCH if owner_epoch is None else owner_epoch,
        )
        self.state = step.after
        self.records += 1
        if self.records == 1:
            self.begins_initialised = (
                step.after is not None
                and record_kind(step) == "snapshot"
                and (step.after.snapshot_epoch == 0)
            )
        return step


async def read_records(request: HistoryRequest | SkipsRequest) -> AsyncIterator[LogRecord]:
    async for batch_bytes in request.log.batches(request.state_partition):
        for batch in decode_batches(batch_bytes):
            if not batch.is_control:
                for record in batch.records:
                    yield record


def _as_row(event: HistoryEvent) -> dict[str, Any]:
    step = event.step
    state = step.after
    return {
        "log_offset": step.log_offset,
        "time_ms": step.timestamp_ms,
        "owner_epoch": None if step.owner_epoch == _NO_OWNER_EPOCH else step.owner_epoch,
        "record": record_kind(step),
        "leader_epoch": record_leader_epoch(step),
        "what": event.what,
        "delivery_state": event.delivery_state,
        "delivery_count": event.delivery_count,
        "start_offset": None if state is None else state.start_offset,
        "state_batches": 0 if state is None else state.batch_count,
    }
