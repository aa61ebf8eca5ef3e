"""Coordinators that are broken on purpose, each in one way: the simulator has to notice every one of them.

Each function breaks the product in place, by way of pytest's monkeypatch.  What they break is private, so
a change of the product may ask for a change here; what they break it *into* is a mistake that somebody could
make.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from coordinator.runtime.shard_runner import ShardRunner
from coordinator.server.connection import Connection
from coordinator.shard import checks, decisions, state
from coordinator.shard.frontier import Frontier
from coordinator.shard.machine import Result, Shard
from protocol.state_batches import pack, unpack
from protocol.state_records import StateRecord
from tests.simulation.log import FaultyLog, LogStorage

Patch = pytest.MonkeyPatch
BREAKAGES: dict[str, Callable[[Patch], None]] = {}


def _breakage(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BREAKAGES[function.__name__] = function
    return function


# Durability.


@_breakage
def answers_before_the_append_is_done(patch: Patch) -> None:
    append = ShardRunner._append

    def _append(self: Any, *args: Any) -> None:
        waiting, self._waiting = self._waiting, []
        for operation, result in waiting:
            operation.answer(result.answer)
        append(self, *args)

    patch.setattr(ShardRunner, "_append", _append)


@_breakage
def answers_reads_from_what_is_not_durable(patch: Patch) -> None:
    patch.setattr(ShardRunner, "_is_changing", lambda self, key: False)
    patch.setattr(ShardRunner, "_is_queued", lambda self, key: False)


@_breakage
def loses_the_tail_of_the_log(patch: Patch) -> None:
    async def open_and_lose(self: Any) -> None:
        for batches in self._storage.batches:
            if len(batches) > 1:
                batches.pop()

    patch.setattr(FaultyLog, "open", open_and_lose)


@_breakage
def writes_nothing(patch: Patch) -> None:
    write = LogStorage.write

    def forget(self: Any, state_partition: int, records: Any, timestamp_ms: int) -> int:
        # The first record of a share-partition's life is kept: else nothing would work at all.
        if self.batches[state_partition]:
            records = [(key, value) for key, value in records if value is None or key[1] == 0] or records[:1]
        return write(self, state_partition, records, timestamp_ms)

    patch.setattr(LogStorage, "write", forget)


@_breakage
def keeps_in_memory_what_the_log_refused(patch: Patch) -> None:
    def _recover(self: Any, error: Any, waiting: Any) -> None:
        self._refuse_all(waiting, 15, str(error))
        self._next_log_offset = self._log.end_offset(self.state_partition)
        if self._mailbox:
            self._plan_turn()

    patch.setattr(ShardRunner, "_recover", _recover)


@_breakage
def takes_an_unknown_outcome_for_success(patch: Patch) -> None:
    appended = ShardRunner._appended

    def _appended(self: Any, base_offset: int, error: Any) -> None:
        if error is not None and self._log.health() is None:
            self._next_log_offset = base_offset
            error = None
        appended(self, base_offset, error)

    patch.setattr(ShardRunner, "_appended", _appended)


@_breakage
def prunes_what_is_needed(patch: Patch) -> None:
    patch.setattr(Frontier, "redundant_offset", property(lambda self: self.end_log_offset))


@_breakage
def deletes_in_memory_only(patch: Patch) -> None:
    decide = Shard._decide

    def _decide(self: Any, kind: Any, key: Any, unit: Any, facts: Any) -> Result:
        result = decide(self, kind, key, unit, facts)
        if kind is not decisions.decide_delete or result.answer.error_code:
            return result
        self._states.pop(key, None)
        return Result((), result.answer)

    patch.setattr(Shard, "_decide", _decide)


@_breakage
def snapshots_without_the_batches(patch: Patch) -> None:
    snapshot_of = state.snapshot_of

    def broken(*args: Any, **named: Any) -> Any:
        return msgspec.structs.replace(snapshot_of(*args, **named), state_batches=b"")

    patch.setattr("coordinator.shard.machine.snapshot_of", broken)


# Rules.


@_breakage
def fences_no_leader(patch: Patch) -> None:
    patch.setattr(checks, "fenced_leader_epoch", lambda state, leader_epoch: None)


@_breakage
def fences_no_state_epoch(patch: Patch) -> None:
    patch.setattr(checks, "fenced_state_epoch", lambda state, state_epoch: None)


@_breakage
def forgets_who_was_fenced(patch: Patch) -> None:
    for module in (decisions, state):
        patch.setattr(module, "fencing_memory", lambda leader_epoch, leader_epoch_max: -1)


@_breakage
def does_not_note_a_new_leader(patch: Patch) -> None:
    decide_read = decisions.decide_read
    patch.setattr(decisions, "decide_read", lambda *args: (None, decide_read(*args)[1]))


@_breakage
def lets_the_start_offset_go_back(patch: Patch) -> None:
    decide_write = decisions.decide_write

    def broken(now: Any, part: Any, *rest: Any) -> Any:
        value, answer = decide_write(now, part, *rest)
        if value is not None and part.start_offset >= 0:
            value = msgspec.structs.replace(value, start_offset=part.start_offset)
        return value, answer

    patch.setattr(decisions, "decide_write", broken)


@_breakage
def lets_the_last_write_win(patch: Patch) -> None:
    def combine(current: bytes, written: bytes, start_offset: int) -> bytes:
        laid: dict[int, Any] = {}
        for batch in (*unpack(current), *unpack(written)):
            for user_offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1):
                laid[user_offset] = batch._replace(first_offset=user_offset, last_offset=user_offset)
        return decisions.normalise(pack(laid[user_offset] for user_offset in sorted(laid)), start_offset)

    for module in (decisions, state):
        patch.setattr(module, "combine", combine)


@_breakage
def initialises_again_when_asked_twice(patch: Patch) -> None:
    decide = decisions.decide_initialize

    def broken(now: Any, part: Any, *rest: Any) -> Any:
        if now is not None and now.state_epoch == part.state_epoch:
            now = msgspec.structs.replace(now, state_epoch=part.state_epoch - 1)
        return decide(now, part, *rest)

    patch.setattr(decisions, "decide_initialize", broken)


@_breakage
def writes_a_part_of_a_unit(patch: Patch) -> None:
    def _decide(self: Any, decide: Any, key: Any, unit: Sequence[Any], facts: Any) -> Result:
        records, answer = [], None
        now = self._states.get(key)
        for part in unit:
            value, answer = decide(now, part, facts, self._policy)
            if value is not None:
                value = None if value is decisions.TOMBSTONE else value
                record = StateRecord(key, value)
                records.append(record)
                now = state.advance(now, record, facts.now_ms)
        return Result(records, answer)

    patch.setattr(Shard, "_decide", _decide)


# Answers.


@_breakage
def answers_in_any_order(patch: Patch) -> None:
    def answered(self: Any, place: Any) -> None:
        if not self.gone and place in self._places:
            self._places.remove(place)
            self._places.appendleft(place)
            self._flush()

    patch.setattr(Connection, "answered", answered)


@_breakage
def answers_twice(patch: Patch) -> None:
    answered = Connection.answered

    def twice(self: Any, place: Any) -> None:
        place.response += place.response
        answered(self, place)

    patch.setattr(Connection, "answered", twice)


@_breakage
def forgets_to_go_on_after_an_append(patch: Patch) -> None:
    appended = ShardRunner._appended

    def _appended(self: Any, base_offset: int, error: Any) -> None:
        self._turn_planned = True
        appended(self, base_offset, error)
        self._turn_planned = False

    patch.setattr(ShardRunner, "_appended", _appended)


@_breakage
def forgets_who_waited_for_loading(patch: Patch) -> None:
    loaded = ShardRunner.loaded

    def broken(self: Any, *args: Any) -> None:
        self._mailbox = []
        loaded(self, *args)

    patch.setattr(ShardRunner, "loaded", broken)


@_breakage
def keeps_count_of_bytes_that_have_gone(patch: Patch) -> None:
    lost = Connection.connection_lost

    def connection_lost(self: Any, exc: Any) -> None:
        self._places.clear()
        lost(self, exc)

    patch.setattr(Connection, "connection_lost", connection_lost)


@_breakage
def waits_for_ever_for_clients_that_never_read(patch: Patch) -> None:
    patch.setattr(Connection, "break_off_if_stuck", lambda self, now_s: None)


@_breakage
def lets_clients_that_never_read_fill_the_queue(patch: Patch) -> None:
    overdue = Connection.overdue

    def patient(self: Any, now_s: float) -> str | None:
        reason = overdue(self, now_s)
        return None if reason == "slow_reader" else reason

    patch.setattr(Connection, "overdue", patient)
