"""The job `diff`: compare the states in a log with the responses of a live coordinator.

Writes continue during the comparison. So the log is folded up to its end A, then the coordinator is read. If
there are differences, the log is read again up to its later end B.  A response is correct if it is the
share-partition's state at some log offset from A to B.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from coordinator.recovery.deduplication import Row, count_state_partitions, deduplicate, key_of
from coordinator.recovery.engines.base import Engine
from coordinator.recovery.history import read_history
from coordinator.recovery.live_coordinator import LiveCoordinator, LiveState, read_states
from coordinator.recovery.progress import Phases
from coordinator.recovery.rebuild import RebuildResult, rebuild
from coordinator.recovery.schema import NONE
from coordinator.recovery.sources.base import END, Cut, Source, run_on_thread
from coordinator.shard.batches import NO_START_OFFSET
from coordinator.shard.history import format_batch
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition as routed_to
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey


class VisibleState(NamedTuple):
    """The part of a state that a coordinator returns; None instead of it means that there is no state."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: bytes


_SUMMARY = ("state_epoch", "leader_epoch", "start_offset", "complete_count")


class Difference(NamedTuple):
    """A share-partition whose response is not its state at any log offset from A to B."""

    key: SharePartitionKey
    state_partition: int
    what: str
    in_log: VisibleState | None
    live: LiveState


@dataclass(frozen=True)
class DiffResult:
    """Numbers of share-partitions by the result of the comparison.

    `moved` counts responses that are correct at a later log offset than A. `unknown` has the reason if a
    share-partition could not be compared. `batches_unknown` counts states whose batches could not be read.
    """

    asked: int
    equal: int
    moved: int
    different: Sequence[Difference]
    unknown: Mapping[SharePartitionKey, str]
    batches_unknown: int
    manifest: dict[str, Any]


def diff(
    engine: Engine,
    source: Source,
    live: str | LiveCoordinator,
    *,
    phases: Phases | None = None,
    groups: Iterable[str] = (),
    listed: Iterable[SharePartitionKey] = (),
) -> DiffResult:
    """Compare a log with the coordinator at `live` ("host:port,host:port").

    The share-partitions are those in the log and those in `listed`, which come from the coordinator's HTTP
    API or from the groups.  Raises LogError and ConfigError.
    """
    phases = phases or Phases()
    run = rebuild(engine, source, phases=phases)
    number = count_state_partitions(list(map(int, run.manifest["partitions"])))
    return compared(source, run, live, phases=phases, groups=groups, listed=listed, state_partitions=number)


def compared(
    source: Source,
    run: RebuildResult,
    live: str | LiveCoordinator,
    *,
    phases: Phases,
    groups: Iterable[str] = (),
    listed: Iterable[SharePartitionKey] = (),
    state_partitions: int | None = None,
) -> DiffResult:
    """Compare states that were rebuilt up to the end of the log with a live coordinator.

    `state_partitions` is None if it is not known.
    """
    rows = _selected_states(run.states, set(groups), state_partitions)
    held: dict[SharePartitionKey, VisibleState | None] = {
        key: _visible_state(row) for key, row in rows.items()
    }
    for key in _listed_without_state(run.states, listed, set(groups)):
        rows[key] = _row_of_listed(key, state_partitions)
        held[key] = None
    with phases.phase("ask", len(held), "share-partitions") as advance:
        leader_epochs = {key: row["leader_epoch_max"] for key, row in rows.items()}
        answers = run_on_thread(read_states(live, leader_epochs, advance))
    unknown = {key: answer.trouble for key, answer in answers.items() if answer.trouble}
    doubtful = {
        key
        for key, answer in answers.items()
        if key not in unknown and not _answer_matches(held[key], answer)
    }
    moved: set[SharePartitionKey] = set()
    if doubtful:
        candidates, headless = _states_since(source, run, {key: rows[key] for key in doubtful})
        for key in doubtful:
            if _matches_any([held[key], *candidates[key]], answers[key]):
                moved.add(key)
            elif key in headless:
                unknown[key] = "its records were pruned during the comparison"
    different = [
        Difference(
            key,
            rows[key]["state_partition"],
            _describe_difference(held[key], answers[key]),
            held[key],
            answers[key],
        )
        for key in sorted(doubtful - moved - set(unknown))
    ]
    return DiffResult(
        asked=len(held),
        equal=len(held) - len(different) - len(unknown) - len(moved),
        moved=len(moved),
        different=different,
        unknown=unknown,
        batches_unknown=sum(
            answer.exists and answer.batches is None and not answer.trouble for answer in answers.values()
        ),
        manifest=run.manifest,
    )


