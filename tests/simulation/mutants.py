"""Mutants of the coordinator: each function plants one realistic defect, which the simulator must detect.

A function patches the coordinator with pytest's monkeypatch. Its docstring describes the behaviour of the
patched coordinator. The patched names are private, so a change of the coordinator may require a change here.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import isfunction
from typing import Any

import msgspec
import pytest

from coordinator.log.journal import journal
from coordinator.serve.runtime.operations import refuse_all
from coordinator.serve.runtime.shard_runner import ShardRunner
from coordinator.serve.server import listener
from coordinator.serve.server.connection import Connection
from coordinator.shard import checks, decisions, state
from coordinator.shard.machine import CoordinatorResult, Shard
from coordinator.shard.pruning_offsets import PruningOffsets
from protocol.errors import ErrorCode
from protocol.state_batches import pack, unpack
from protocol.state_records import StateRecord

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


def list_mutants(module: Mapping[str, Any]) -> dict[str, Mutant]:
    """Return the mutants of a module by name: its public functions with the only parameter `patch`."""
    return {
        name: function
        for name, function in module.items()
        if isfunction(function)
        and function.__module__ == module["__name__"]
        and function.__code__.co_varnames[:1] == ("patch",)
        and not name.startswith("_")
    }


def _replace_in_connection(patch: Patch, **methods: Any) -> None:
    """Let the listener use a subclass of Connection, because a compiled class cannot be patched."""
    patch.setattr(listener, "Connection", type("MutantConnection", (Connection,), methods))


def answers_before_the_append_is_done(patch: Patch) -> None:
    """Send the responses before the append; after a crash, acknowledged writes are lost."""
    append = ShardRunner._append

    def _append(self: Any, *args: Any) -> None:
        waiting, self._awaiting_append = self._awaiting_append, []
        for operation in waiting:
            operation.answer_decided()
        append(self, *args)

    patch.setattr(ShardRunner, "_append", _append)


def answers_reads_from_pending_writes(patch: Patch) -> None:
    """Answer reads from memory while a write to the same share-partition is not yet durable."""
    patch.setattr(ShardRunner, "_is_key_in_flight", lambda self, key: False)
    patch.setattr(ShardRunner, "_has_queued_operation", lambda self, key: False)


def writes_an_earlier_record_instead_of_an_update(patch: Patch) -> None:
    """Append the previous record of the state partition in place of each ShareUpdate record.

    Memory has the new state, but a reload of the shard does not.
    """
    new_append = journal.new_append
    last_records: dict[int, Any] = {}

    def append_earlier_records(
        state_partition: int, base_offset: int, timestamp_ms: int, records: Any, done: Any
    ) -> Any:
        written = []
        for key, value in records:
            # Record type 1 is an update.
            is_update = value is not None and key[1] == 1
            record = key, value
            written.append(last_records.get(state_partition, record) if is_update else record)
            last_records[state_partition] = written[-1]
        return new_append(state_partition, base_offset, timestamp_ms, written, done)

    patch.setattr(journal, "new_append", append_earlier_records)


def keeps_state_whose_append_failed(patch: Patch) -> None:
    """Keep the states of a failed append in memory instead of loading the shard again from its log."""

    def _recover(self: Any, error: Any, waiting: Any) -> None:
        refuse_all(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        self._next_log_offset = self._log.end_offset(self.state_partition)
        if self._queue:
            self._schedule_batch()

    patch.setattr(ShardRunner, "_recover", _recover)


def prunes_needed_records(patch: Patch) -> None:
    """Use the end offset as the redundant offset, so that pruning deletes the snapshots of all states."""
    patch.setattr(PruningOffsets, "redundant_offset", property(lambda self: self.end_log_offset))


def deletes_in_memory_only(patch: Patch) -> None:
    """Acknowledge DeleteShareGroupState without a tombstone, so that a reload restores the state."""
    decide = Shard._decide

    def _decide(self: Any, kind: Any, key: Any, unit: Any, context: Any) -> CoordinatorResult:
        result = decide(self, kind, key, unit, context)
        if kind is not decisions.decide_delete or result.answer.error_code:
            return result
        self._states.pop(key, None)
        return CoordinatorResult((), result.answer)

    patch.setattr(Shard, "_decide", _decide)


def writes_snapshots_without_state_batches(patch: Patch) -> None:
    """Write ShareSnapshot records without state batches, so that a reload loses the delivery states."""
    next_snapshot = state.next_snapshot

    def next_snapshot_without_batches(*args: Any, **named: Any) -> Any:
        return msgspec.structs.replace(next_snapshot(*args, **named), state_batches=b"")

    patch.setattr("coordinator.shard.machine.next_snapshot", next_snapshot_without_batches)


def does_not_fence_old_leader_epochs(patch: Patch) -> None:
    """Accept requests with a lower leader epoch than the state has (no FENCED_LEADER_EPOCH)."""
    patch.setattr(checks, "check_leader_epoch", lambda state, leader_epoch: None)


def does_not_fence_old_state_epochs(patch: Patch) -> None:
    """Accept requests with a lower state epoch than the state has (no FENCED_STATE_EPOCH)."""
    patch.setattr(checks, "check_state_epoch", lambda state, state_epoch: None)


def does_not_store_leader_epoch_max(patch: Patch) -> None:
    """Omit the greatest leader epoch from snapshots.

    After a reset and a reload, a leader from before the reset is not fenced.
    """
    for module in (decisions, state):
        patch.setattr(module, "stored_leader_epoch_max", lambda leader_epoch, leader_epoch_max: -1)


def does_not_store_new_leader_epoch(patch: Patch) -> None:
    """Do not store the leader epoch of a read, so that the previous leader is not fenced."""
    decide_read = decisions.decide_read
    patch.setattr(decisions, "decide_read", lambda *args: (None, decide_read(*args)[1]))


def allows_lower_start_offset(patch: Patch) -> None:
    """Let a write decrease the start offset."""
    decide_write = decisions.decide_write

    def decide_write_with_any_start_offset(state: Any, part: Any, *rest: Any) -> Any:
        value, answer = decide_write(state, part, *rest)
        if value is not None and part.start_offset >= 0:
            value = msgspec.structs.replace(value, start_offset=part.start_offset)
        return value, answer

    patch.setattr(decisions, "decide_write", decide_write_with_any_start_offset)


def replaces_state_batches_instead_of_merging(patch: Patch) -> None:
    """Let a write replace the delivery state and count of its offsets.

    A correct coordinator keeps the greater one of the stored and the written values.
    """

    def combine(current: bytes, written: bytes, start_offset: int) -> bytes:
        entries: dict[int, Any] = {}
        for batch in (*unpack(current), *unpack(written)):
            for user_offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1):
                entries[user_offset] = batch._replace(first_offset=user_offset, last_offset=user_offset)
        return decisions.normalise(
            pack(entries[user_offset] for user_offset in sorted(entries)), start_offset
        )

    for module in (decisions, state):
        patch.setattr(module, "combine", combine)


def resets_state_on_repeated_initialize(patch: Patch) -> None:
    """Reset the state when an InitializeShareGroupState is repeated with the same state epoch."""
    decide = decisions.decide_initialize

    def decide_with_lower_stored_epoch(state: Any, part: Any, *rest: Any) -> Any:
        if state is not None and state.state_epoch == part.state_epoch:
            state = msgspec.structs.replace(state, state_epoch=part.state_epoch - 1)
        return decide(state, part, *rest)

    patch.setattr(decisions, "decide_initialize", decide_with_lower_stored_epoch)


def applies_valid_entries_of_a_refused_request(patch: Patch) -> None:
    """If a request names a share-partition several times and one entry is invalid, apply the valid entries.

    A correct coordinator applies all entries or none.
    """

    def _decide(self: Any, decide: Any, key: Any, unit: Sequence[Any], context: Any) -> CoordinatorResult:
        records, answer = [], None
        state_after = self.state(key)
        for part in unit:
            value, answer = decide(state_after, part, context, self._policy)
            if value is not None:
                value = None if value is decisions.TOMBSTONE else value
                record = StateRecord(key, value)
                records.append(record)
                state_after = state.apply_record(state_after, record, context.now_ms)
        return CoordinatorResult(records, answer)

    patch.setattr(Shard, "_decide", _decide)


def sends_responses_out_of_order(patch: Patch) -> None:
    """Send a response as soon as it is ready, although earlier requests of the connection have none yet."""

    def _flush(self: Any) -> None:
        slots = self._response_slots
        ready = [slot for slot in slots if slot.response is not None]
        others = [slot for slot in slots if slot.response is None]
        slots.clear()
        slots.extend(ready + others)
        Connection._flush(self)

    _replace_in_connection(patch, _flush=_flush)


def sends_responses_twice(patch: Patch) -> None:
    """Send the first ready response of each flush twice."""

    def _flush(self: Any) -> None:
        if self._response_slots and (first := self._response_slots[0]).response is not None:
            first.response += first.response
        Connection._flush(self)

    _replace_in_connection(patch, _flush=_flush)


def schedules_no_commit_batch_after_an_append(patch: Patch) -> None:
    """Do not schedule a commit batch when an append ends.

    Operations that were queued during the append wait until the next request for the shard.
    """
    complete_append = ShardRunner.on_append_done

    def on_append_done(self: Any, base_offset: int, error: Any) -> None:
        self._batch_scheduled = True
        complete_append(self, base_offset, error)
        self._batch_scheduled = False

    patch.setattr(ShardRunner, "on_append_done", on_append_done)


def drops_operations_queued_during_loading(patch: Patch) -> None:
    """Drop the operations that were queued while the shard was loading; they get no response."""
    finish_loading = ShardRunner.finish_loading

    def clear_queue_and_finish_loading(self: Any, *args: Any) -> None:
        self._queue = []
        finish_loading(self, *args)

    patch.setattr(ShardRunner, "finish_loading", clear_queue_and_finish_loading)


def keeps_request_memory_of_lost_connections(patch: Patch) -> None:
    """Do not release the request memory of requests in progress when their connection is lost."""
    handle_loss = Connection.connection_lost

    def connection_lost(self: Any, exc: Any) -> None:
        for slot in self._response_slots:
            slot.frame_bytes = 0
        handle_loss(self, exc)

    _replace_in_connection(patch, connection_lost=connection_lost)


def never_aborts_stalled_connections(patch: Patch) -> None:
    """Never abort a closed connection whose client does not read the remaining bytes."""
    _replace_in_connection(patch, abort_if_stalled=lambda self, now_s: None)


def never_closes_slow_readers(patch: Patch) -> None:
    """Never close a connection whose client does not read its responses."""
    timeout_reason = Connection.timeout_reason

    def timeout_reason_except_slow_reader(self: Any, now_s: float, now_ms: int) -> str | None:
        reason = timeout_reason(self, now_s, now_ms)
        return None if reason == "slow_reader" else reason

    _replace_in_connection(patch, timeout_reason=timeout_reason_except_slow_reader)


MUTANTS = list_mutants(globals())
