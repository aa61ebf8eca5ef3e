"""Test the model with a session derived by hand from Kafka's rules and the intended differences."""

from typing import Any

from protocol.state_batches import StateBatch, pack
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE
from tests.simulation.model import AnswerFields, Progress, State, apply_operation, merge_batches
from tests.simulation.parts import DeletePart, InitializePart, ReadPart, SummaryPart, WritePart

INVALID, FENCED_LEADER, FENCED_STATE, UNKNOWN_TOPIC = 42, 74, 124, 3


def make_progress(first: int, last: int, delivery_state: int, count: int) -> Progress:
    return tuple((user_offset, count, delivery_state) for user_offset in range(first, last + 1))


class ModelSession:
    """The model of one share-partition; each method returns the content of the response."""

    def __init__(self) -> None:
        self.state: State | None = None

    def step(self, kind: str, *parts: Any, topic_known: bool = True) -> AnswerFields:
        self.state, told = apply_operation(self.state, kind, parts, topic_known)
        return told

    def initialize(self, state_epoch: int, start_offset: int) -> int:
        return self.step(INITIALIZE, InitializePart(0, state_epoch, start_offset)).error_code

    def read(self, leader_epoch: int) -> AnswerFields:
        return self.step(READ, ReadPart(0, leader_epoch))

    def write(self, *batches: StateBatch, **fields: int) -> int:
        return self.step(WRITE, self.make_write_part(*batches, **fields)).error_code

    @staticmethod
    def make_write_part(*batches: StateBatch, **fields: int) -> WritePart:
        values = {"state_epoch": 1, "leader_epoch": 2, "start_offset": 110} | fields
        return WritePart(partition=0, state_batches=pack(batches), **values)

    def summary(self) -> AnswerFields:
        return self.step(SUMMARY, SummaryPart(0, 0))


def test_model_follows_session_of_kafka_rules() -> None:
    session = ModelSession()
    assert session.summary() == AnswerFields(0, 0, 0, -1, -1)
    assert session.write() == INVALID
    assert session.initialize(1, -1) == 0
    assert session.initialize(1, -1) == 0
    assert session.read(0) == AnswerFields(0, state_epoch=1, start_offset=-1, progress=())
    assert session.read(2) == AnswerFields(0, state_epoch=1, start_offset=-1, progress=())
    assert session.read(1) == AnswerFields(FENCED_LEADER)
    assert session.write(StateBatch(100, 109, 2, 1), start_offset=100, delivery_complete_count=0) == 0
    assert session.write(StateBatch(110, 119, 0, 1), start_offset=100, delivery_complete_count=10) == 0
    assert session.summary() == AnswerFields(0, 1, 2, 100, 10)
    assert session.write(StateBatch(120, 129, 4, 1), delivery_complete_count=0) == 0
    # The start offset never decreases, and the complete count of the greater start offset is kept.
    assert session.write(StateBatch(100, 112, 2, 2), start_offset=105, delivery_complete_count=7) == 0
    progress = make_progress(110, 112, 2, 2) + make_progress(113, 119, 0, 1) + make_progress(120, 129, 4, 1)
    assert session.state == State(1, 2, 2, 110, 0, progress)
    assert session.write(leader_epoch=1) == FENCED_LEADER
    assert session.write(state_epoch=0) == FENCED_STATE
    # A write with higher epochs is accepted, but does not change the stored epochs.
    written = StateBatch(130, 131, 2, 1)
    assert (
        session.write(written, state_epoch=9, leader_epoch=9, start_offset=-1, delivery_complete_count=3) == 0
    )
    assert session.summary() == AnswerFields(0, 1, 2, 110, 0)
    assert session.initialize(0, 5) == FENCED_STATE
    # Intended difference: Initialize without a start offset at the same state epoch does not reset the state.
    assert session.initialize(1, -1) == 0
    assert session.read(2).start_offset == 110
    assert session.initialize(2, 50) == 0
    # The state is reset, but the highest leader epoch is kept.
    assert session.state == State(2, 0, 2, 50, 0, ())
    assert session.read(1) == AnswerFields(FENCED_LEADER)
    assert session.step(DELETE, DeletePart(0)) == AnswerFields(0)
    assert session.step(DELETE, DeletePart(0)) == AnswerFields(0)
    assert session.read(3) == AnswerFields(INVALID)
    assert session.initialize(0, 7) == 0
    assert session.summary() == AnswerFields(0, 0, 0, 7, 0)


def test_greater_count_wins_then_greater_state() -> None:
    assert merge_batches(make_progress(0, 2, 0, 2), make_progress(1, 3, 2, 1), 0) == make_progress(
        0, 2, 0, 2
    ) + make_progress(3, 3, 2, 1)
    assert merge_batches(make_progress(0, 1, 0, 1), make_progress(0, 1, 2, 1), 1) == make_progress(1, 1, 2, 1)


def test_unit_is_applied_completely_or_not_at_all() -> None:
    session = ModelSession()
    session.initialize(1, 0)
    good = session.make_write_part(StateBatch(0, 0, 2, 1), start_offset=0)
    bad = session.make_write_part(StateBatch(1, 0, 2, 1), start_offset=0)
    before = session.state
    assert session.step(WRITE, good, bad) == AnswerFields(INVALID)
    assert session.state == before
    assert session.step(WRITE, good, good) == AnswerFields(0)
    assert session.state == State(1, 0, 0, 0, 0, make_progress(0, 0, 2, 1))


def test_unknown_topic_is_checked_after_other_errors() -> None:
    session = ModelSession()
    session.initialize(1, 0)
    unknown = {"topic_known": False}
    assert session.step(READ, ReadPart(0, 0), **unknown) == AnswerFields(UNKNOWN_TOPIC)
    assert session.step(READ, ReadPart(0, -1), **unknown) == AnswerFields(INVALID)
    assert session.step(SUMMARY, SummaryPart(0, 0), **unknown) == AnswerFields(UNKNOWN_TOPIC)
    assert session.step(DELETE, DeletePart(0), **unknown) == AnswerFields(0)
