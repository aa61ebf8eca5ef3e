"""Compare the states of a state partition with the responses of a live coordinator."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from coordinator.operate.migration import ComparableState
from coordinator.recovery.live_coordinator import LiveCoordinator, LiveState, read_states
from coordinator.recovery.schema import NONE, STATES
from coordinator.recovery.share_partitions import (
    Row,
    is_in_hash_partition,
    make_share_state,
    record_key_identity,
    row_share_partition,
)
from coordinator.recovery.sources.base import run_coroutine_on_thread
from coordinator.recovery.state_tasks import PartitionStates
from coordinator.recovery.tasks import NamedOutput
from coordinator.shard.history import format_batch
from protocol.routing import state_partition as routed_to
from protocol.state_batches import unpack
from protocol.state_records import SharePartitionKey

# The default maximum number of differences that are examined and listed; all are counted.
DIFFERENCES_MAX = 1_000

COMPARED_OUTPUT = "compared"
ANSWERS_OUTPUT = "answers"
DOUBTFUL_OUTPUT = "doubtful"

COUNTS = ("asked", "doubtful", "unknown", "batches_unknown")


@dataclass(frozen=True)
class StateComparison:
    """Compares the states of a state partition with a live coordinator; this is a `StateTask`.

    `groups` selects share groups, all by default. `listed` are share-partitions that another source lists, by
    state partition. `state_partitions` is None if it is not known.

    A coordinator reads a share-partition from the state partition of its hash. So a state elsewhere (R8)
    differs only if the coordinator has no state of the share-partition at all.
    """

    live: str | LiveCoordinator
    state_partitions: int | None
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
        """Assign the listed share-partitions to state partitions.

        If their number is not known, the log lacks some of them. The lists are then not used.
        """
        found: defaultdict[int, list[SharePartitionKey]] = defaultdict(list)
        for key in sorted(set(listed)) if state_partitions is not None else ():
            found[routed_to(key, state_partitions or 0)].append(key)
        return cls(live, state_partitions, dict(found), **more)

    def __call__(self, inside: PartitionStates) -> Iterator[NamedOutput]:
        """Yield the numbers, and the responses that differ from the state up to A."""
        counts = dict.fromkeys(COUNTS, 0)
        answers: list[dict[str, Any]] = []
        doubtful: list[Row] = []
        unseen = {key: None for key in self.listed.get(inside.state_partition, ()) if self._is_selected(key)}
        for rows in inside.chunks():
            found = {row_share_partition(row): row for row in rows}
            for key in found:
                unseen.pop(key, None)
            # A coordinator does not return unreadable states either.
            wanted = {
                key: row for key, row in found.items() if row["unreadable"] is None and self._is_selected(key)
            }
            self._compare_with_coordinator(wanted, (), counts, answers, doubtful)
        self._compare_with_coordinator({}, unseen, counts, answers, doubtful)
        number = inside.state_partition
        yield NamedOutput.from_rows(COMPARED_OUTPUT, number, counts)
        yield NamedOutput.from_rows(ANSWERS_OUTPUT, number, *answers)
        yield NamedOutput(DOUBTFUL_OUTPUT, number, pa.RecordBatch.from_pylist(doubtful, STATES))

    def _is_selected(self, key: SharePartitionKey) -> bool:
        return not self.groups or key.group_id in self.groups

    def _is_misplaced(self, row: Row) -> bool:
        return self.state_partitions is not None and not is_in_hash_partition(row, self.state_partitions)

    def _compare_with_coordinator(
        self,
        rows: Mapping[SharePartitionKey, Row],
        listed: Iterable[SharePartitionKey],
        counts: dict[str, int],
        answers: list[dict[str, Any]],
        doubtful: list[Row],
    ) -> None:
        """Read share-partitions from the coordinator; add to `counts`, `answers` and `doubtful`."""
        leader_epochs = {key: row["leader_epoch_max"] for key, row in rows.items()}
        leader_epochs |= dict.fromkeys(listed, NONE)
        if not leader_epochs:
            return
        counts["asked"] += len(leader_epochs)
        found = run_coroutine_on_thread(read_states(self.live, leader_epochs))
        for key in leader_epochs:
            answer, row = found[key], rows.get(key)
            held = None if row is None else state_of_row(row)
            exists = answer.summary is not None
            if row is not None and exists and not answer.trouble and self._is_misplaced(row):
                # The coordinator has read another state partition, where its answer is compared.
                counts["asked"] -= 1
                continue
            is_doubtful = not answer.trouble and not responses_match_any_state([held], answer)
            counts["batches_unknown"] += exists and not answer.read and not answer.trouble
            counts["unknown"] += bool(answer.trouble)
            counts["doubtful"] += is_doubtful
            if (answer.trouble or is_doubtful) and len(answers) < self.limit:
                answers.append({"share_partition": record_key_identity(key), **answer._asdict()})
                if row is not None and is_doubtful:
                    doubtful.append(row)


def state_of_row(row: Row) -> ComparableState:
    """Return the comparable state of a row of `STATES`."""
    return ComparableState.from_state(make_share_state(row))


def _matches(held: ComparableState | None, fields: Mapping[str, Any] | None) -> bool:
    """Return whether a response agrees with a state; None means no state."""
    if held is None or fields is None:
        return held is None and fields is None
    return not _differing_fields(held, fields)


def _differing_fields(held: ComparableState, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: said for name, said in fields.items() if said not in (None, getattr(held, name))}


def responses_match_any_state(states: Sequence[ComparableState | None], answer: LiveState) -> bool:
    """Return whether each of the two responses matches one of the states.

    They may match different states, because the requests are sent one after the other.
    """
    return all(any(_matches(state, fields) for state in states) for fields in (answer.summary, answer.read))


def describe_difference(held: ComparableState | None, answer: LiveState) -> str:
    """Describe how a response differs from a state."""
    if held is None:
        return "the coordinator has state of it, the log has none"
    if answer.summary is None:
        return "the coordinator has no state of it"
    different = _differing_fields(held, answer.summary) | _differing_fields(held, answer.read or {})
    batches = different.pop("batches", None)
    found = [
        f"{name.replace('_', ' ')} {said}, in the log {getattr(held, name)}"
        for name, said in different.items()
    ]
    if batches is not None:
        there, here = unpack(batches), unpack(held.batches or b"")
        missing = [batch for batch in here if batch not in there]
        more = [batch for batch in there if batch not in here]
        found.append(
            f"{len(there)} state batches, in the log {len(here)}"
            + (f"; it lacks {format_batch(missing[0])}" if missing else "")
            + (f"; it has {format_batch(more[0])}" if more else "")
        )
    return "; ".join(found)
