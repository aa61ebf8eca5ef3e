"""Read from a log which incomplete records the start offsets of share-partitions passed."""

from coordinator.log.claims import FencingFilter
from coordinator.observe.signals.changes import compute_change
from coordinator.observe.signals.losses import LoggedSkips
from coordinator.operate.history.page import read_records
from coordinator.operate.history.request import SkipsRequest
from coordinator.shard import ShareState
from coordinator.shard.state import apply_record
from protocol.state_records import SharePartitionKey, StateRecord, decode_record, encode_record


async def read_skips(request: SkipsRequest) -> dict[SharePartitionKey, LoggedSkips]:
    """Return the skips of the share-partitions of a request. Raises LogError and DecodeError."""
    # The keys of snapshots and updates differ only in the record type before this suffix.
    keys = {encode_record(StateRecord(key, None))[0][2:]: key for key in request.from_offsets}
    states: dict[SharePartitionKey, ShareState | None] = {}
    skips: dict[SharePartitionKey, list[tuple[int, int]]] = {key: [] for key in keys.values()}
    fencing_filter = FencingFilter()
    async for logged in read_records(request):
        if not fencing_filter.accepts(logged) or logged.key is None:
            continue
        key = keys.get(logged.key[2:])
        record = None if key is None else decode_record(logged.key, logged.value)
        if key is None or record is None:
            continue
        before = states.get(key)
        change = compute_change(before, record)
        if before is not None and change.skipped and before.start_offset >= request.from_offsets[key]:
            skips[key].append((change.skipped, change.skipped_to))
        states[key] = apply_record(before, record, logged.timestamp_ms)
    last = {key: state.start_offset for key, state in states.items() if state is not None}
    return {key: LoggedSkips(last.get(key), found) for key, found in skips.items()}
