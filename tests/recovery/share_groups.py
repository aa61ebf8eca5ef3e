"""Generate a state log without faults: simulated share groups whose writes are applied by the shard core.

A leader delivers records in order, accepts, releases or rejects them, and advances its start offset. The
delivery complete count of its writes is correct. Some share-partitions are deleted, reinitialized or altered,
leaders change, and old snapshots are renewed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from struct import pack_into
from typing import Any

from crc32c import crc32c

from coordinator.log.claims import owner_epoch_headers
from coordinator.recovery.audit import AuditOptions, AuditResult, audit
from coordinator.recovery.engines import Engine, LocalEngine
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.shard import RequestContext, Shard, SnapshotPolicy
from coordinator.shard.state import next_snapshot
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import make_initialize, make_read, make_write
from tests.recovery.logs_on_disk import TOPIC

STATE_PARTITIONS = 3
UPDATES_MAX = 12
BEGIN_MS = 1_700_000_000_000
DELIVERIES_MAX = 5
ATTRIBUTES_AT, CRC_AT, COVERED_AT = 21, 17, 21


@dataclass(frozen=True)
class WrittenRecord:
    """A record of the log; `raw`, if set, replaces the encoded key and value of the record."""

    log_offset: int
    timestamp_ms: int
    record: StateRecord
    raw: tuple[bytes, bytes | None] | None = None
    batch: dict[str, int] = field(default_factory=dict)
    attributes: int = 0
    owner_epoch: int | None = None
    spoilt: bool = False

    def encode_as_batch(self) -> bytes:
        """Encode the record as a record batch."""
        headers = () if self.owner_epoch is None else owner_epoch_headers(self.owner_epoch)
        data = bytearray(
            encode_batch(
                self.log_offset,
                self.timestamp_ms,
                [self.raw or encode_record(self.record)],
                headers=headers,
                **self.batch,
            )
        )
        if self.attributes:
            pack_into(">h", data, ATTRIBUTES_AT, self.attributes)
            pack_into(">I", data, CRC_AT, crc32c(bytes(data[COVERED_AT:])))
        if self.spoilt:
            data[-1] ^= 1
        return bytes(data)


Log = dict[int, list[WrittenRecord]]


@dataclass
class SimulatedLeader:
    """The leader of a share-partition, and the outcomes of its delivered records."""

    key: SharePartitionKey
    leader_epoch: int = 0
    state_epoch: int = 1
    start_offset: int = 0
    next_offset: int = 0
    outcome: dict[int, tuple[int, int]] = field(default_factory=dict)

    def deliver_records(self, random: Random) -> Any:
        """Deliver some records, and return the write for the acknowledged records."""
        begin, self.next_offset = self.next_offset, self.next_offset + random.randrange(6)
        waiting = [
            offset
            for offset in range(self.start_offset, self.next_offset)
            if self._is_deliverable(offset, begin)
        ]
        settled = {}
        for offset in random.sample(waiting, min(len(waiting), random.randrange(1, 6))):
            count = self.outcome.get(offset, (0, 0))[1] + 1
            state = random.choice([2, 2, 2, 0, 4])
            settled[offset] = (4 if state == 0 and count == DELIVERIES_MAX else state, count)
        self.outcome |= settled
        while self.outcome.get(self.start_offset, (0, 0))[0] in (2, 4):
            del self.outcome[self.start_offset]
            self.start_offset += 1
        return make_write(
            *(
                (offset, offset, *settled[offset])
                for offset in sorted(settled)
                if offset >= self.start_offset
            ),
            start_offset=self.start_offset,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            complete_count=sum(state in (2, 4) for state, _ in self.outcome.values()),
        )

    def _is_deliverable(self, offset: int, begin: int) -> bool:
        return offset >= begin or self.outcome.get(offset, (0, 0))[0] == 0

    def initialize_request(self, state_epoch: int, start_offset: int) -> Any:
        """Reset this leader's state, and return the initialize request."""
        self.state_epoch, self.start_offset, self.next_offset = state_epoch, start_offset, start_offset
        self.outcome = {}
        return make_initialize(state_epoch, start_offset)


