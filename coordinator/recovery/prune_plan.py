"""The jobs `plan-prune` and `replay-cost`: compute the prunable records, and the time to load each shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordinator.process.clock import cpu_seconds
from coordinator.recovery.checks.partition_stats import PartitionStats, partition_stats
from coordinator.recovery.rebuild import RebuildResult
from coordinator.recovery.records import Records, column_to_ints
from coordinator.recovery.sources.base import LogCut, Source
from coordinator.serve.runtime.replay import FINISH_BATCH, make_replays
from coordinator.shard import Shard, SnapshotPolicy
from protocol.errors import DecodeError
from protocol.record_batch import encode_batch

# Maximum number of share-partitions that are listed for each state partition.
PINS_MAX = 5

# Records of the sample that is replayed to measure the speed of this machine.
_SAMPLE_RECORDS = 20_000
_SAMPLE_BATCH_RECORDS = 50
_MEASURED_S = 0.3


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
    """Compute for each state partition up to which offset it can be pruned, and what prevents more."""
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


@dataclass(frozen=True)
class ReplayCost:
    """The estimated load times; `is_measured` is true if `records_per_s` was measured on this machine."""

    records_per_s: float
    is_measured: bool
    partitions: Sequence[PartitionStats]

    def seconds(self, facts: PartitionStats) -> float:
        """Return the load time of a state partition, in seconds."""
        return facts.records / self.records_per_s

    @property
    def total_s(self) -> float:
        """The load time of all state partitions in one process, which loads them one after the other."""
        return sum(self.seconds(each) for each in self.partitions)


def replay_cost(source: Source, run: RebuildResult, records_per_s: float | None = None) -> ReplayCost:
    """Compute the load time of each state partition; without `records_per_s`, measure it on this machine."""
    facts = _collect_stats(run)
    if records_per_s is not None:
        return ReplayCost(records_per_s, False, facts)
    return ReplayCost(measure_records_per_s(source), True, facts)


def measure_records_per_s(source: Source) -> float:
    """Load records of a log with the coordinator's loader; return the number of records per second."""
    batches: list[bytes] = []
    count = 0
    for log_range in source.plan(LogCut()).ranges:
        for records in source.read(log_range):
            written = _sample_batches(records, count)
            batches += written
            count += len(written) * _SAMPLE_BATCH_RECORDS
            if count >= _SAMPLE_RECORDS:
                break
        if count >= _SAMPLE_RECORDS:
            break
    replayed = 0
    begun_s = cpu_seconds()
    while (took_s := cpu_seconds() - begun_s) < _MEASURED_S or not replayed:
        more = _replay_batches(batches)
        if not more:
            break
        replayed += more
    return max(replayed, 1) / max(took_s, _MEASURED_S)


def _replay_batches(batches: Sequence[bytes]) -> int:
    """Load batches into a shard as a coordinator does; return the number of records."""
    (replay,) = make_replays({0: Shard(0, SnapshotPolicy())}).values()
    replayed = 0
    for batch in batches:
        try:
            replayed += replay.take(batch)
        except DecodeError:
            continue
    while not replay.finish(FINISH_BATCH):
        pass
    return replayed


def _sample_batches(records: Records, begin: int) -> list[bytes]:
    """Encode records for the sample as batches, with log offsets from `begin`."""
    data = records.data_records()
    rows = range(min(len(data), _SAMPLE_RECORDS - begin))
    pairs = [(data.keys.get(row) or b"", data.values.get(row)) for row in rows]
    return [
        encode_batch(begin + at, 0, pairs[at : at + _SAMPLE_BATCH_RECORDS])
        for at in range(0, len(pairs), _SAMPLE_BATCH_RECORDS)
    ]
