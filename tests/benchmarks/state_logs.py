"""Generate a realistic state log as a broker's segment files, with share-partitions of unequal activity.

The activity of share groups is simulated. The records have this project's format, and the batches and files
have Kafka's format.
"""

from pathlib import Path
from random import Random

from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record

TOPIC = "__share_group_state"
UPDATES_PER_SNAPSHOT = 100
BATCH_RECORDS = 50
SEGMENT_BYTES = 100 << 20
BEGAN_MS = 1_790_000_000_000


class SharePartitionActivity:
    """One share-partition and the simulated progress of its share group."""

    def __init__(self, key: SharePartitionKey, random: Random) -> None:
        self.key = key
        self._random = random
        self._start = 0
        self._snapshot_epoch = -1
        self._updates = 0
        self._in_flight: list[StateBatch] = []

    def next_record(self, now_ms: int) -> tuple[bytes, bytes | None]:
        """Return the next write: it acknowledges or releases offsets, and advances the start offset."""
        random = self._random
        first = self._in_flight[-1].last_offset + 1 if self._in_flight else self._start
        length = random.randrange(1, 40)
        written = [StateBatch(first, first + length - 1, 2, 1)]
        if random.random() < 0.5:
            written.append(StateBatch(first + length, first + length + random.randrange(3), 0, 1))
        self._in_flight += written
        if len(self._in_flight) > 3:
            self._start = self._in_flight[-3].first_offset
            self._in_flight = self._in_flight[-3:]
        complete = sum(
            batch.last_offset - batch.first_offset + 1
            for batch in self._in_flight
            if batch.delivery_state == 2
        )
        if self._snapshot_epoch < 0 or self._updates == UPDATES_PER_SNAPSHOT:
            self._snapshot_epoch += 1
            self._updates = 0
            snapshot = ShareSnapshotValue(
                self._snapshot_epoch, 1, 3, self._start, now_ms, now_ms, pack(self._in_flight), complete
            )
            return encode_record(StateRecord(self.key, snapshot))
        self._updates += 1
        update = ShareUpdateValue(self._snapshot_epoch, 3, self._start, pack(written), complete)
        return encode_record(StateRecord(self.key, update))


def write_log(
    folder: Path,
    *,
    records: int,
    share_partitions: int = 100_000,
    state_partitions: int = 50,
    hot_fraction: float = 0.0,
    seed: int = 1,
) -> int:
    """Write `TOPIC-N` directories below a directory; return their size in bytes.

    The share-partition of rank N gets records in proportion to 1/N. One share-partition additionally gets the
    fraction `hot_fraction` of all records.
    """
    random = Random(seed)
    consumed = [
        SharePartitionActivity(
            SharePartitionKey(f"orders-{n % 997:03d}", random.randbytes(16), n % 64), random
        )
        for n in range(share_partitions)
    ]
    by_partition: dict[int, list[SharePartitionActivity]] = {}
    for each in consumed:
        by_partition.setdefault(state_partition(each.key, state_partitions), []).append(each)
    hot_partition = state_partition(consumed[0].key, state_partitions)
    written = 0
    for partition, members in sorted(by_partition.items()):
        hot_records = int(records * hot_fraction) if partition == hot_partition else 0
        records_of_others = int(records * (1 - hot_fraction) * len(members) / share_partitions)
        written += _write_partition(
            folder / f"{TOPIC}-{partition}",
            members,
            records_of_others,
            consumed[0] if hot_records else None,
            hot_records,
            random,
        )
    return written


def _write_partition(
    folder: Path,
    members: list[SharePartitionActivity],
    records_of_others: int,
    hot_member: SharePartitionActivity | None,
    hot_records: int,
    random: Random,
) -> int:
    folder.mkdir(parents=True)
    weights = [1 / (rank + 10) for rank in range(len(members))]
    writers = random.choices(members, weights, k=records_of_others)
    if hot_member is not None:
        writers += [hot_member] * hot_records
        random.shuffle(writers)
    written = offset = 0
    segment: list[bytes] = []
    segment_base = segment_bytes = 0
    for begin in range(0, len(writers), BATCH_RECORDS):
        now_ms = BEGAN_MS + offset
        records = [each.next_record(now_ms) for each in writers[begin : begin + BATCH_RECORDS]]
        segment.append(encode_batch(offset, now_ms, records, leader_epoch=1))
        offset += len(records)
        segment_bytes += len(segment[-1])
        if segment_bytes >= SEGMENT_BYTES or begin + BATCH_RECORDS >= len(writers):
            (folder / f"{segment_base:020}.log").write_bytes(b"".join(segment))
            written += segment_bytes
            segment, segment_base, segment_bytes = [], offset, 0
    return written
