"""Specify the state of a share-partition after each operation, as a sequential model for the checkers.

The model shares no code with `coordinator.shard`: it stores a delivery count and a delivery state for each
offset instead of state batches. The model has no log records and snapshots, because clients cannot see them.
The rules are those of Kafka 4.4 and KIP-932, with the intended differences that `coordinator.shard` lists.
The property tests (`tests/property/modelled_shard.py`) compare a shard with this model, too.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.state_batches import unpack
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE

# (user-topic offset, delivery count, delivery state), ascending by offset.
Progress = tuple[tuple[int, int, int], ...]


class AnswerFields(NamedTuple):
    """The fields of a response, except the error message. Fields that an API does not return are None."""

    error_code: int
    state_epoch: int | None = None
    leader_epoch: int | None = None
    start_offset: int | None = None
    complete_count: int | None = None
    progress: Progress | None = None


class State(NamedTuple):
    """The state of one initialized share-partition.

    If `complete_count` is None, the count is unknown (see `linearization_search`).
    """

    state_epoch: int
    leader_epoch: int
    leader_epoch_max: int
    start_offset: int
    complete_count: int | None
    progress: Progress


_OK = AnswerFields(0)
_INVALID = AnswerFields(int(ErrorCode.INVALID_REQUEST))
_FENCED_LEADER = AnswerFields(int(ErrorCode.FENCED_LEADER_EPOCH))
_FENCED_STATE = AnswerFields(int(ErrorCode.FENCED_STATE_EPOCH))
_UNKNOWN_TOPIC = AnswerFields(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


@lru_cache(maxsize=4_096)
def offset_progress(state_batches: bytes) -> Progress:
    """Return one entry for each offset of state batches; where batches overlap, the greatest entry."""
    best: dict[int, tuple[int, int]] = {}
    for first, last, state, count in unpack(state_batches):
        for user_offset in range(first, last + 1):
            best[user_offset] = max(best.get(user_offset, (-1, -1)), (count, state))
    return tuple((user_offset, *best[user_offset]) for user_offset in sorted(best))


@lru_cache(maxsize=4_096)
def _has_inverted_batch(state_batches: bytes) -> bool:
    return any(batch.last_offset < batch.first_offset for batch in unpack(state_batches))


@lru_cache(maxsize=4_096)
def merge_progress(current: Progress, written: Progress, start_offset: int) -> Progress:
    """Return for each offset from the start offset on the greater entry of both arguments."""
    best: dict[int, tuple[int, int]] = {}
    for user_offset, count, state in (*current, *written):
        if start_offset == -1 or user_offset >= start_offset:
            best[user_offset] = max(best.get(user_offset, (-1, -1)), (count, state))
    return tuple((user_offset, *best[user_offset]) for user_offset in sorted(best))


def _apply_initialize(state: State | None, part: Any, known: bool) -> tuple[State | None, AnswerFields]:
    if part.partition < 0 or part.state_epoch < 0:
        return state, _INVALID
    if state is not None and part.state_epoch < state.state_epoch:
        return state, _FENCED_STATE
    if not known:
        return state, _UNKNOWN_TOPIC
    complete_count = -1 if part.start_offset == -1 else 0
    if state is not None and part.state_epoch == state.state_epoch:
        repeated = (
            part.start_offset == state.start_offset
            and not state.progress
            and state.complete_count == complete_count
        )
        # At the same state epoch, a request without a start offset is a repetition; with a start offset, it
        # is a reset.
        if part.start_offset == -1 or repeated:
            return state, _OK
    leader_epoch_max = 0 if state is None else state.leader_epoch_max
    return State(part.state_epoch, 0, leader_epoch_max, part.start_offset, complete_count, ()), _OK


def _apply_read(state: State | None, part: Any, known: bool) -> tuple[State | None, AnswerFields]:
    if part.partition < 0 or part.leader_epoch < 0 or state is None:
        return state, _INVALID
    if part.leader_epoch < state.leader_epoch_max:
        return state, _FENCED_LEADER
    if not known:
        return state, _UNKNOWN_TOPIC
    fields = AnswerFields(
        0, state_epoch=state.state_epoch, start_offset=state.start_offset, progress=state.progress
    )
    if part.leader_epoch > state.leader_epoch_max:
        state = state._replace(leader_epoch=part.leader_epoch, leader_epoch_max=part.leader_epoch)
    return state, fields


def _apply_write(state: State | None, part: Any, known: bool) -> tuple[State | None, AnswerFields]:
    if part.partition < 0 or part.leader_epoch < 0 or part.state_epoch < 0 or state is None:
        return state, _INVALID
    if part.leader_epoch < state.leader_epoch_max:
        return state, _FENCED_LEADER
    if part.state_epoch < state.state_epoch:
        return state, _FENCED_STATE
    if not known:
        return state, _UNKNOWN_TOPIC
    if _has_inverted_batch(part.state_batches):
        return state, _INVALID
    complete_count = state.complete_count
    if part.start_offset > state.start_offset:
        complete_count = part.delivery_complete_count
    elif part.start_offset == state.start_offset:
        complete_count = None if complete_count is None else max(part.delivery_complete_count, complete_count)
    start_offset = max(part.start_offset, state.start_offset)
    return state._replace(
        start_offset=start_offset,
        complete_count=complete_count,
        progress=merge_progress(state.progress, offset_progress(part.state_batches), start_offset),
    ), _OK


def _apply_delete(state: State | None, part: Any, known: bool) -> tuple[State | None, AnswerFields]:
    if part.partition < 0:
        return state, _INVALID
    return None, _OK


def _apply_summary(state: State | None, part: Any, known: bool) -> tuple[State | None, AnswerFields]:
    if part.partition < 0:
        return state, _INVALID
    if not known:
        return state, _UNKNOWN_TOPIC
    if state is None:
        return None, AnswerFields(0, 0, 0, -1, -1)
    return state, AnswerFields(
        0, state.state_epoch, state.leader_epoch, state.start_offset, state.complete_count
    )


_APPLY_BY_KIND: dict[str, Callable[[State | None, Any, bool], tuple[State | None, AnswerFields]]] = {
    INITIALIZE: _apply_initialize,
    READ: _apply_read,
    WRITE: _apply_write,
    DELETE: _apply_delete,
    SUMMARY: _apply_summary,
}


def apply_operation(
    state: State | None, kind: str, parts: Sequence[Any], topic_known: bool = True
) -> tuple[State | None, AnswerFields]:
    """Apply the entries of one operation in order, or none of them if one is refused."""
    next_state, fields = state, _OK
    for part in parts:
        next_state, fields = _APPLY_BY_KIND[kind](next_state, part, topic_known)
        if fields.error_code:
            return state, fields
    return next_state, fields


def answer_fields(kind: str, answer: Any) -> AnswerFields:
    """Return the fields of a response in the newest version of its API."""
    if answer.error_code:
        return AnswerFields(int(answer.error_code))
    if kind == READ:
        return AnswerFields(
            0,
            state_epoch=answer.state_epoch,
            start_offset=answer.start_offset,
            progress=offset_progress(answer.state_batches),
        )
    if kind == SUMMARY:
        return AnswerFields(
            0, answer.state_epoch, answer.leader_epoch, answer.start_offset, answer.delivery_complete_count
        )
    return _OK
