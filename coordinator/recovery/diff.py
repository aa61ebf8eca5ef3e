"""The job `diff`: what the log holds, against what a live coordinator answers.

Traffic goes on meanwhile, so equality is bracketed: the log is folded up to A, the coordinator is asked, and
where it answers something else, the log is looked at up to B, where it ends afterwards.  An answer is right
if it is the share-partition's state at some log offset from A to B.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from coordinator.recovery.engines.base import Engine
from coordinator.recovery.history import steps_of
from coordinator.recovery.live import Answer, Live, ask
from coordinator.recovery.progress import Phases
from coordinator.recovery.rebuild import Rebuilt, rebuild
from coordinator.recovery.sources.base import Cut, Source, run_apart
from coordinator.shard.batches import NO_START_OFFSET
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey, parse_topic_id


class Shown(NamedTuple):
    """A state as far as a coordinator shows it; None instead of it: there is no state."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: bytes


_SUMMARY = ("state_epoch", "leader_epoch", "start_offset", "complete_count")


class Difference(NamedTuple):
    """A share-partition of which the coordinator answers what the log never held meanwhile."""

    key: SharePartitionKey
    state_partition: int
    what: str
    in_log: Shown | None
    live: Answer


@dataclass(frozen=True)
class Diffed:
    """What came of it. `moved` are those that were right at another log offset than A.

    `unknown` could not be asked, and why; `batches_unknown` counts those whose batches could not.
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
    live: str | Live,
    *,
    phases: Phases | None = None,
    groups: Iterable[str] = (),
) -> Diffed:
    """Compare a log with the coordinator that `live` ("host:port,host:port") leads to.

    Only share-partitions that the log knows can be asked for.  Raises LogError and ConfigError.
    """
    phases = phases or Phases()
    run = rebuild(engine, source, phases=phases)
    return compared(source, run, live, phases=phases, groups=groups)


def compared(
    source: Source, run: Rebuilt, live: str | Live, *, phases: Phases, groups: Iterable[str] = ()
) -> Diffed:
    """Compare states that were rebuilt up to the end of the log with a live coordinator."""
    held, places, leader_epochs = _held(run.states, set(groups))
    with phases.phase("ask", len(held), "share-partitions") as advance:
        answers = run_apart(ask(live, leader_epochs, advance))
    unknown = {key: answer.trouble for key, answer in answers.items() if answer.trouble}
    doubtful = {key for key, answer in answers.items() if key not in unknown and not _is(held[key], answer)}
    moved: set[SharePartitionKey] = set()
    if doubtful:
        candidates = _states_since(source, run, doubtful, places)
        for key in doubtful:
            if _is_among([held[key], *candidates[key]], answers[key]):
                moved.add(key)
    different = [
        Difference(key, places[key], _what(held[key], answers[key]), held[key], answers[key])
        for key in sorted(doubtful - moved)
    ]
    return Diffed(
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


def _held(
    states: pa.Table, groups: set[str]
) -> tuple[dict[SharePartitionKey, Shown | None], dict[SharePartitionKey, int], dict[SharePartitionKey, int]]:
    held: dict[SharePartitionKey, Shown | None] = {}
    places, leader_epochs = {}, {}
    for row in states.to_pylist():
        # Of what nobody can read a coordinator does not answer either.
        if row["unreadable"] is not None or (groups and row["group_id"] not in groups):
            continue
        key = SharePartitionKey(row["group_id"], parse_topic_id(row["topic_id"]), row["partition"])
        held[key] = Shown(
            row["state_epoch"],
            row["leader_epoch"],
            row["start_offset"],
            row["delivery_complete_count"],
            pack(StateBatch(**batch) for batch in row["state_batches"]),
        )
        places[key] = row["state_partition"]
        leader_epochs[key] = row["leader_epoch_max"]
    return held, places, leader_epochs


def _states_since(
    source: Source, run: Rebuilt, keys: set[SharePartitionKey], places: Mapping[SharePartitionKey, int]
) -> dict[SharePartitionKey, list[Shown | None]]:
    """Return what the share-partitions were at each log offset from A to where the log ends by now."""
    cut_at: defaultdict[int, int] = defaultdict(int)
    for row in run.ranges.to_pylist():
        number = row["state_partition"]
        cut_at[number] = max(cut_at[number], row["range_end"])
    found: dict[SharePartitionKey, list[Shown | None]] = {key: [] for key in keys}
    for step in steps_of(source, source.plan(Cut()), keys, {places[key] for key in keys}):
        if step.log_offset < cut_at[step.state_partition]:
            continue
        state = step.after
        shown = None
        if state is not None:
            shown = Shown(
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
                state.batches,
            )
        found[step.record.key].append(shown)
    return found


def _summary_is(held: Shown | None, answer: Answer) -> bool:
    if held is None or not answer.exists:
        return held is None and not answer.exists
    return _differences(held, answer, _SUMMARY) == []


def _read_is(held: Shown | None, answer: Answer) -> bool:
    if held is None or not answer.exists:
        return held is None and not answer.exists
    if answer.batches is None:
        return True
    said = (answer.read_state_epoch, answer.read_start_offset, answer.batches)
    return said == (held.state_epoch, held.start_offset, held.batches)


def _is(held: Shown | None, answer: Answer) -> bool:
    return _summary_is(held, answer) and _read_is(held, answer)


def _is_among(states: Sequence[Shown | None], answer: Answer) -> bool:
    """Say whether each of the two questions, asked one after the other, was answered from one of these."""
    return any(_summary_is(state, answer) for state in states) and any(
        _read_is(state, answer) for state in states
    )


def _differences(held: Shown, answer: Answer, names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        said = getattr(answer, name)
        if said is not None and said != getattr(held, name):
            found.append(f"{name.replace('_', ' ')} {said}, in the log {getattr(held, name)}")
    return found


def _what(held: Shown | None, answer: Answer) -> str:
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
            + (f"; it lacks {shown_batch(missing[0])}" if missing else "")
            + (f"; it has {shown_batch(more[0])}" if more else "")
        )
    return "; ".join(found) or f"its Read starts at {answer.read_start_offset or NO_START_OFFSET}"


def shown_batch(batch: StateBatch) -> str:
    """Show a batch as text."""
    return (
        f"({batch.first_offset}-{batch.last_offset}, state {batch.delivery_state}, "
        f"count {batch.delivery_count})"
    )