class SimulatedShareGroups:
    """Simulated share groups, which append to `log`."""

    def __init__(
        self,
        seed: int = 1,
        share_partitions: int = 9,
        *,
        owner_epoch: int | None = None,
        names: Sequence[str] = ("group-0", "group-1", "group-2"),
    ) -> None:
        self._random = Random(seed)
        self._owner_epoch = owner_epoch
        self._now_ms = BEGIN_MS
        policy = SnapshotPolicy(UPDATES_MAX, 1 << 20)
        self.shards = [Shard(number, policy) for number in range(STATE_PARTITIONS)]
        self.log: Log = {number: [] for number in range(STATE_PARTITIONS)}
        self.leaders = [
            SimulatedLeader(SharePartitionKey(names[number % len(names)], bytes([5 * number]) * 16, number))
            for number in range(share_partitions)
        ]
        for leader in self.leaders:
            self.apply_request(leader, "initialize_state", leader.initialize_request(1, 0))

    def apply_request(self, leader: SimulatedLeader, operation: str, part: Any) -> None:
        """Apply a request to the shard, and append the resulting records."""
        shard = self.shards[state_partition(leader.key, STATE_PARTITIONS)]
        self._now_ms += self._random.randrange(20)
        decide = getattr(shard, operation)
        result = decide(
            leader.key, [replace_partition(part, leader.key.partition)], RequestContext(self._now_ms)
        )
        assert result.answer.error_code == 0
        for record in result.records:
            self.append(shard, record)

    def append(self, shard: Shard, record: StateRecord) -> None:
        log = self.log[shard.state_partition]
        log.append(WrittenRecord(len(log), self._now_ms, record, owner_epoch=self._owner_epoch))
        shard.replay(record, len(log) - 1, self._now_ms)

    def run_steps(self, steps: int) -> "SimulatedShareGroups":
        """Run `steps` random steps."""
        for _ in range(steps):
            self.run_random_request(self._random.choice(self.leaders), self._random.random())
        return self

    def run_random_request(self, leader: SimulatedLeader, chance: float) -> None:
        if chance < 0.02:
            leader.leader_epoch += 1
            self.apply_request(leader, "read_state", make_read(leader.leader_epoch))
        elif chance < 0.03:
            self.apply_request(leader, "delete_state", _delete_request())
            leader.leader_epoch = 0
            self.apply_request(leader, "initialize_state", leader.initialize_request(leader.state_epoch, 5))
        elif chance < 0.04:
            self.apply_request(
                leader,
                "initialize_state",
                leader.initialize_request(leader.state_epoch + 1, leader.next_offset),
            )
        elif chance < 0.06:
            shard = self.shards[state_partition(leader.key, STATE_PARTITIONS)]
            self._now_ms += 50_000
            state = shard.state(leader.key)
            assert state is not None
            self.append(shard, StateRecord(leader.key, next_snapshot(state, now_ms=self._now_ms)))
        else:
            self.apply_request(leader, "write_state", leader.deliver_records(self._random))


def _delete_request() -> Any:
    from tests.builders import delete_api

    return delete_api.PartitionData(0)


def replace_partition(part: Any, partition: int) -> Any:
    """Return a request entry with another partition number."""
    part.partition = partition
    return part


def renumber_records(log: Log) -> Log:
    """Give the records consecutive log offsets after some were removed."""
    return {
        number: [replace(each, log_offset=offset) for offset, each in enumerate(records)]
        for number, records in log.items()
    }


def copy_to_other_partition(log: Log, leaders: Sequence[SimulatedLeader]) -> SharePartitionKey:
    """Copy the first state of a share-partition to a later state partition, and return its key."""
    key = next(
        each.key for each in leaders if state_partition(each.key, STATE_PARTITIONS) < STATE_PARTITIONS - 1
    )
    old = next(each for each in log[state_partition(key, STATE_PARTITIONS)] if each.record.key == key)
    elsewhere = log[STATE_PARTITIONS - 1]
    elsewhere.append(replace(old, log_offset=len(elsewhere)))
    return key


def write_log(folder: Path, log: Log, *, topic: str = TOPIC) -> Path:
    """Write a log as segment files."""
    for number, records in log.items():
        inner = folder / f"{topic}-{number}"
        inner.mkdir(parents=True, exist_ok=True)
        first = records[0].log_offset if records else 0
        (inner / f"{first:020}.log").write_bytes(b"".join(each.encode_as_batch() for each in records))
    return folder


def audit_segments(
    folder: Path, options: AuditOptions | None = None, engine: Engine | None = None
) -> AuditResult:
    """Audit segment files."""
    return audit(engine or LocalEngine(1), SegmentSource(str(folder)), options or AuditOptions())


def make_batch(first: int, last: int, state: int = 0, count: int = 1) -> StateBatch:
    """Return a state batch."""
    return StateBatch(first, last, state, count)
