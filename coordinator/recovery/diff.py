"""The job `diff`: compare the states in a log with the responses of a live coordinator.

Writes continue during the comparison. So the log is folded up to its end A, then the coordinator is read. If
there are differences, the log is read again up to its later end B.  A response is correct if it is the
share-partition's state at some log offset from A to B.

The states of each state partition are compared by `StateComparison`, where they are made. This process gets
the first differences, and reads the log again to resolve them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from coordinator.operate.migration import ComparableState
from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.engines import Engine
from coordinator.recovery.history import read_history
from coordinator.recovery.job import LogReadResult, output_rows
from coordinator.recovery.live_comparison import (
    ANSWERS_OUTPUT,
    COMPARED_OUTPUT,
    COUNTS,
    DIFFERENCES_MAX,
    DOUBTFUL_OUTPUT,
    StateComparison,
    describe_difference,
    responses_match_any_state,
    state_of_row,
)
from coordinator.recovery.live_coordinator import LiveCoordinator, LiveState
from coordinator.recovery.manifest import make_manifest
from coordinator.recovery.rebuild import read_states
from coordinator.recovery.schema import NONE
from coordinator.recovery.share_partitions import (
    Row,
    count_state_partitions,
    identity_to_key,
    row_share_partition,
)
from coordinator.recovery.sources.base import END, LogCut, Source
from coordinator.recovery.state_tasks import no_states
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition as routed_to
from protocol.state_records import SharePartitionKey


class Difference(NamedTuple):
    """A share-partition whose response is not its state at any log offset from A to B."""

    key: SharePartitionKey
    state_partition: int
    what: str


@dataclass(frozen=True)
class DiffResult:
    """Numbers of share-partitions by the result of the comparison.

    `moved` counts responses that are correct at a later log offset than A. `unknown` has the reason if a
    share-partition could not be compared. `batches_unknown` counts states whose batches could not be read.
    `unlisted` counts differences and unknown share-partitions beyond the limit.
    """

    asked: int
    equal: int
    moved: int
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

    The share-partitions are those in the log and those in `listed`, which come from the coordinator's HTTP
    API or from the groups.  Raises LogError and ConfigError.
    """
    clock, cut = clock or SystemClock(), LogCut()
    number = count_state_partitions(source.plan(cut).starts)
    task = StateComparison.from_listed_keys(live, number, listed, groups=frozenset(groups), limit=limit)
    log = read_states(engine, source, lambda _: [task], cut=cut)
    present = {row["state_partition"] for row in log.ranges}
    missing = [output for each in sorted(task.listed.keys() - present) for output in task(no_states(each))]
    log = replace(log, outputs=[*log.outputs, *missing])
    if number is None and listed:
        note = "the log lacks state partitions, so only state that it has was compared"
        log = replace(log, plan=replace(log.plan, notes=(*log.plan.notes, note)))
    manifest = make_manifest(*("diff", engine, source, cut, log), now_ms=clock.now_ms())
    # The states of a share-partition since A need its records, which checkpoints do not have.
    return resolve_differences(engine, source, task, log, manifest)


def resolve_differences(
    engine: Engine,
    source: Source,
    task: StateComparison,
    log: LogReadResult,
    manifest: Mapping[str, Any],
) -> DiffResult:
    """Read the log from A to B, and return which responses differ from all states between them.

    `log` is the log up to A, with the outputs of `task`.
    """
    compared = output_rows(log.outputs, COMPARED_OUTPUT)
    counts = {name: sum(row[name] for row in compared) for name in COUNTS}
    answers: dict[SharePartitionKey, LiveState] = {}
    for row in output_rows(log.outputs, ANSWERS_OUTPUT)[: task.limit]:
        key = identity_to_key(row.pop("share_partition"))
        answers[key] = LiveState(**row)
    doubtful = output_rows(log.outputs, DOUBTFUL_OUTPUT)
    unknown = {key: answer.trouble for key, answer in answers.items() if answer.trouble}
    with_state = {key: row for row in doubtful if (key := row_share_partition(row)) in answers}
    rows = {
        key: with_state.get(key) or _make_listed_row(key, task.state_partitions)
        for key in answers
        if key not in unknown
    }
    held = {key: None if key not in with_state else state_of_row(row) for key, row in rows.items()}
    moved: set[SharePartitionKey] = set()
    if rows:
        candidates, headless = _states_since(engine, source, log.ranges, rows)
        for key in rows:
            if responses_match_any_state([held[key], *candidates[key]], answers[key]):
                moved.add(key)
            elif key in headless:
                unknown[key] = "its records were pruned during the comparison"
    different = [
        Difference(key, rows[key]["state_partition"], describe_difference(held[key], answers[key]))
        for key in sorted(rows.keys() - moved - set(unknown))
    ]
    return DiffResult(
        asked=counts["asked"],
        equal=counts["asked"] - counts["doubtful"] - counts["unknown"],
        moved=len(moved),
        different=different,
        unknown=unknown,
        batches_unknown=counts["batches_unknown"],
        unlisted=counts["doubtful"] + counts["unknown"] - len(answers),
        manifest=manifest,
    )


def _make_listed_row(key: SharePartitionKey, state_partitions: int | None) -> Row:
    """Return a row for a share-partition that had no state up to A; it may have one up to B."""
    number = NONE if state_partitions is None else routed_to(key, state_partitions)
    return {"state_partition": number, "needed_from": END, "leader_epoch_max": NONE}


def _states_since(
    engine: Engine, source: Source, ranges: Iterable[Row], rows: Mapping[SharePartitionKey, Row]
) -> tuple[dict[SharePartitionKey, list[ComparableState | None]], set[SharePartitionKey]]:
    """Return the states of the share-partitions at each log offset from A to the current end of the log.

    The second result has the share-partitions whose states are not known, because their snapshot was pruned
    since A.
    """
    cut_at: defaultdict[int, int] = defaultdict(int)
    for row in ranges:
        number = row["state_partition"]
        cut_at[number] = max(cut_at[number], row["range_end"])
    numbers = {row["state_partition"] for row in rows.values()}
    log, steps = read_history(engine, source, rows, state_partitions=numbers)
    starts = log.plan.starts
    headless = {
        key for key, row in rows.items() if starts.get(row["state_partition"], 0) > row["needed_from"]
    }
    unknown_yet = set(headless)
    found: dict[SharePartitionKey, list[ComparableState | None]] = {key: [] for key in rows}
    for step in steps:
        key, place = step.record.key, rows[step.record.key]["state_partition"]
        if step.state_partition != place:
            continue
        if not isinstance(step.record.value, ShareUpdateValue):
            unknown_yet.discard(key)
        if step.log_offset < cut_at[place] or key in unknown_yet:
            continue
        found[key].append(None if step.after is None else ComparableState.from_state(step.after))
    return found, headless
