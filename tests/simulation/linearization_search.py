"""The search for an order of operations of one share-partition that explains what was answered.

All orders are followed at once, as *configurations*: possible presents.  Answered operations are
placed when their answer is due, and not before they must be.  What keeps the number of configurations
small:

* Operations of one connection take effect in the order in which they were sent (if at all).
* An answered operation that can change nothing (a refusal, most summaries) is placed as soon as it fits.
* Of unanswered operations that are equal, the one with the nearest deadline goes first.
* A configuration with more unanswered operations still to place can do all that one with fewer can.
* Writes are a maximum: they commute and may be repeated.  So a write is placed only when an answer shows it,
  or when its own answer is due; and a read shows all that there are: exactly those that fit under what it
  shows.  (That a write takes effect twice, with a reset in between, is therefore not always noticed.)
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.simulation.history import INITIALIZE, NEVER, READ, SUMMARY, WRITE, Operation
from tests.simulation.model import AnswerFields, Progress, State, answer_fields, apply, progress_of

# Configurations that are followed at a time; beyond that the judge gives up on a share-partition, and says
# so. It takes hundreds of unanswered initialisations and deletions at a time to come here.
CONFIGURATIONS_MAX = 1_000


class SearchLimitExceeded(Exception):
    """More is possible than can be followed."""


class Configuration(NamedTuple):
    """A possible present.

    `placed` are the operations under way that have taken effect (unanswered writes are never placed). `pool`
    are writes under way that would be fenced now, but may have taken effect before; `wiped` are those that
    may have taken effect before the state was begun anew.
    """

    state: State | None
    placed: frozenset[int] = frozenset()
    pool: frozenset[int] = frozenset()
    wiped: frozenset[int] = frozenset()

    def without(self, number: int) -> "Configuration":
        """Return the same when an operation is not under way any more."""
        disconnected = {number}
        return self._replace(
            placed=self.placed - disconnected, pool=self.pool - disconnected, wiped=self.wiped - disconnected
        )


class Search:
    """All configurations that are possible after the events so far, for one share-partition."""

    def __init__(self, topic_known: bool, state: State | None = None) -> None:
        self.configurations: set[Configuration] = {Configuration(state)}
        self._topic_known = topic_known
        # What is under way, in order of sending. Writes, unless refused, are apart from the others: those
        # that were answered have to take effect, those that were not may.
        self._answered: dict[int, Operation] = {}
        self._unanswered: dict[int, Operation] = {}
        self._writes: dict[int, Operation] = {}
        self._told: dict[int, AnswerFields] = {}

    # Events.

    def invoked(self, op: Operation) -> None:
        """Note that an operation is under way."""
        if op.known:
            self._told[op.number] = answer_fields(op)
        if op.kind == WRITE and (op.accepted or not op.known):
            self._writes[op.number] = op
        elif op.known:
            self._answered[op.number] = op
        else:
            self._unanswered[op.number] = op

    def ended(self, op: Operation) -> bool:
        """Place an operation, or drop it if it was not answered; False if no configuration is left."""
        number = op.number
        if op.kind == WRITE and not op.known:
            settled = {now.without(number) for now in self.configurations}
        else:
            reachable = self._reachable(op)
            settled = {now.without(number) for now in reachable if number in now.placed or not op.known}
        for under_way in (self._answered, self._unanswered, self._writes):
            under_way.pop(number, None)
        self._told.pop(number, None)
        self.configurations = self._undominated(settled)
        return bool(settled)

    def _reachable(self, wanted: Operation) -> Iterator[Configuration]:
        """Yield what may have come to be until an operation was placed (or was not, if nobody told)."""
        waiting = [self._with_harmless(configuration) for configuration in self.configurations]
        seen = set(waiting)
        while waiting:
            now = waiting.pop()
            yield now
            if wanted.number in now.placed:
                continue
            for following in self._steps(now, wanted):
                following = self._with_harmless(following)
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
            if len(seen) > CONFIGURATIONS_MAX:
                raise SearchLimitExceeded

    # Steps.

    def _steps(self, now: Configuration, wanted: Operation) -> Iterator[Configuration]:
        """Yield what may come next: an operation under way that is not placed yet."""
        connections = set()
        for number, op in self._answered.items():
            if number not in now.placed and op.client not in connections:
                connections.add(op.client)
                for before in self._behind_writes(op, now):
                    yield from self._answer(op, self._told[number], before)
        equals: dict[object, Operation] = {}
        for number, op in self._unanswered.items():
            if number not in now.placed:
                other = equals.get(op.signature)
                if other is None or (op.deadline or NEVER) < (other.deadline or NEVER):
                    equals[op.signature] = op
        for op in equals.values():
            for before in self._behind_writes(op, now):
                yield from self._do_unanswered(op, before)
        if wanted.number in self._writes:
            for before in self._behind_writes(wanted, now):
                yield from self._finish_write(wanted, before)

    def _behind_writes(self, op: Operation, now: Configuration) -> Iterable[Configuration]:
        """Return the configurations after the answered writes that the same connection sent before."""
        befores: list[Configuration] = [now]
        for number, write in self._writes.items():
            if number < op.number and write.client == op.client and write.known:
                befores = [after for before in befores for after in self._finish_write(write, before)]
        return befores

    def _finish_write(self, op: Operation, now: Configuration) -> Iterator[Configuration]:
        """Yield the configurations in which an answered write has taken effect, now or before."""
        number = op.number
        if number in now.placed:
            yield now
            return
        done = now._replace(placed=self._placed_with(op, now))
        moved, told = apply(now.state, WRITE, op.parts, self._topic_known)
        if not told.error_code:
            yield done._replace(state=moved)
        elif number in now.pool and now.state is not None:
            yield done._replace(state=self._lay(now.state, op))
        if number in now.wiped:
            yield done

    def _placed_with(self, op: Operation, now: Configuration) -> frozenset[int]:
        """Return what is placed with an operation: unanswered ones sent before it are dropped."""
        dropped = (
            number
            for number, other in self._unanswered.items()
            if number < op.number and other.client == op.client
        )
        return now.placed.union((op.number,), dropped)

    def _do_unanswered(self, op: Operation, now: Configuration) -> Iterator[Configuration]:
        for moved, _, anew in self._apply(op, now):
            # One that changes nothing might as well be dropped.
            if moved == now.state and not anew:
                continue
            placed = self._placed_with(op, now)
            if op.kind == READ:
                yield now._replace(state=moved, placed=placed, pool=frozenset(self._possible_writes(now)))
            else:
                yield self._wipe(now, moved, placed)

    def _wipe(self, now: Configuration, moved: State | None, placed: frozenset[int]) -> Configuration:
        """Begin anew: writes that were possible until now may have come before, and are gone then."""
        return Configuration(moved, placed, wiped=now.wiped.union(self._possible_writes(now)))

    def _answer(self, op: Operation, told: AnswerFields, now: Configuration) -> Iterator[Configuration]:
        """Yield the configurations after an answered operation, if it fits."""
        placed = self._placed_with(op, now)
        if op.accepted and op.kind == READ:
            shown = self._show(now, told)
            moved, answer = apply(shown.state, op.kind, op.parts, self._topic_known)
            if answer == told:
                yield shown._replace(state=moved, placed=placed | shown.placed)
        elif op.accepted and op.kind == SUMMARY:
            for state in self._shown_in_summary(now, told):
                yield now._replace(state=state, placed=placed)
        else:
            for moved, answer, anew in self._apply(op, now):
                if answer != told:
                    continue
                if anew:
                    yield self._wipe(now, moved, placed)
                else:
                    yield now._replace(state=moved, placed=placed)

    def _apply(self, op: Operation, now: Configuration) -> Iterator[tuple[State | None, AnswerFields, bool]]:
        """Yield what an operation may do, and whether it begins the state anew.

        An initialise asks whether anything has been written since the last one: if so it begins anew, else it
        is a repetition and changes nothing. Writes under way decide that, too; one that came before is gone
        then, even if the state is again what it was without it.
        """
        moved, told = apply(now.state, op.kind, op.parts, self._topic_known)
        yield moved, told, moved != now.state and op.kind != READ
        if op.kind != INITIALIZE or now.state is None:
            return
        state = now.state
        befores = [self._lay(state, self._writes[number]) for number in self._possible_writes(now)]
        if state.complete_count is None:
            befores += [state._replace(complete_count=count) for count in (-1, 0, 1)]
        for before in befores:
            moved, told = apply(before, op.kind, op.parts, self._topic_known)
            if moved != before:
                yield moved, told, True
            elif before.progress == state.progress and before.start_offset == state.start_offset:
                yield state, told, False

    # Writes under way.

    def _possible_writes(self, now: Configuration) -> Iterator[int]:
        """Yield the writes under way that may have taken effect by now, those first that are over first."""
        for number in sorted(self._writes, key=lambda number: _over(self._writes[number])):
            if number in now.placed:
                continue
            parts = self._writes[number].parts
            if number in now.pool or not apply(now.state, WRITE, parts, self._topic_known)[1].error_code:
                yield number

    def _lay(self, state: State, op: Operation) -> State:
        """Carry out a write, which may have come before it was fenced."""
        moved, _ = apply(state._replace(leader_epoch_max=0), WRITE, op.parts, self._topic_known)
        assert moved is not None
        return moved._replace(leader_epoch_max=state.leader_epoch_max)

    def _show(self, now: Configuration, told: AnswerFields) -> Configuration:
        """Return the configuration with all writes under way that fit under what a read was told.

        Answered ones that do not show in a read go to the pool: they may have come before, or come later.
        """
        state = now.state
        if state is None or not self._writes:
            return now._replace(pool=frozenset())
        assert told.start_offset is not None
        assert told.progress is not None
        shown = {entry[0]: entry[1:] for entry in told.progress}
        done, pool = [], []
        count_known = True
        for number in self._possible_writes(now):
            op = self._writes[number]
            if not _fits_under(op, told.start_offset, shown):
                continue
            moved = self._lay(state, op)
            count_known = count_known and moved.complete_count == state.complete_count
            shows = (moved.start_offset, moved.progress) != (state.start_offset, state.progress)
            if op.known:
                (done if shows else pool).append(number)
            if shows:
                state = moved
        if not count_known:
            # A read does not show the count, so it does not tell which of these writes came: not even of
            # those whose batches were there before, and which end with this read.
            state = state._replace(complete_count=None)
        return now._replace(state=state, placed=now.placed.union(done), pool=frozenset(pool))

    def _shown_in_summary(self, now: Configuration, told: AnswerFields) -> Iterator[State | None]:
        """Yield the states that a summary may have shown, with at most one of the writes under way.

        The one that gave the start offset and the count is enough: the others may as well come later. (An
        answered one is carried out once more when its answer is due, which changes nothing.)
        """
        states = [now.state]
        if now.state is not None:
            writes = [self._writes[number] for number in self._possible_writes(now)]
            states += [self._lay(now.state, write) for write in writes]
        for state in dict.fromkeys(states):
            answer = apply(state, SUMMARY, (_ANY_PART,), self._topic_known)[1]
            if state is not None and answer.complete_count is None:
                answer = answer._replace(complete_count=told.complete_count)
                state = state._replace(complete_count=told.complete_count)
            if answer == told:
                yield state
                if state == now.state:
                    return

    # Fewer configurations.

    def _with_harmless(self, now: Configuration) -> Configuration:
        fitting = [
            number
            for number, op in self._answered.items()
            if number not in now.placed
            and (op.kind == SUMMARY or not op.accepted)
            and apply(now.state, op.kind, op.parts, self._topic_known)[1] == self._told[number]
        ]
        return now._replace(placed=now.placed.union(fitting)) if fitting else now

    def _undominated(self, configurations: Iterable[Configuration]) -> set[Configuration]:
        alike: dict[object, list[Configuration]] = {}
        for now in configurations:
            answered = frozenset(number for number in now.placed if number in self._told)
            alike.setdefault((now.state, now.pool, now.wiped, answered), []).append(now)
        kept = set()
        for several in alike.values():
            several.sort(key=lambda now: len(now.placed))
            least: list[frozenset[int]] = []
            for now in several:
                if not any(smaller <= now.placed for smaller in least):
                    least.append(now.placed)
                    kept.add(now)
        return kept


def _over(op: Operation) -> tuple[float, int]:
    return (op.answered if op.known else op.deadline) or NEVER


class _AnyPart(NamedTuple):
    partition: int = 0


_ANY_PART = _AnyPart()


def _fits_under(op: Operation, start_offset: int, shown: dict[int, tuple[int, ...]]) -> bool:
    return all(
        part.start_offset <= start_offset and _covered(progress_of(part.state_batches), start_offset, shown)
        for part in op.parts
    )


def _covered(progress: Progress, start_offset: int, shown: dict[int, tuple[int, ...]]) -> bool:
    return all(
        user_offset < start_offset or (count, state) <= shown.get(user_offset, ())
        for user_offset, count, state in progress
    )
