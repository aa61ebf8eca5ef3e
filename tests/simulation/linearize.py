"""Check that the history is linearizable: some order of the operations explains every response.

For each share-partition, there must be an order of its operations in which `model` produces the observed
responses. Each operation must take effect between its request and its response. An operation of unknown
outcome may take effect before its deadline, or never. Linearizability implies that acknowledged writes
survive any crash and that reads never return older states.

`linearization_search` implements the search.
"""

from collections.abc import Callable, Sequence

from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey
from tests.simulation.history import DELETE, NEVER, READ, SUMMARY, WRITE, History, Operation, Violation
from tests.simulation.linearization_search import LinearizationSearch, SearchLimitExceeded
from tests.simulation.model import State

TopicKnown = Callable[[SharePartitionKey], bool]
StartState = Callable[[SharePartitionKey], State | None]


def check_linearizable(
    history: History, topic_known: TopicKnown = lambda key: True, start_state: StartState = lambda key: None
) -> int:
    """Find an order that explains every response; raise Violation at the first unexplained response.

    Returns the number of share-partitions on which the search exceeded its limit.
    """
    given_up = 0
    for key, ops in history.operations_by_key():
        try:
            search = LinearizationSearch(topic_known(key), start_state(key))
            _check_share_partition(key, [op for op in ops if _may_change_state(op)], search)
        except SearchLimitExceeded:
            given_up += 1
    return given_up


def _may_change_state(op: Operation) -> bool:
    """Return whether an operation may have changed the state, or its response describes the state."""
    is_loading = op.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and not op.forwarded
    if is_loading or op.reached_wrong_coordinator:
        # The coordinator refused the operation without processing it.
        return False
    return op.known or op.kind != SUMMARY


def _check_share_partition(
    key: SharePartitionKey, ops: Sequence[Operation], search: LinearizationSearch
) -> None:
    events = [(op.invoked, False, op) for op in ops]
    events += [(_end_time(op, ops), True, op) for op in ops]
    # `_end_time` ends an unanswered write at the same time as a read, and the read is placed first.
    events.sort(key=lambda event: (event[0], event[1] and not event[2].known))
    for _, is_end, op in events:
        before = search.configurations
        if not is_end:
            search.add_operation(op)
        elif not search.end_operation(op):
            states = "\n  ".join(sorted({str(configuration.state) for configuration in before})[:5])
            listed = "\n  ".join(str(other) for other in ops if _is_listed_in_error(op, other))
            raise Violation(
                f"no order of operations explains an answer about {key}:\n  {op}\n"
                f"possible states at its arrival:\n  {states}\noperations before it:\n  {listed}"
            )


def _end_time(op: Operation, ops: Sequence[Operation]) -> tuple[float, int]:
    """Return the time at which an operation is no longer pending.

    An unanswered write stays pending after its deadline, until a later read could show its effect or a later
    delete discards it.
    """
    if op.known:
        assert op.answered is not None
        return op.answered
    deadline = op.deadline or NEVER
    if op.kind != WRITE:
        return deadline
    return next(
        (
            other.answered or NEVER
            for other in ops
            if other.invoked > deadline and other.accepted and other.kind in (READ, DELETE)
        ),
        NEVER,
    )


def _is_listed_in_error(op: Operation, other: Operation) -> bool:
    """Return whether the error about `op` lists the operation `other`, which was pending before."""
    assert op.answered is not None
    return other is not op and other.invoked < op.answered and other.invoked[0] > op.invoked[0] - 60.0