def _selected_states(
    states: pa.Table, groups: set[str], state_partitions: int | None
) -> dict[SharePartitionKey, Row]:
    """Return the rows of `STATES` of the selected groups, by share-partition."""
    chosen, _ = deduplicate(states.to_pylist(), state_partitions)
    return {
        key: row
        for key, row in chosen.items()
        # A coordinator does not return unreadable states either.
        if row["unreadable"] is None and (not groups or key.group_id in groups)
    }


def _listed_without_state(
    states: pa.Table, listed: Iterable[SharePartitionKey], groups: set[str]
) -> list[SharePartitionKey]:
    """Return the listed share-partitions that are not in the log."""
    known = {key_of(row) for row in states.select(["group_id", "topic_id", "partition"]).to_pylist()}
    return sorted(key for key in set(listed) - known if not groups or key.group_id in groups)


def _row_of_listed(key: SharePartitionKey, state_partitions: int | None) -> Row:
    """Return a row for a share-partition that had no state up to A; it may have one up to B."""
    number = NONE if state_partitions is None else routed_to(key, state_partitions)
    return {"state_partition": number, "needed_from": END, "leader_epoch_max": NONE}


def _visible_state(row: Row) -> VisibleState:
    return VisibleState(
        row["state_epoch"],
        row["leader_epoch"],
        row["start_offset"],
        row["delivery_complete_count"],
        pack(StateBatch(**batch) for batch in row["state_batches"]),
    )


def _states_since(
    source: Source, run: RebuildResult, rows: Mapping[SharePartitionKey, Row]
) -> tuple[dict[SharePartitionKey, list[VisibleState | None]], set[SharePartitionKey]]:
    """Return the states of the share-partitions at each log offset from A to the current end of the log.

    The second result are the share-partitions whose snapshot was pruned since A; their states are not known.
    """
    cut_at: defaultdict[int, int] = defaultdict(int)
    for row in run.ranges.to_pylist():
        number = row["state_partition"]
        cut_at[number] = max(cut_at[number], row["range_end"])
    plan = source.plan(Cut())
    headless = {
        key for key, row in rows.items() if plan.starts.get(row["state_partition"], 0) > row["needed_from"]
    }
    unknown_yet = set(headless)
    found: dict[SharePartitionKey, list[VisibleState | None]] = {key: [] for key in rows}
    for step in read_history(source, plan, rows, {row["state_partition"] for row in rows.values()}):
        key, place = step.record.key, rows[step.record.key]["state_partition"]
        if step.state_partition != place:
            continue
        if not isinstance(step.record.value, ShareUpdateValue):
            unknown_yet.discard(key)
        if step.log_offset < cut_at[place] or key in unknown_yet:
            continue
        state = step.after
        shown = None
        if state is not None:
            shown = VisibleState(
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
                state.batches,
            )
        found[key].append(shown)
    return found, headless


def _summary_matches(held: VisibleState | None, answer: LiveState) -> bool:
    if held is None or not answer.exists:
        return held is None and not answer.exists
    return _differences(held, answer, _SUMMARY) == []


def _read_matches(held: VisibleState | None, answer: LiveState) -> bool:
    if held is None or not answer.exists:
        return held is None and not answer.exists
    if answer.batches is None:
        return True
    said = (answer.read_state_epoch, answer.read_start_offset, answer.batches)
    return said == (held.state_epoch, held.start_offset, held.batches)


def _answer_matches(held: VisibleState | None, answer: LiveState) -> bool:
    return _summary_matches(held, answer) and _read_matches(held, answer)


def _matches_any(states: Sequence[VisibleState | None], answer: LiveState) -> bool:
    """Return whether the responses to both requests, sent one after the other, match one of the states."""
    return any(_summary_matches(state, answer) for state in states) and any(
        _read_matches(state, answer) for state in states
    )


def _differences(held: VisibleState, answer: LiveState, names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        said = getattr(answer, name)
        if said is not None and said != getattr(held, name):
            found.append(f"{name.replace('_', ' ')} {said}, in the log {getattr(held, name)}")
    return found


def _describe_difference(held: VisibleState | None, answer: LiveState) -> str:
    if held is None:
        return "the coordinator has state of it, the log has none"
    if not answer.exists:
        return "the coordinator has no state of it"
    found = _differences(held, answer, _SUMMARY)
    if answer.batches is not None and answer.batches != held.batches:
        there, here = unpack(answer.batches), unpack(held.batches)
        missing = [batch for batch in here if batch not in there]
        more = [batch for batch in there if batch not in here]
        found.append(
            f"{len(there)} state batches, in the log {len(here)}"
            + (f"; it lacks {format_batch(missing[0])}" if missing else "")
            + (f"; it has {format_batch(more[0])}" if more else "")
        )
    return "; ".join(found) or f"its Read starts at {answer.read_start_offset or NO_START_OFFSET}"
