"""The job `plan-prune`: compute which records can be pruned, and which states prevent further pruning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordinator.recovery.checks.partition_stats import PartitionStats, partition_stats
from coordinator.recovery.rebuild import RebuildResult
from coordinator.recovery.records import column_to_ints

# Maximum number of share-partitions that are listed for each state partition.
PINS_MAX = 5


class PinningState(NamedTuple):
    """A share-partition that needs old records, which prevents their pruning.

    If this share-partition and all older pins had a new snapshot, `frees` more log offsets could be pruned.
    """

    share_partition: str
    needed_from: int
    since_ms: int
    frees: int


@dataclass(frozen=True)
class PrunePlan:
    """The statistics of a state partition, and the share-partitions that prevent pruning, oldest first."""

    facts: PartitionStats
    pins: Sequence[PinningState]


def prune_plan(run: RebuildResult, pins_max: int = PINS_MAX) -> list[PrunePlan]:
    """Compute up to which offset each state partition can be pruned, and which states prevent more."""
    states = run.states
    partition, needed_from = (
        column_to_ints(states.column(name)) for name in ("state_partition", "needed_from")
    )
    order = np.lexsort((needed_from, partition))
    found = []
    for facts in _collect_stats(run):
        own = order[partition[order] == facts.state_partition]
        oldest = states.take(own[: pins_max + 1]).to_pylist()
        pins = []
        for place, row in enumerate(oldest[:pins_max]):
            following = oldest[place + 1]["needed_from"] if place + 1 < len(oldest) else facts.end
            pins.append(
                PinningState(
                    f"{row['group_id']}:{row['topic_id']}:{row['partition']}",
                    row["needed_from"],
                    row["write_timestamp"] or row["last_write_ms"],
                    following - facts.needed_from,
                )
            )
        found.append(PrunePlan(facts, pins))
    return found


def _collect_stats(run: RebuildResult) -> list[PartitionStats]:
    starts, ends = {}, {}
    for partition, of in run.manifest["partitions"].items():
        if of["start"] is not None:
            starts[int(partition)] = of["start"]
        ends[int(partition)] = max(of["read_to"], 0)
    return partition_stats(run.totals, run.ranges.to_pylist(), starts, ends)
