"""Fold share-partitions record by record with the coordinator's own code, and return each intermediate state.

This is slower than `fold`, so it is used for few share-partitions: for the jobs `explain` and `diff`, and for
the sample of an audit (check X6).
"""

from collections.abc import Collection, Iterator

import numpy as np

from coordinator.recovery.claim_filter import valid_records
from coordinator.recovery.deduplication import record_key_identity
from coordinator.recovery.ranges import RangeScan
from coordinator.recovery.records import Records
from coordinator.recovery.schema import NONE
from coordinator.recovery.sources.base import ALL, Plan, Source
from coordinator.shard import ShareState
from coordinator.shard.history import HistoryStep
from protocol.state_records import SharePartitionKey, decode_record


class _PartitionFold:
    """Folds the wanted share-partitions of one state partition, which is read from start to end."""

    def __init__(self, state_partition: int, wanted: dict[bytes, SharePartitionKey]) -> None:
        self._scan = RangeScan(state_partition)
        self._state_partition = state_partition
        self._wanted = wanted
        self._owner_epoch: int | None = None
        self._states: dict[bytes, ShareState | None] = {}

    def take(self, records: Records) -> Iterator[HistoryStep]:
        scanned = self._scan.take(records)
        if self._owner_epoch is None and len(scanned.records):
            # The claim before the first record may have been pruned, so that record's owner epoch is used.
            summary = self._scan.summary()
            is_claim = bool(summary["first_is_claim"])
            self._owner_epoch = NONE if is_claim else int(summary["first_owner_epoch"])
        decoded = scanned.decoded
        numbers = [n for n, identity in enumerate(decoded.share_partitions) if identity in self._wanted]
        owner_epoch = NONE if self._owner_epoch is None else self._owner_epoch
        at_start = np.full(len(decoded), owner_epoch, np.int64)
        counts = valid_records(at_start, decoded.owner_epoch, scanned.claimed)
        for row in np.flatnonzero(counts & np.isin(decoded.key, numbers)).tolist():
            place = int(decoded.record[row])
            record = decode_record(scanned.records.keys.get(place), scanned.records.values.get(place))
            assert record is not None
            identity = decoded.share_partitions[int(decoded.key[row])]
            step = HistoryStep.apply(
                self._states.get(identity),
                record,
                state_partition=self._state_partition,
                log_offset=int(decoded.log_offset[row]),
                timestamp_ms=int(decoded.timestamp_ms[row]),
                owner_epoch=int(decoded.owner_epoch[row]),
            )
            self._states[identity] = step.after
            yield step


def read_history(
    source: Source,
    plan: Plan,
    keys: Collection[SharePartitionKey],
    state_partitions: Collection[int] | None = None,
) -> Iterator[HistoryStep]:
    """Yield the records of share-partitions; the records of each state partition are in log order.

    By default all state partitions are read.  Raises LogError or OSError if reading fails.
    """
    wanted = {record_key_identity(key): key for key in keys}
    found: dict[int, _PartitionFold] = {}
    for log_range in plan.ranges:
        if state_partitions is not None and log_range.state_partition not in (ALL, *state_partitions):
            continue
        for records in source.read(log_range):
            number = records.state_partition
            if state_partitions is None or number in state_partitions:
                if number not in found:
                    found[number] = _PartitionFold(number, wanted)
                yield from found[number].take(records)
