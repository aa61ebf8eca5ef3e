"""Decide which records of a log are accepted, independently of `coordinator.log.claims`.

A record is accepted if its owner epoch is the highest epoch that was claimed before it. If earlier claims
were pruned, the owner epoch of the first record counts as claimed. The only coordinator code that this module
uses is the replay of records into states.
"""

from collections.abc import Iterable
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.record_batch import LogRecord, decode_batches
from protocol.state_records import SharePartitionKey, decode_record
from tests.simulation.history import Violation
from tests.simulation.kafka.partition import SimPartition

_INT = Struct(">i")
_KEY_TYPE = Struct(">h")
_CLAIM, _RELEASE, _RENEWAL = 32_000, 32_001, 32_002
_NO_OWNER_EPOCH = -1


class RawRecord(NamedTuple):
    """A record with the name of the process that wrote it and its owner epoch."""

    record: LogRecord
    writer: str
    owner_epoch: int

    @property
    def is_claim(self) -> bool:
        return self.key_type == _CLAIM

    @property
    def is_ownership_record(self) -> bool:
        """Whether the record is a claim, a release or a renewal of a lease."""
        return self.key_type in (_CLAIM, _RELEASE, _RENEWAL)

    @property
    def key_type(self) -> int:
        key_type: int = _KEY_TYPE.unpack_from(self.record.key or b"")[0]
        return key_type


def read_records(batches: Iterable[tuple[str, bytes]], start: int = 0) -> list[RawRecord]:
    """Return the records of a log from its start offset on."""
    found = []
    for writer, data in batches:
        for batch in decode_batches(data):
            for record in batch.records:
                epochs = [value for name, value in record.headers if name == "owner-epoch" and value]
                if record.offset >= start:
                    found.append(
                        RawRecord(record, writer, _INT.unpack(epochs[0])[0] if epochs else _NO_OWNER_EPOCH)
                    )
    return found


def accepted_records(records: list[RawRecord]) -> list[RawRecord]:
    kept = []
    highest: int | None = None
    for written in records:
        if written.is_claim and (highest is None or written.owner_epoch > highest):
            highest = written.owner_epoch
            kept.append(written)
            continue
        if highest is None:
            highest = written.owner_epoch
        if written.owner_epoch == highest and not written.is_claim:
            kept.append(written)
    return kept


def replay_states(records: list[RawRecord], state_partition: int) -> dict[SharePartitionKey, ShareState]:
    """Return the states that result from accepted records."""
    shard = Shard(state_partition, SnapshotPolicy())
    for written in records:
        if not written.is_ownership_record:
            record = decode_record(written.record.key, written.record.value)
            assert record is not None
            shard.replay(record, written.record.offset, written.record.timestamp_ms)
    return dict(shard.items())


def read_states(partition: SimPartition, number: int) -> dict[SharePartitionKey, ShareState]:
    """Return the states in a partition. Raises Violation if pruning has changed the states.

    The remaining records and all records ever written must result in the same states. If an election lost
    records, the states are not compared, because the owner may have pruned records that the lost records
    replaced.
    """
    pruned = accepted_records(read_records([("", batch) for batch in partition.batches], partition.start))
    if partition.lost_records:
        return replay_states(pruned, number)
    everything = accepted_records(read_records(partition.archive))
    offsets = [written.record.offset for written in everything if written.record.offset >= partition.start]
    if [written.record.offset for written in pruned] != offsets:
        raise Violation(f"pruning changed which records of state partition {number} are accepted")
    check_single_owner(everything, number)
    states = replay_states(pruned, number)
    if states != replay_states(everything, number):
        raise Violation(f"pruning state partition {number} to {partition.start} changed its states")
    return states


def check_single_owner(records: list[RawRecord], number: int) -> None:
    """Raise Violation if owner epochs do not increase, or if a non-owner's record is accepted."""
    claims = [written for written in records if written.is_claim]
    for before, after in pairwise(claims):
        if after.owner_epoch <= before.owner_epoch:
            raise Violation(f"the owner epoch of state partition {number} decreased: {before} {after}")
    owner = None
    for written in records:
        if written.is_claim:
            owner = written.writer
        elif written.writer != owner:
            raise Violation(f"{owner} owns state partition {number}, but this record is accepted: {written}")
