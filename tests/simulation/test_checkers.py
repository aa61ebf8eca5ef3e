"""Test that each checker refuses a history that violates its guarantee, and accepts a valid one."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey
from tests.simulation.checkers import (
    check_acknowledged_writes_are_durable,
    check_epochs_never_decrease,
    check_refused_writes_are_invisible,
    check_start_offset_never_decreases,
    check_state_batches_are_well_formed,
)
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE, History, Operation, Violation
from tests.simulation.linearize import check_linearizable
from tests.simulation.rpc_parts import (
    DeletePart,
    DeleteResult,
    InitializePart,
    InitializeResult,
    ReadPart,
    ReadResult,
    SummaryPart,
    SummaryResult,
    WritePart,
    WriteResult,
)

KEY = SharePartitionKey("g", bytes(16), 0)
FENCED_LEADER_EPOCH, NOT_COORDINATOR = 74, 16


class ScriptedHistory:
    """A history of one share-partition that a test builds operation by operation.

    Only operations that begin with `begin` or `begin_write` overlap with later operations.
    """

    def __init__(self) -> None:
        self.history = History()
        self._now_s = 0.0
        self._connections = 0

    def begin(self, kind: str, *parts: Any) -> Operation:
        self._now_s += 1.0
        # Each operation has its own connection, because operations of one connection must take effect in
        # order.
        self._connections += 1
        return self.history.record_request(self._now_s, f"connection {self._connections}", kind, KEY, parts)

    def end(self, op: Operation, result: Any) -> None:
        self._now_s += 1.0
        self.history.record_response(self._now_s, op, result)

    def end_process(self) -> None:
        self._now_s += 1.0
        self.history.set_deadlines(self._now_s)

    def initialize(self, state_epoch: int = 1, start_offset: int = 0, error_code: int = 0) -> None:
        op = self.begin(INITIALIZE, InitializePart(0, state_epoch, start_offset))
        self.end(op, InitializeResult(0, error_code))

    def write(self, *batches: tuple[int, int, int, int], error_code: int = 0, **fields: int) -> None:
        self.end(self.begin_write(*batches, **fields), WriteResult(0, error_code))

    def begin_write(self, *batches: tuple[int, int, int, int], **fields: int) -> Operation:
        values = {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0} | fields
        part = WritePart(partition=0, state_batches=_pack_batches(*batches), **values)
        return self.begin(WRITE, part)

    def read(
        self,
        *batches: tuple[int, int, int, int],
        leader_epoch: int = 0,
        state_epoch: int = 1,
        start_offset: int = 0,
    ) -> None:
        op = self.begin(READ, ReadPart(0, leader_epoch))
        result = ReadResult(0, state_epoch=state_epoch, start_offset=start_offset)
        result.state_batches = _pack_batches(*batches)
        self.end(op, result)

    def summary(self, **fields: int) -> None:
        values = {"state_epoch": 1, "start_offset": 0, "delivery_complete_count": 0} | fields
        self.end(self.begin(SUMMARY, SummaryPart(0, 0)), SummaryResult(0, **values))

    def delete(self) -> None:
        self.end(self.begin(DELETE, DeletePart(0)), DeleteResult(0))


def make_initialized_script() -> ScriptedHistory:
    script = ScriptedHistory()
    script.initialize()
    return script


def _pack_batches(*batches: tuple[int, int, int, int]) -> bytes:
    return pack(StateBatch(*batch) for batch in batches)


Checker = Callable[[History], None]

checks_durability = pytest.mark.parametrize(
    "checker", [check_acknowledged_writes_are_durable, check_linearizable]
)
checks_epochs = pytest.mark.parametrize("checker", [check_epochs_never_decrease, check_linearizable])


def assert_accepted(checker: Checker, script: ScriptedHistory) -> None:
    checker(script.history)


def assert_refused(checker: Checker, script: ScriptedHistory) -> None:
    with pytest.raises(Violation):
        checker(script.history)


@checks_durability
def test_lost_acknowledged_write_is_refused(checker: Checker) -> None:
    script = make_initialized_script()
    script.write((0, 4, 2, 1))
    script.end_process()
    script.read((0, 4, 2, 1))
    assert_accepted(checker, script)
    script.read((0, 3, 2, 1))
    assert_refused(checker, script)


@checks_durability
def test_lost_acknowledged_start_offset_is_refused(checker: Checker) -> None:
    script = make_initialized_script()
    script.write(start_offset=7)
    script.read(start_offset=7)
    assert_accepted(checker, script)
    script.read(start_offset=6)
    assert_refused(checker, script)


@checks_durability
def test_lost_write_is_accepted_after_reset(checker: Checker) -> None:
    script = make_initialized_script()
    script.write((0, 4, 2, 1))
    script.initialize(state_epoch=2)
    script.read(state_epoch=2)
    assert_accepted(checker, script)


@pytest.mark.parametrize("checker", [check_refused_writes_are_invisible, check_linearizable])
def test_visible_refused_write_is_refused(checker: Checker) -> None:
    script = make_initialized_script()
    script.read(leader_epoch=5)
    script.write((0, 0, 2, 1_001), leader_epoch=4, error_code=FENCED_LEADER_EPOCH)
    script.read(leader_epoch=5)
    assert_accepted(checker, script)
    script.read((0, 0, 2, 1_001), leader_epoch=5)
    assert_refused(checker, script)


@checks_epochs
def test_accepted_write_with_old_leader_epoch_is_refused(checker: Checker) -> None:
    script = make_initialized_script()
    script.read(leader_epoch=5)
    script.write(leader_epoch=5)
    assert_accepted(checker, script)
    script.write(leader_epoch=4)
    assert_refused(checker, script)


@checks_epochs
def test_decreased_state_epoch_is_refused(checker: Checker) -> None:
    script = ScriptedHistory()
    script.initialize(state_epoch=3)
    script.summary(state_epoch=3)
    assert_accepted(checker, script)
    script.initialize(state_epoch=2)
    assert_refused(checker, script)


@checks_epochs
def test_lower_epochs_are_accepted_after_deletion(checker: Checker) -> None:
    script = ScriptedHistory()
    script.initialize(state_epoch=3)
    script.read(state_epoch=3, leader_epoch=5)
    script.delete()
    script.initialize(state_epoch=1)
    script.read(leader_epoch=2)
    assert_accepted(checker, script)


@pytest.mark.parametrize("checker", [check_start_offset_never_decreases, check_linearizable])
def test_decreased_start_offset_is_refused(checker: Checker) -> None:
    script = ScriptedHistory()
    script.initialize(start_offset=7)
    script.summary(start_offset=7)
    assert_accepted(checker, script)
    script.summary(start_offset=6)
    assert_refused(checker, script)


@pytest.mark.parametrize(
    "batches",
    [
        [(5, 9, 2, 1), (0, 4, 0, 1)],
        [(0, 4, 2, 1), (4, 9, 0, 1)],
        [(0, 4, 2, 1), (5, 9, 2, 1)],
        [(4, 0, 2, 1)],
        [(-1, 4, 2, 1)],
    ],
    ids=["order", "overlap", "not merged", "inverted", "below the start offset"],
)
def test_malformed_batches_in_read_are_refused(batches: list[tuple[int, int, int, int]]) -> None:
    script = ScriptedHistory()
    script.read((0, 4, 2, 1), (5, 9, 0, 1), (11, 12, 0, 1))
    assert_accepted(check_state_batches_are_well_formed, script)
    script.read(*batches)
    assert_refused(check_state_batches_are_well_formed, script)


def test_unanswered_write_must_not_disappear_after_it_was_visible() -> None:
    for shows in (True, False):
        script = make_initialized_script()
        script.begin_write((0, 0, 2, 1))
        script.read(*[(0, 0, 2, 1)] * shows)
        assert_accepted(check_linearizable, script)
    script = make_initialized_script()
    script.begin_write((0, 0, 2, 1))
    script.read((0, 0, 2, 1))
    script.read()
    assert_refused(check_linearizable, script)


def test_unanswered_write_may_become_visible_until_its_deadline() -> None:
    script = make_initialized_script()
    script.begin_write((0, 0, 2, 1))
    script.read()
    script.read((0, 0, 2, 1))
    assert_accepted(check_linearizable, script)
    script = make_initialized_script()
    script.begin_write((0, 0, 2, 1))
    script.end_process()
    script.read()
    script.read((0, 0, 2, 1))
    assert_refused(check_linearizable, script)


def test_write_with_retriable_error_may_take_effect_later() -> None:
    script = make_initialized_script()
    script.write((0, 0, 2, 1), error_code=NOT_COORDINATOR)
    script.read()
    script.read((0, 0, 2, 1))
    assert_accepted(check_linearizable, script)


def test_partly_visible_write_is_refused() -> None:
    script = make_initialized_script()
    script.begin_write((0, 0, 2, 1), (2, 2, 2, 1))
    script.read((0, 0, 2, 1))
    assert_refused(check_linearizable, script)


def test_read_of_older_state_during_a_write_is_refused() -> None:
    script = make_initialized_script()
    write = script.begin_write((0, 0, 2, 1))
    script.read((0, 0, 2, 1))
    script.read()
    script.end(write, WriteResult(0))
    assert_refused(check_linearizable, script)


def test_write_of_old_leader_is_visible_only_if_it_preceded_the_fencing() -> None:
    script = make_initialized_script()
    script.begin_write((0, 0, 2, 1), leader_epoch=1)
    # The unanswered read of a newer leader fences later writes, but the write may precede the read.
    script.begin(READ, ReadPart(0, 2))
    script.read((0, 0, 2, 1), leader_epoch=2)
    assert_accepted(check_linearizable, script)
    script = make_initialized_script()
    script.read(leader_epoch=2)
    script.begin_write((0, 0, 2, 1), leader_epoch=1)
    script.read((0, 0, 2, 1), leader_epoch=2)
    assert_refused(check_linearizable, script)


def test_wrong_complete_count_in_summary_is_refused() -> None:
    script = make_initialized_script()
    script.write(start_offset=5, delivery_complete_count=3)
    script.summary(start_offset=5, delivery_complete_count=3)
    assert_accepted(check_linearizable, script)
    script.summary(start_offset=5, delivery_complete_count=4)
    assert_refused(check_linearizable, script)


def test_summary_may_show_an_unanswered_write_but_not_a_part_of_it() -> None:
    script = make_initialized_script()
    script.begin_write(start_offset=5, delivery_complete_count=3)
    script.summary(start_offset=5, delivery_complete_count=3)
    script.read(start_offset=5)
    assert_accepted(check_linearizable, script)
    script.summary(start_offset=5, delivery_complete_count=2)
    assert_refused(check_linearizable, script)


def test_unanswered_write_may_turn_repeated_initialize_into_reset() -> None:
    script = make_initialized_script()
    script.read(leader_epoch=3)
    script.begin_write((0, 0, 2, 1), leader_epoch=3)
    # No write was acknowledged, so this request may be a repetition. The summary shows a reset.
    script.initialize()
    script.summary(leader_epoch=0)
    script.read(leader_epoch=3)
    assert_accepted(check_linearizable, script)
    script = make_initialized_script()
    script.read(leader_epoch=3)
    script.initialize()
    script.summary(leader_epoch=0)
    assert_refused(check_linearizable, script)


def test_write_is_invisible_only_if_a_reset_followed_it() -> None:
    # Seed 9001467: the second initialize is no repetition, because the write took effect before it.
    for has_reset in (True, False):
        script = make_initialized_script()
        write = script.begin_write((0, 0, 2, 1))
        if has_reset:
            script.initialize()
        script.read(leader_epoch=2)
        script.end(write, WriteResult(0))
        (assert_accepted if has_reset else assert_refused)(check_linearizable, script)


def test_read_does_not_determine_complete_count_of_unanswered_write() -> None:
    # Seed 379637292585: the write repeats existing batches, so a read cannot show whether it took effect.
    script = make_initialized_script()
    script.write((0, 0, 2, 1), delivery_complete_count=1)
    script.begin_write((0, 0, 2, 1), delivery_complete_count=5)
    script.end_process()
    script.read((0, 0, 2, 1))
    script.summary(delivery_complete_count=5)
    assert_accepted(check_linearizable, script)
    script.summary(delivery_complete_count=1)
    assert_refused(check_linearizable, script)


def test_operations_of_one_connection_take_effect_in_order() -> None:
    def make_script(connection: str) -> ScriptedHistory:
        script = make_initialized_script()
        late = script.begin_write((0, 0, 2, 1))
        early = script.begin(READ, ReadPart(0, 0))
        late.client, early.client = "one", connection
        script.end(late, WriteResult(0))
        script.end(early, ReadResult(0, state_epoch=1, start_offset=0))
        return script

    assert_accepted(check_linearizable, make_script("another"))
    assert_refused(check_linearizable, make_script("one"))


def test_delete_of_unknown_outcome_may_follow_later_operations_of_its_connection() -> None:
    # Seed 615: the append of the delete failed, and the journal recovered it after a restart.
    def make_script(delete_result: DeleteResult | None) -> ScriptedHistory:
        script = make_initialized_script()
        delete = script.begin(DELETE, DeletePart(0))
        delete.client = "one"
        if delete_result is not None:
            script.end(delete, delete_result)
        later = script.begin(READ, ReadPart(0, 3))
        later.client = "one"
        script.end(later, ReadResult(0, state_epoch=1, start_offset=0))
        script.end_process()
        script.summary(state_epoch=0, start_offset=-1, delivery_complete_count=-1)
        return script

    assert_accepted(check_linearizable, make_script(DeleteResult(0, NOT_COORDINATOR)))
    assert_refused(check_linearizable, make_script(None))
