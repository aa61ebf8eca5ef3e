"""The program of the process that reads the log: it receives pickled requests and sends responses.

A timer ends the process if a request takes longer than `SECONDS_MAX`. The memory of the process is limited.
"""

import asyncio
import resource
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from coordinator.errors import CoordinatorError
from coordinator.log.claims import FencingFilter
from coordinator.log.other_process import LogLocation
from coordinator.observe.signals.changes import compute_change
from coordinator.observe.signals.losses import LoggedSkips
from coordinator.shard import ShareState
from coordinator.shard.history import (
    HistoryEvent,
    HistoryStep,
    describe_event,
    describe_state,
    record_kind,
    record_leader_epoch,
)
from coordinator.shard.state import apply_record
from protocol.errors import DecodeError
from protocol.record_batch import LogRecord, decode_batches
from protocol.state_records import SharePartitionKey, StateRecord, decode_record, encode_record

_NO_OWNER_EPOCH = -1


class HistoryRequest(NamedTuple):
    """A request for the latest `limit` events of a share-partition.

    If `before` is set, only events below this log offset are returned. If `offset` is set, only events of the
    record with this offset are returned.
    """

    log: LogLocation
    state_partition: int
    key: SharePartitionKey
    offset: int | None
    before: int | None
    limit: int

    async def read(self) -> dict[str, Any]:
        """Return a page of the history as values for JSON, the latest event first.

        Only the events of the page are kept in memory. Raises LogError and DecodeError.
        """
        records = _ValidRecords(self.log, self.state_partition, [self.key])
        state: ShareState | None = None
        count = 0
        begins_initialised = False
        # Keep one more event than the page contains, to know whether there is another page.
        events: deque[HistoryEvent] = deque(maxlen=self.limit + 1)
        async for logged, record in records:
            owner_epoch = records.fencing_filter.owner_epoch
            step = HistoryStep.apply(
                state,
                record,
                state_partition=self.state_partition,
                log_offset=logged.offset,
                timestamp_ms=logged.timestamp_ms,
                owner_epoch=_NO_OWNER_EPOCH if owner_epoch is None else owner_epoch,
            )
            state = step.after
            count += 1
            if count == 1 and state is not None:
                begins_initialised = record_kind(step) == "snapshot" and state.snapshot_epoch == 0
            if self.before is None or step.log_offset < self.before:
                event = describe_event(step, self.offset)
                if event is not None:
                    events.append(event)
        has_more = len(events) > self.limit
        if has_more:
            events.popleft()
        return {
            "events": [_make_event_fields(event) for event in reversed(events)],
            "next": events[0].step.log_offset if has_more else None,
            "records": count,
            "summary": describe_state(state, self.offset),
            "log_start_offset": records.start_offset,
            "log_start_ms": records.start_ms,
            "pruned": bool(records.start_offset) and not begins_initialised,
        }


class SkipsRequest(NamedTuple):
    """A request for the skips in the log of one state partition.

    A skip is a start offset that passed incomplete records. `from_offsets` has, for each share-partition, the
    lowest start offset before a skip.
    """

    log: LogLocation
    state_partition: int
    from_offsets: Mapping[SharePartitionKey, int]

    async def read(self) -> dict[SharePartitionKey, LoggedSkips]:
        """Return the skips. Raises LogError and DecodeError."""
        states: dict[SharePartitionKey, ShareState | None] = {}
        skips: dict[SharePartitionKey, list[tuple[int, int]]] = {key: [] for key in self.from_offsets}
        async for logged, record in _ValidRecords(self.log, self.state_partition, self.from_offsets):
            key = record.key
            before = states.get(key)
            change = compute_change(before, record)
            if before is not None and change.skipped and before.start_offset >= self.from_offsets[key]:
                skips[key].append((change.skipped, change.skipped_to))
            states[key] = apply_record(before, record, logged.timestamp_ms)
        last = {key: state.start_offset for key, state in states.items() if state is not None}
        return {key: LoggedSkips(last.get(key), found) for key, found in skips.items()}


class _ValidRecords:
    """Iterates over the records of some share-partitions in a log, without those of fenced owners."""

    def __init__(self, log: LogLocation, state_partition: int, keys: Iterable[SharePartitionKey]) -> None:
        self._batches = log.batches(state_partition)
        # The keys of snapshots and updates differ only in the record type before this suffix.
        self._key_suffixes = {encode_record(StateRecord(key, None))[0][2:] for key in keys}
        self.fencing_filter = FencingFilter()
        # Offset and timestamp of the first record of the log.
        self.start_offset: int | None = None
        self.start_ms = 0

    async def __aiter__(self) -> AsyncIterator[tuple[LogRecord, StateRecord]]:
        async for batch_bytes in self._batches:
            for batch in decode_batches(batch_bytes):
                if not batch.is_control:
                    for logged in batch.records:
                        if self.start_offset is None:
                            self.start_offset, self.start_ms = logged.offset, logged.timestamp_ms
                        if not self.fencing_filter.accepts(logged) or logged.key is None:
                            continue
                        if logged.key[2:] in self._key_suffixes:
                            record = decode_record(logged.key, logged.value)
                            if record is not None:
                                yield logged, record


def _make_event_fields(event: HistoryEvent) -> dict[str, Any]:
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


# Maximum duration of a request, below the timeouts of the page and of the command line, which include the
# start of the process.
SECONDS_MAX = 25
_MEMORY_BYTES_MAX = 512 << 20


class HistoryResponse(NamedTuple):
    """The result or, in `problem`, the reason for its absence; and the memory of the process afterwards."""

    result: Any
    problem: str
    resident_bytes: int


def main() -> None:
    """Answer requests until the coordinator closes the connection or ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                request: HistoryRequest | SkipsRequest = connection.recv()
            except EOFError:
                return
            signal.alarm(SECONDS_MAX)
            connection.send(_make_response(request))
            signal.alarm(0)


def _make_response(request: HistoryRequest | SkipsRequest) -> HistoryResponse:
    result: Any = None
    problem = ""
    try:
        result = asyncio.run(request.read())
    except (CoordinatorError, DecodeError, OSError) as error:
        problem = str(error)
    except MemoryError:
        problem = f"the history needs more than {_MEMORY_BYTES_MAX >> 20} MiB of memory"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return HistoryResponse(result, problem, _resident_bytes())


def _resident_bytes() -> int:
    """Return the resident memory; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
