"""The job `diff`, and check X1: compare the states in a log with the responses of a live coordinator.

Writes continue during the comparison. So the job first reads the log up to its end offset A, then the
coordinator. If there are differences, the job reads the log again up to the later end offset B. A response is
correct if it is the share-partition's state at some log offset from A to B.

The task that folds a state partition also compares its states (`StateComparison`). The driver gets the first
differences, and reads the log again to examine them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from coordinator.operate.migration import ComparableState
from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.engines import Engine
from coordinator.recovery.history import read_history
from coordinator.recovery.job import LogReadResult
from coordinator.recovery.live_coordinator import LiveCoordinator, LiveState, read_states
from coordinator.recovery.manifest import make_manifest
from coordinator.recovery.rebuild import read_states as rebuild_states
from coordinator.recovery.schema import NONE, STATES
from coordinator.recovery.share_partitions import (
    Row,
    count_state_partitions,
    identity_to_key,
    is_in_hash_partition,
    make_share_state,
    record_key_identity,
    row_share_partition,
)
from coordinator.recovery.sources.base import END, LogCut, Source, run_coroutine_on_thread
from coordinator.recovery.state_tasks import PartitionStates, empty_partition_states
from coordinator.recovery.tasks import NamedOutput
from coordinator.shard.history import format_batch
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition as routed_to
from protocol.state_batches import unpack
from protocol.state_records import SharePartitionKey

# The default maximum number of differences that are examined and listed; all are counted.
DIFFERENCES_MAX = 1_000

COMPARED_OUTPUT = "compared"
ANSWERS_OUTPUT = "answers"
DOUBTFUL_OUTPUT = "doubtful"

COUNTS = ("compared", "doubtful", "unknown", "batches_unknown")


@dataclass(frozen=True)
class StateComparison:
    """Compares the states of a state partition with a live coordinator; this is a `StateTask`.

    `groups` selects share groups, all by default. `listed` are share-partitions, by state partition, that the
    coordinator or the groups list.

    A coordinator reads a share-partition from the state partition that its hash selects. So a state in
    another state partition (check R8) differs only if the coordinator has no state of the share-partition at
    all.
    """

    live: str | LiveCoordinator
    listed: Mapping[int, Sequence[SharePartitionKey]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    limit: int = DIFFERENCES_MAX

    @classmethod
    def from_listed_keys(
        cls,
        live: str | LiveCoordinator,
        state_partitions: int | None,
        listed: Iterable[SharePartitionKey] = (),
        **more: Any,
    ) -> "StateComparison":
        """Make a comparison, with the listed share-partitions assigned to state partitions.

        If the number of state partitions is not known, the listed share-partitions are not compared.
        """
        found: defaultdict[int, list[SharePartitionKey]] = defaultdict(list)
        for key in sorted(set(listed)) if state_partitions is not None else ():
            found[routed_to(key, state_partitions or 0)].append(key)
        return cls(live, dict(found), **more)

    def __call__(self, partition: PartitionStates) -> Iterator[NamedOutput]:
        """Yield the counts of this state partition, and the responses that differ from the state at A."""
        counts, state_partitions = dict.fromkeys(COUNTS, 0), count_state_partitions(partition.starts)
        answers: list[dict[str, Any]] = []
        doubtful: list[Row] = []
        unseen = {
            key: None
            for key in self.listed.get(partition.state_partition, ())
            if self._is_group_selected(key)
        }
        for rows in partition.chunks():
            found = {row_share_partition(row): row for row in rows}
            for key in found:
                unseen.pop(key, None)
            # Unreadable states are not compared, because a coordinator does not return them.
            wanted = {
                key: row
                for key, row in found.items()
                if row["unreadable"] is None and self._is_group_selected(key)
            }
            self._compare_with_coordinator(wanted, (), state_partitions, counts, answers, doubtful)
        self._compare_with_coordinator({}, unseen, state_partitions, counts, answers, doubtful)
        number = partition.state_partition
        yield NamedOutput.from_rows(COMPARED_OUTPUT, number, counts)
        yield NamedOutput.from_rows(ANSWERS_OUTPUT, number, *answers)
        yield NamedOutput(DOUBTFUL_OUTPUT, number, pa.RecordBatch.from_pylist(doubtful, STATES))

    def _is_group_selected(self, key: SharePartitionKey) -> bool:
        return not self.groups or key.group_id in self.groups

    def _compare_with_coordinator(
        self,
        rows: Mapping[SharePartitionKey, Row],
        listed: Iterable[SharePartitionKey],
        state_partitions: int | None,
        counts: dict[str, int],
        answers: list[dict[str, Any]],
        doubtful: list[Row],
    ) -> None:
        """Read share-partitions from the coordinator; add results to `counts`, `answers` and `doubtful`."""
        leader_epochs = {key: row["leader_epoch_max"] for key, row in rows.items()}
        leader_epochs |= dict.fromkeys(listed, NONE)
        if not leader_epochs:
            return
        counts["compared"] += len(leader_epochs)
        found = run_coroutine_on_thread(read_states(self.live, leader_epochs))
        for key in leader_epochs:
            answer, row = found[key], rows.get(key)
            state = None if row is None else row_to_comparable_state(row)
            exists = answer.summary is not None
            is_misplaced = (
                row is not None and state_partitions and not is_in_hash_partition(row, state_partitions)
            )
            if is_misplaced and exists and not answer.failure:
                # The coordinator's response is about another state partition, whose task compares it.
                counts["compared"] -= 1
                continue
            is_doubtful = not answer.failure and not responses_match_any_state([state], answer)
            counts["batches_unknown"] += exists and not answer.read and not answer.failure
            counts["unknown"] += bool(answer.failure)
            counts["doubtful"] += is_doubtful
            if (answer.failure or is_doubtful) and len(answers) < self.limit:
                answers.append({"share_partition": record_key_identity(key), **answer._asdict()})
                if row is not None and is_doubtful:
                    doubtful.append(row)


def row_to_comparable_state(row: Row) -> ComparableState:
    """Return the comparable state of a row of `STATES`."""
    return ComparableState.from_state(make_share_state(row))


def _response_matches_state(state: ComparableState | None, fields: Mapping[str, Any] | None) -> bool:
    """Return whether the fields of a response equal those of a state; None means no state."""
    if state is None or fields is None:
        return state is None and fields is None
    return not _differing_fields(state, fields)


def _differing_fields(state: ComparableState, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, getattr(state, name))}


def responses_match_any_state(states: Sequence[ComparableState | None], answer: LiveState) -> bool:
    """Return whether the ReadSummary and the Read response each match one of the states.

    The two responses may match different states, because the requests are sent one after the other.
    """
    return all(
        any(_response_matches_state(state, fields) for state in states)
        for fields in (answer.summary, answer.read)
    )


def describe_difference(state: ComparableState | None, answer: LiveState) -> str:
    """Describe how a response differs from a state."""
    if state is None:
        return "the coordinator has state of it, the log has none"
    if answer.summary is None:
        return "the coordinator has no state of it"
    different = _differing_fields(state, answer.summary) | _differing_fields(state, answer.read or {})
    batches = different.pop("batches", None)
    found = [
        f"{name.replace('_', ' ')} {value}, in the log {getattr(state, name)}"
        for name, value in different.items()
    ]
    if batches is not None:
        there, here = unpack(batches), unpack(state.batches or b"")
        missing = [batch for batch in here if batch not in there]
        more = [batch for batch in there if batch not in here]
        found.append(
            f"{len(there)} state batches, in the log {len(here)}"
            + (f"; it lacks {format_batch(missing[0])}" if missing else "")
            + (f"; it has {format_batch(more[0])}" if more else "")
        )
    return "; ".join(found)


class Difference(NamedTuple):
    """A share-partition whose response is not its state at any log offset from A to B."""

    key: SharePartitionKey
    state_partition: int
    what: str


@dataclass(frozen=True)
class DiffResult:
    """The result of a comparison: numbers of share-partitions, and the differences.

    `equal_later` counts responses that are correct at a later log offset than A. `unknown` has the reason for
    each share-partition that could not be compared. `batches_unknown` counts states whose batches could not
    be read. `unlisted` counts the differences and unknown share-partitions that exceed the limit of the list.
    """

    compared: int
    equal: int
    equal_later: int
    different: Sequence[Difference]
    unknown: Mapping[SharePartitionKey, str]
    batches_unknown: int
    unlisted: int
    manifest: Mapping[str, Any]


def diff(
    engine: Engine,
    source: Source,
    live: str | LiveCoordinator,
    *,
    groups: Iterable[str] = (),
    listed: Iterable[SharePartitionKey] = (),
    limit: int = DIFFERENCES_MAX,
    clock: Clock | None = None,
) -> DiffResult:
    """Compare a log with the coordinator at `live` ("host:port,host:port").

    All share-partitions in the log and in `listed` are compared; `listed` comes from the coordinator's HTTP
    API or from the groups. Raises LogError and ConfigError.
    """
    clock, cut = clock or SystemClock(), LogCut()
    number = count_state_partitions(source.plan(cut).starts)
    task = StateComparison.from_listed_keys(live, number, listed, groups=frozenset(groups), limit=limit)
    log = rebuild_states(engine, source, [task], cut=cut)
    present = {row["state_partition"] for row in log.ranges}
    missing = [
        output
        for each in sorted(task.listed.keys() - present)
        for output in task(empty_partition_states(each))
    ]
    log = replace(log, outputs=[*log.outputs, *missing])
    if number is None and listed:
        note = "the log lacks state partitions, so only state that it has was compared"
        log = replace(log, plan=replace(log.plan, notes=(*log.plan.notes, note)))
    manifest = make_manifest(*("diff", engine, source, cut, log), now_ms=clock.now_ms())
    # The log was read without checkpoints, because the states after A need the records of the
    # share-partitions.
    return resolve_differences(engine, source, task, log, manifest)


def resolve_differences(
    engine: Engine,
    source: Source,
    task: StateComparison,
    log: LogReadResult,
    manifest: Mapping[str, Any],
) -> DiffResult:
    """Read the log from A to B, and return the responses that differ from every state from A to B.

    `log` is the log up to A, with the outputs of `task`.
    """
    rows_of_counts = log.rows(COMPARED_OUTPUT)
    counts = {name: sum(row[name] for row in rows_of_counts) for name in COUNTS}
    answers: dict[SharePartitionKey, LiveState] = {}
    for row in log.rows(ANSWERS_OUTPUT)[: task.limit]:
        key = identity_to_key(row.pop("share_partition"))
        answers[key] = LiveState(**row)
    doubtful = log.rows(DOUBTFUL_OUTPUT)
    unknown = {key: answer.failure for key, answer in answers.items() if answer.failure}
    with_state = {key: row for row in doubtful if (key := row_share_partition(row)) in answers}
    rows = {
        key: with_state.get(key) or _make_listed_row(key, count_state_partitions(log.plan.starts))
        for key in answers
        if key not in unknown
    }
    states = {
        key: None if key not in with_state else row_to_comparable_state(row) for key, row in rows.items()
    }
    equal_later: set[SharePartitionKey] = set()
    if rows:
        candidates, pruned_keys = _states_after_first_read(engine, source, log.ranges, rows)
        for key in rows:
            if responses_match_any_state([states[key], *candidates[key]], answers[key]):
                equal_later.add(key)
            elif key in pruned_keys:
                unknown[key] = "its records were pruned during the comparison"
    different = [
        Difference(key, rows[key]["state_partition"], describe_difference(states[key], answers[key]))
        for key in sorted(rows.keys() - equal_later - set(unknown))
    ]
    return DiffResult(
        compared=counts["compared"],
        equal=counts["compared"] - counts["doubtful"] - counts["unknown"],
        equal_later=len(equal_later),
        different=different,
        unknown=unknown,
        batches_unknown=counts["batches_unknown"],
        unlisted=counts["doubtful"] + counts["unknown"] - len(answers),
        manifest=manifest,
    )


def _make_listed_row(key: SharePartitionKey, state_partitions: int | None) -> Row:
    """Return a row for a listed share-partition without state at A, which may get state before B."""
    number = NONE if state_partitions is None else routed_to(key, state_partitions)
    return {"state_partition": number, "needed_from": END, "leader_epoch_max": NONE}


def _states_after_first_read(
    engine: Engine, source: Source, ranges: Iterable[Row], rows: Mapping[SharePartitionKey, Row]
) -> tuple[dict[SharePartitionKey, list[ComparableState | None]], set[SharePartitionKey]]:
    """Return the states of the share-partitions at each log offset from A to the current end of the log.

    The second result is the set of share-partitions whose snapshot was pruned since A, so that their states
    are not known.
    """
    cut_at: defaultdict[int, int] = defaultdict(int)
    for row in ranges:
        number = row["state_partition"]
        cut_at[number] = max(cut_at[number], row["range_end"])
    numbers = {row["state_partition"] for row in rows.values()}
    log, steps = read_history(engine, source, rows, state_partitions=numbers)
    starts = log.plan.starts
    pruned_keys = {
        key for key, row in rows.items() if starts.get(row["state_partition"], 0) > row["needed_from"]
    }
    without_snapshot = set(pruned_keys)
    found: dict[SharePartitionKey, list[ComparableState | None]] = {key: [] for key in rows}
    for step in steps:
        key, place = step.record.key, rows[step.record.key]["state_partition"]
        if step.state_partition != place:
            continue
        if not isinstance(step.record.value, ShareUpdateValue):
            without_snapshot.discard(key)
        if step.log_offset < cut_at[place] or key in without_snapshot:
            continue
        found[key].append(None if step.after is None else ComparableState.from_state(step.after))
    return found, pruned_keys
