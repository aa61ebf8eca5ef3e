"""Check all states of the lease model."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tests.model.leases import CheckBounds, LeaseModel, LeaseRules, Process, State

# A state of the model: the number of the state without processes, and the number of each process in ascending
# order. The identity of a process is irrelevant, so permutations count as one state.
NumberedState = tuple[int, ...]


class NumberedSteps:
    """The possible steps in each state of a model, as numbers.

    The steps of a process depend only on this process and on the state without processes. The states contain
    few different pairs of these, so the steps of each pair are computed once.
    """

    def __init__(self, model: LeaseModel) -> None:
        self._model = model
        self._numbers: dict[State | Process, int] = {}
        self._values: list[Any] = []
        self._advance = cache(lambda process: self._number(model.advance_age(self._values[process], 1)))
        self._append_late_request = cache(self._compute_late_request)
        self._process_steps = cache(self._compute_process_steps)
        self._is_safe = cache(
            lambda shared, process: model.is_safe(
                self._values[shared]._replace(processes=(self._values[process],))
            )
        )
        self.first: NumberedState = (
            self._number(model.first._replace(processes=())),
            *map(self._number, model.first.processes),
        )

    def _number(self, value: State | Process) -> int:
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def is_safe(self, state: NumberedState) -> bool:
        """Return whether each process that may answer a read knows every acknowledged write."""
        shared, *processes = state
        return all(self._is_safe(shared, process) for process in processes)

    def steps(self, state: NumberedState) -> Iterator[tuple[str, NumberedState]]:
        """Yield the name of each possible next step and the state after it."""
        shared, *processes = state
        yield "time passes", (shared, *sorted(map(self._advance, processes)))
        for name, shared_after in self._append_late_request(shared):
            yield name, (shared_after, *processes)
        for place, process in enumerate(processes):
            others = processes[:place] + processes[place + 1 :]
            for name, shared_after, following in self._process_steps(shared, process):
                yield name, (shared_after, *sorted((*others, following)))

    def _compute_late_request(self, shared: int) -> list[tuple[str, int]]:
        state = self._values[shared]
        if state.late is None:
            return []
        appended = state._replace(log=(*state.log, state.late), late=None)
        return [(f"late {state.late.kind} arrives", self._number(appended))]

    def _compute_process_steps(self, shared: int, process: int) -> list[tuple[str, int, int]]:
        state = self._values[shared]
        return [
            (name, self._number(state._replace(**changes)), self._number(following))
            for name, following, changes in self._model.steps(state, self._values[process])
        ]


class ModelCheckResult(NamedTuple):
    """The number of visited states, and the steps to the first unsafe state."""

    states: int
    trace: list[str] | None


def check_model(rules: LeaseRules, bounds: CheckBounds) -> ModelCheckResult:
    """Visit all states in breadth-first order; stop at the first unsafe state."""
    model = NumberedSteps(LeaseModel(rules, bounds))
    came_from: dict[NumberedState, tuple[NumberedState, str] | None] = {model.first: None}
    waiting = [model.first]
    for state in waiting:
        for name, following in model.steps(state):
            if following in came_from:
                continue
            came_from[following] = (state, name)
            if not model.is_safe(following):
                return ModelCheckResult(len(came_from), _format_trace(came_from, following))
            waiting.append(following)
    return ModelCheckResult(len(came_from), None)


def _format_trace(
    came_from: dict[NumberedState, tuple[NumberedState, str] | None], state: NumberedState
) -> list[str]:
    steps = []
    while (step := came_from[state]) is not None:
        state, name = step
        steps.append(name)
    return steps[::-1]
