"""Search for an order of operations of one share-partition that explains all responses.

The search follows all orders at once. A *configuration* is a possible current state. To *place* an operation
means that the operation takes effect at this point of the order. An operation with a response (*answered*) is
placed at the latest when the response arrives. These rules limit the number of configurations:

* Operations of one connection take effect in the order in which they were sent (if at all). An operation
whose response is NOT_COORDINATOR may take effect later, because its append may be in the log. * An answered
operation without an effect (a refusal, most summaries) is placed when the state first explains its response.
* Of equal unanswered operations, the one with the nearest deadline is placed first. * If two configurations
differ only in the remaining unanswered operations, the one with fewer is dropped. * A write takes the maximum
for each offset, so writes commute and may be repeated. A write is placed only when a response shows it, or
when its own response arrives. A pending write counts as executed before a read if its value is at most the
value that was read, because values only grow. Therefore, a write that takes effect twice, with a reset in
between, is not always detected.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from protocol.errors import ErrorCode
from tests.simulation.history import INITIALIZE, NEVER, READ, SUMMARY, WRITE, Operation
from tests.simulation.model import (
    AnswerFields,
    Progress,
    State,
    answer_fields,
    apply_operation,
    offset_progress,
)

# With more configurations, the checker gives up on a share-partition and reports that. Only hundreds of
# concurrent unanswered initializations and deletions reach this limit.
CONFIGURATIONS_MAX = 1_000


class SearchLimitExceeded(Exception):
    """Raised if more than CONFIGURATIONS_MAX configurations are possible."""


class Configuration(NamedTuple):
    """A possible current state.

    Each set has numbers of pending operations. `placed` are operations that have taken effect; it never has
    unanswered writes. `pool` are writes that would be fenced now, but may have taken effect before. `wiped`
    are writes that may have taken effect before a reset of the state.
    """

    state: State | None
    placed: frozenset[int] = frozenset()
    pool: frozenset[int] = frozenset()
    wiped: frozenset[int] = frozenset()

    def without_operation(self, number: int) -> "Configuration":
        """Return the same configuration without an operation that is no longer pending."""
        removed = {number}
        return self._replace(
            placed=self.placed - removed, pool=self.pool - removed, wiped=self.wiped - removed
        )


class LinearizationSearch:
    """The possible configurations of one share-partition after the events that were added."""

    def __init__(self, topic_known: bool, state: State | None = None) -> None:
        self.configurations: set[Configuration] = {Configuration(state)}
        self._is_topic_known = topic_known
        # Pending operations that have a response, by number, in the order of sending. `_writes` has accepted
        # writes, which must take effect, and unanswered writes, which may take effect.
        self._answered: dict[int, Operation] = {}
        self._unanswered: dict[int, Operation] = {}
        self._writes: dict[int, Operation] = {}
        self._answers: dict[int, AnswerFields] = {}

    def add_operation(self, op: Operation) -> None:
        """Record that an operation is pending."""
        if op.known:
            self._answers[op.number] = answer_fields(op.kind, op.answer)
        if op.kind == WRITE and (op.accepted or not op.known):
            self._writes[op.number] = op
        elif op.known:
            self._answered[op.number] = op
        else:
            self._unanswered[op.number] = op

    def end_operation(self, op: Operation) -> bool:
        """Place an answered operation, or drop an unanswered one; return whether a configuration remains."""
        number = op.number
        if op.kind == WRITE and not op.known:
            remaining = {current.without_operation(number) for current in self.configurations}
        else:
            reachable = self._iterate_configurations(op)
            remaining = {
                current.without_operation(number)
                for current in reachable
                if number in current.placed or not op.known
            }
        for pending in (self._answered, self._unanswered, self._writes):
            pending.pop(number, None)
        self._answers.pop(number, None)
        self.configurations = self._drop_dominated_configurations(remaining)
        return bool(remaining)

    def _iterate_configurations(self, target: Operation) -> Iterator[Configuration]:
        """Yield the possible configurations up to the placement of an operation."""
        waiting = [self._place_operations_without_effect(current) for current in self.configurations]
        seen = set(waiting)
        while waiting:
            current = waiting.pop()
            yield current
            if target.number in current.placed:
                continue
            for following in self._next_configurations(current, target):
                following = self._place_operations_without_effect(following)
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
            if len(seen) > CONFIGURATIONS_MAX:
                raise SearchLimitExceeded

    def _next_configurations(self, current: Configuration, target: Operation) -> Iterator[Configuration]:
        """Yield the configurations that follow by placing one pending operation."""
        connections = set()
        for number, op in self._answered.items():
            if number not in current.placed and op.client not in connections:
                connections.add(op.client)
                for before in self._place_earlier_writes(op, current):
                    yield from self._place_answered_operation(op, self._answers[number], before)
        equals: dict[object, Operation] = {}
        for number, op in self._unanswered.items():
            if number not in current.placed:
                earliest = equals.get(op.signature)
                if earliest is None or (op.deadline or NEVER) < (earliest.deadline or NEVER):
                    equals[op.signature] = op
        for op in equals.values():
            for before in self._place_earlier_writes(op, current):
                yield from self._place_unanswered_operation(op, before)
        if target.number in self._writes:
            for before in self._place_earlier_writes(target, current):
                yield from self._place_answered_write(target, before)

    def _place_earlier_writes(self, op: Operation, current: Configuration) -> Iterable[Configuration]:
        """Return the configurations after the earlier answered writes of the same connection."""
        starts: list[Configuration] = [current]
        for number, write in self._writes.items():
            if number < op.number and write.client == op.client and write.known:
                starts = [after for before in starts for after in self._place_answered_write(write, before)]
        return starts

    def _place_answered_write(self, op: Operation, current: Configuration) -> Iterator[Configuration]:
        """Yield the configurations in which an answered write has taken effect, now or before."""
        number = op.number
        if number in current.placed:
            yield current
            return
        done = current._replace(placed=self._mark_as_placed(op, current))
        after, expected = apply_operation(current.state, WRITE, op.parts, self._is_topic_known)
        if not expected.error_code:
            yield done._replace(state=after)
        elif number in current.pool and current.state is not None:
            yield done._replace(state=self._apply_write(current.state, op))
        if number in current.wiped:
            yield done

    def _mark_as_placed(self, op: Operation, current: Configuration) -> frozenset[int]:
        """Return `placed` with the operation, and with earlier unanswered operations of the same client.

        Operations of one connection take effect in order, so the earlier operations cannot take effect any
        more.
        """
        dropped = (
            number
            for number, other in self._unanswered.items()
            if number < op.number
            and other.client == op.client
            and other.error_code != ErrorCode.NOT_COORDINATOR
        )
        return current.placed.union((op.number,), dropped)

    def _place_unanswered_operation(self, op: Operation, current: Configuration) -> Iterator[Configuration]:
        for after, _, is_reset in self._apply_operation(op, current):
            # An operation without an effect is equivalent to a dropped one.
            if after == current.state and not is_reset:
                continue
            placed = self._mark_as_placed(op, current)
            if op.kind == READ:
                yield current._replace(
                    state=after, placed=placed, pool=frozenset(self._possible_writes(current))
                )
            else:
                yield self._reset_state(current, after, placed)

    def _reset_state(
        self, current: Configuration, after: State | None, placed: frozenset[int]
    ) -> Configuration:
        """Return the configuration after a reset; pending writes may have taken effect before the reset."""
        return Configuration(after, placed, wiped=current.wiped.union(self._possible_writes(current)))

    def _place_answered_operation(
        self, op: Operation, expected: AnswerFields, current: Configuration
    ) -> Iterator[Configuration]:
        """Yield the configurations after an answered operation, if the state explains its response."""
        placed = self._mark_as_placed(op, current)
        if op.accepted and op.kind == READ:
            shown = self._place_visible_writes(current, expected)
            after, answer = apply_operation(shown.state, op.kind, op.parts, self._is_topic_known)
            if answer == expected:
                yield shown._replace(state=after, placed=placed | shown.placed)
        elif op.accepted and op.kind == SUMMARY:
            for state in self._states_before_summary_read(current, expected):
                yield current._replace(state=state, placed=placed)
        else:
            for after, answer, is_reset in self._apply_operation(op, current):
                if answer != expected:
                    continue
                if is_reset:
                    yield self._reset_state(current, after, placed)
                else:
                    yield current._replace(state=after, placed=placed)

    def _apply_operation(
        self, op: Operation, current: Configuration
    ) -> Iterator[tuple[State | None, AnswerFields, bool]]:
        """Yield the possible effects of an operation, and whether it resets the state.

        An Initialize resets the state if there was a write since the last Initialize; otherwise it is a
        repetition without an effect. A pending write may be that write. A write before the reset is lost,
        even if the state is the same without the write.
        """
        after, expected = apply_operation(current.state, op.kind, op.parts, self._is_topic_known)
        yield after, expected, after != current.state and op.kind != READ
        if op.kind != INITIALIZE or current.state is None:
            return
        state = current.state
        starts = [self._apply_write(state, self._writes[number]) for number in self._possible_writes(current)]
        if state.complete_count is None:
            starts += [state._replace(complete_count=count) for count in (-1, 0, 1)]
        for before in starts:
            after, expected = apply_operation(before, op.kind, op.parts, self._is_topic_known)
            if after != before:
                yield after, expected, True
            elif before.progress == state.progress and before.start_offset == state.start_offset:
                yield state, expected, False

    def _possible_writes(self, current: Configuration) -> Iterator[int]:
        """Yield the pending writes that may have taken effect by now, sorted by the end of the operation."""
        for number in sorted(self._writes, key=lambda number: _end_time(self._writes[number])):
            if number in current.placed:
                continue
            parts = self._writes[number].parts
            if (
                number in current.pool
                or not apply_operation(current.state, WRITE, parts, self._is_topic_known)[1].error_code
            ):
                yield number

    def _apply_write(self, state: State, op: Operation) -> State:
        """Apply a write regardless of its leader epoch, because it may have preceded the fencing."""
        after, _ = apply_operation(state._replace(leader_epoch_max=0), WRITE, op.parts, self._is_topic_known)
        assert after is not None
        return after._replace(leader_epoch_max=state.leader_epoch_max)

    def _place_visible_writes(self, current: Configuration, expected: AnswerFields) -> Configuration:
        """Return the configuration with all pending writes that do not exceed the result of a read.

        The remaining answered writes may take effect before or after the read, so they are added to `pool`.
        """
        state = current.state
        if state is None or not self._writes:
            return current._replace(pool=frozenset())
        assert expected.start_offset is not None
        assert expected.progress is not None
        shown = {entry[0]: entry[1:] for entry in expected.progress}
        done, pool = [], []
        count_known = True
        for number in self._possible_writes(current):
            op = self._writes[number]
            if not _is_write_visible_in_read(op, expected.start_offset, shown):
                continue
            after = self._apply_write(state, op)
            count_known = count_known and after.complete_count == state.complete_count
            shows = (after.start_offset, after.progress) != (state.start_offset, state.progress)
            if op.known:
                (done if shows else pool).append(number)
            if shows:
                state = after
        if not count_known:
            # A read does not return the complete count, so the count is unknown after writes that only a read
            # shows.
            state = state._replace(complete_count=None)
        return current._replace(state=state, placed=current.placed.union(done), pool=frozenset(pool))

    def _states_before_summary_read(
        self, current: Configuration, expected: AnswerFields
    ) -> Iterator[State | None]:
        """Yield the states that a summary may have returned, with at most one of the pending writes.

        One write suffices: the write that set the start offset and the complete count. Other pending writes
        may take effect later. An answered write is applied again when its response arrives, which has no
        effect.
        """
        states = [current.state]
        if current.state is not None:
            writes = [self._writes[number] for number in self._possible_writes(current)]
            states += [self._apply_write(current.state, write) for write in writes]
        for state in dict.fromkeys(states):
            answer = apply_operation(state, SUMMARY, (_SUMMARY_PART,), self._is_topic_known)[1]
            if state is not None and answer.complete_count is None:
                answer = answer._replace(complete_count=expected.complete_count)
                state = state._replace(complete_count=expected.complete_count)
            if answer == expected:
                yield state
                if state == current.state:
                    return

    def _place_operations_without_effect(self, current: Configuration) -> Configuration:
        fitting = [
            number
            for number, op in self._answered.items()
            if number not in current.placed
            and (op.kind == SUMMARY or not op.accepted)
            and apply_operation(current.state, op.kind, op.parts, self._is_topic_known)[1]
            == self._answers[number]
        ]
        return current._replace(placed=current.placed.union(fitting)) if fitting else current

    def _drop_dominated_configurations(self, configurations: Iterable[Configuration]) -> set[Configuration]:
        groups: dict[object, list[Configuration]] = {}
        for current in configurations:
            answered = frozenset(number for number in current.placed if number in self._answers)
            groups.setdefault((current.state, current.pool, current.wiped, answered), []).append(current)
        kept = set()
        for group in groups.values():
            group.sort(key=lambda current: len(current.placed))
            minima: list[frozenset[int]] = []
            for current in group:
                if not any(smaller <= current.placed for smaller in minima):
                    minima.append(current.placed)
                    kept.add(current)
        return kept


def _end_time(op: Operation) -> tuple[float, int]:
    return (op.answered if op.known else op.deadline) or NEVER


class _SummaryPart(NamedTuple):
    partition: int = 0


_SUMMARY_PART = _SummaryPart()


def _is_write_visible_in_read(op: Operation, start_offset: int, shown: dict[int, tuple[int, ...]]) -> bool:
    return all(
        part.start_offset <= start_offset
        and _is_progress_visible_in_read(offset_progress(part.state_batches), start_offset, shown)
        for part in op.parts
    )


def _is_progress_visible_in_read(
    progress: Progress, start_offset: int, shown: dict[int, tuple[int, ...]]
) -> bool:
    return all(
        user_offset < start_offset or (count, state) <= shown.get(user_offset, ())
        for user_offset, count, state in progress
    )
