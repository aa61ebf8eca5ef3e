"""Check pruning (P1) and load time (P7) of state partitions, and counts of the final states (K13)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.records import column_to_ints
from coordinator.recovery.schema import NONE
from coordinator.recovery.share_partitions import row_identity

# Records per second that the compiled loader loads on one core of a small machine; the Python loader loads a
# quarter of this number.
REPLAY_RECORDS_PER_S = 500_000

_ACKNOWLEDGED, _ARCHIVED = 2, 4
_W, _I = Severity.WARNING, Severity.INFO


class PartitionStats(NamedTuple):
    """The statistics of a state partition. Records below `needed_from` can be pruned."""

    state_partition: int
    start: int
    end: int
    needed_from: int
    records: int
    bytes: int
    batches: int
    share_partitions: int
    state_batches: int
    newest_ms: int
    # The share-partition that needs the oldest record, and the time of its snapshot.
    pinned_by: str
    pinned_since_ms: int

    @property
    def prunable_offsets(self) -> int:
        """The number of log offsets that can be pruned."""
        return max(self.needed_from - self.start, 0)

    @property
    def unprunable_offsets(self) -> int:
        """The number of log offsets that cannot be pruned."""
        return max(self.end - self.needed_from, 0)

    @property
    def replay_s(self) -> float:
        """The estimated time to load the state partition, in seconds."""
        return self.records / REPLAY_RECORDS_PER_S


def partition_stats(
    totals: Sequence[Mapping[str, Any]],
    ranges: Sequence[Mapping[str, Any]],
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> list[PartitionStats]:
    """Return the statistics of each state partition, from rows of `STATE_TOTALS` and of `RANGES`."""
    nothing = {"states": 0, "state_batches": 0, "pinned_by": "", "pinned_since_ms": 0}
    pins = {row["state_partition"]: row for row in totals if row["states"]}
    found = []
    for number in sorted({*starts, *(row["state_partition"] for row in ranges)}):
        own = [row for row in ranges if row["state_partition"] == number]
        read_to = max((row["range_end"] for row in own), default=0)
        end = max(read_to, min(ends.get(number, read_to), 2**62))
        start = starts.get(number, min((row["range_start"] for row in own), default=0))
        pin = pins.get(number, nothing | {"needed_from": end})
        found.append(
            PartitionStats(
                state_partition=number,
                start=start,
                end=end,
                needed_from=pin["needed_from"],
                records=sum(row["records"] for row in own),
                bytes=sum(row["bytes"] for row in own),
                batches=sum(row["batches"] for row in own),
                share_partitions=pin["states"],
                state_batches=pin["state_batches"],
                newest_ms=max((row["timestamp_ms_max"] for row in own), default=0),
                pinned_by=pin["pinned_by"],
                pinned_since_ms=pin["pinned_since_ms"],
            )
        )
    return found


def check_partition_stats(facts: Sequence[PartitionStats], limits: Limits) -> list[Finding]:
    """Check that each state partition is pruned (P1) and loads in the permitted time (P7)."""
    found: list[Finding] = []
    allowed_ms = limits.cold_snapshot_interval_ms * limits.pinned_intervals_max

    def add_finding(check: str, severity: Severity, number: int, first: int, end: int, evidence: str) -> None:
        found.append(Finding(check, severity, number, None, first, end - 1, evidence=evidence))

    for each in facts:
        number = each.state_partition
        if each.prunable_offsets > limits.prune_backlog_max:
            evidence = (
                f"{each.prunable_offsets} log offsets could be pruned, "
                f"from {each.start} to {each.needed_from}"
            )
            add_finding("P1", _W, number, each.start, each.needed_from, evidence)
        age_ms = each.newest_ms - each.pinned_since_ms
        if each.pinned_by and each.unprunable_offsets > limits.prune_backlog_max and age_ms > allowed_ms:
            evidence = (
                f"{each.pinned_by} holds back {each.unprunable_offsets} log offsets since {age_ms // 1000} s"
            )
            add_finding("P1", _W, number, each.needed_from, each.end, evidence)
        if each.replay_s > limits.replay_s_max:
            evidence = f"about {each.replay_s:.1f} s for {each.records} records, {each.bytes} bytes"
            add_finding("P7", _I, number, each.start, each.end, evidence)
    return found


def check_delivery_complete_counts(states: pa.Table) -> list[Finding]:
    """Check that the delivery complete count of each state equals its completed records in flight (K13)."""
    batches = states.column("state_batches").combine_chunks()
    parents = column_to_ints(pc.list_parent_indices(batches))
    items = batches.flatten()
    first, last, state = (
        column_to_ints(items.field(name)) for name in ("first_offset", "last_offset", "delivery_state")
    )
    finished = (state == _ACKNOWLEDGED) | (state == _ARCHIVED)
    done = np.zeros(len(states), np.int64)
    np.add.at(done, parents[finished], (last - first + 1)[finished])
    stored_count = column_to_ints(states.column("delivery_complete_count"))
    readable = states.column("unreadable").is_null().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((stored_count != NONE) & (stored_count != done) & readable)
    return [
        Finding(
            *("K13", _W, row["state_partition"], row_identity(row)),
            *(row["last_log_offset"], row["last_log_offset"]),
            evidence=f"complete count {stored_count[at]}, and {done[at]} records in flight are finished",
        )
        for row, at in zip(states.take(pa.array(wrong)).to_pylist(), wrong.tolist(), strict=True)
    ]
