"""Read the state of a state topic independently of the coordinators.

The module reads records with aiokafka's consumer, and implements the rule of docs/state-topic.md for valid
records a second time. The module shares only `Shard.replay`, which other tests compare with Kafka's
coordinator.
"""

import struct
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.state_records import SharePartitionKey, decode_record

CLAIM, RELEASE, RENEWAL = 32_000, 32_001, 32_002

# (state partition, log offset)
Place = tuple[int, int]


@dataclass
class TopicState:
    """The content of a topic: states, the number of records, and the positions of some records."""

    states: dict[SharePartitionKey, ShareState] = field(default_factory=dict)
    records: int = 0
    claims: set[Place] = field(default_factory=set)
    releases: set[Place] = field(default_factory=set)
    of_deposed_owners: set[Place] = field(default_factory=set)


async def read_topic(bootstrap: str, topic: str, partitions: int) -> TopicState:
    """Read a topic from its start to its current end offsets."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        records: dict[int, list[ConsumerRecord]] = {partition: [] for partition in range(partitions)}
        left = set(places)
        while left:
            for place, came in (await consumer.getmany(timeout_ms=100)).items():
                records[place.partition] += came
            left = {place for place in left if await consumer.position(place) < ends[place]}
    finally:
        await consumer.stop()
    found = TopicState()
    for partition, read in records.items():
        _apply_records(partition, read, found)
    return found


def _apply_records(partition: int, records: list[ConsumerRecord], found: TopicState) -> None:
    shard = Shard(partition, SnapshotPolicy())
    owner_epoch: int | None = None
    for record in records:
        (record_type,) = struct.unpack_from(">h", record.key)
        own = next((struct.unpack(">i", value)[0] for name, value in record.headers), None)
        assert own is not None, f"a record without an owner epoch: {record}"
        found.records += 1
        place = (partition, record.offset)
        if record_type == CLAIM:
            found.claims.add(place)
        elif record_type == RELEASE:
            found.releases.add(place)
        if owner_epoch is None:
            # Earlier records were pruned.
            owner_epoch = own
        elif record_type == CLAIM and own > owner_epoch:
            owner_epoch = own
        elif own != owner_epoch or record_type == CLAIM:
            found.of_deposed_owners.add(place)
            continue
        if record_type not in (CLAIM, RELEASE, RENEWAL):
            decoded = decode_record(record.key, record.value)
            assert decoded is not None
            shard.replay(decoded, record.offset, record.timestamp)
    for key in shard.share_partitions():
        state = shard.state(key)
        assert state is not None
        found.states[key] = state
