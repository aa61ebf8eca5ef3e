"""The strict judge: is there an order of operations that explains every answer?

For one share-partition at a time, some order of its operations, each between its call and its answer, must
make `model` give exactly the answers that were given.  An operation of unknown outcome may have taken
effect before its deadline, or never.  That implies that what was acknowledged survives any crash and that
reads never go back.

`search` is how the order is looked for.
"""

from collections.abc import Callable, Sequence

from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey
from tests.simulation.history import DELETE, NEVER, READ, SUMMARY, WRITE, History, Operation, Violation
from tests.simulation.linearization_search import Search, SearchLimitExceeded
from tests.simulation.model import State

TopicKnown = Callable[[SharePartitionKey], bool]
StartState = Callable[[SharePartitionKey], State | None]


def every_topic(key: SharePartitionKey) -> bool:
    """Take each topic for known."""
    return True


def nothing(key: SharePartitionKey) -> State | None:
    """Begin without state."""
    return None


def linearizable(
    history: History, topic_known: TopicKnown = every_topic, start_state: StartState = nothing
) -> int:
    """Find an order that explains every answer; raise Violation at the first answer that none explains.

    Returns on how many share-partitions it gave up because too much was possible.
    """
    given_up = 0
    for key, ops in history.by_key():
        try:
            search = Search(topic_known(key), start_state(key))
            _linearize(key, [op for op in ops if _is_telling(op)], search)
        except SearchLimitExceeded:
            given_up += 1
    return given_up


def _is_telling(op: Operation) -> bool:
    """Tell whether an operation can have had an effect, or shows one."""
    if op.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or op.reached_wrong_coordinator:
        # Refused before it was looked at: if it shows all the same, no order explains that.
        return False
    return op.known or op.kind != SUMMARY


def _linearize(key: SharePartitionKey, ops: Sequence[Operation], search: Search) -> None:
    events = [(op.invoked, False, op) for op in ops]
    events += [(_end(op, ops), True, op) for op in ops]
    # A read may be the end of the writes that it had the chance to show: those come after it.
    events.sort(key=lambda event: (event[0], event[1] and not event[2].known))
    for _, is_end, op in events:
        before = search.configurations
        if not is_end:
            search.invoked(op)
        elif not search.ended(op):
            states = "\n  ".join(sorted({str(configuration.state) for configuration in before})[:5])
            nearby = "\n  ".join(str(other) for other in ops if _is_of_interest(op, other))
            raise Violation(
                f"no order of operations explains an answer about {key}:\n  {op}\n"
                f"possible states when it came:\n  {states}\nwhat was going on:\n  {nearby}"
            )


def _end(op: Operation, ops: Sequence[Operation]) -> tuple[float, int]:
    """Return when an operation is over.

    An unanswered write is kept beyond its deadline until an operation that began behind the deadline tells,
    or wipes out, what became of it.
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


def _is_of_interest(op: Operation, other: Operation) -> bool:
    """Tell whether a reader wants to see another operation: the latest ones until the answer."""
    assert op.answered is not None
    return other is not op and other.invoked < op.answered and other.invoked[0] > op.invoked[0] - 60.0
