"""Generate random fast-path requests: most are those that brokers send, others are unusual or truncated."""

from itertools import count
from random import Random

from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID
from tests.property.wire_model import all_messages, encode_reference

WRITE_REQUEST, READ_REQUEST = (
    next(message for message in all_messages() if message.name == name)
    for name in ("WriteShareGroupStateRequest", "ReadShareGroupStateRequest")
)
UNKNOWN_TAG = (77, b"new")

GROUPS = ("group", "grüße:😀")
TOPIC_IDS = (TOPIC_ID, OTHER_TOPIC_ID)
# An unusual value is drawn with the probability 1 / SELDOM.
SELDOM = 12

Request = tuple[int, int, bytes]


class RequestGenerator:
    """Draws requests from a seed: mostly writes to an advancing window of offsets, seldom unusual ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.window = 0
        self.leader_epoch = 0

    def is_unusual(self) -> bool:
        return self.random.randrange(SELDOM) == 0

    def draw_request(self) -> Request:
        random = self.random
        group, topic_id, partition = random.choice(GROUPS), random.choice(TOPIC_IDS), random.randrange(4)
        if self.is_unusual():
            return make_initialize_request(
                group, topic_id, partition, random.randrange(3), random.randrange(-2, 40)
            )
        if random.randrange(SELDOM // 3) == 0:
            return self.draw_read(group)
        return self.draw_write()

    def draw_read(self, group: str) -> Request:
        random = self.random
        leader_epoch = random.randrange(3) if self.is_unusual() else self.leader_epoch
        self.leader_epoch = max(self.leader_epoch, leader_epoch)
        # The only state of the other topic cannot be decoded.
        topic_ids = random.choices(TOPIC_IDS, k=random.randrange(1, 3)) if self.is_unusual() else [TOPIC_ID]
        topics = []
        for topic_id in topic_ids:
            partitions = random.sample(range(3), random.randrange(1, 4))
            if self.is_unusual():
                partitions = random.choices([0, 1, 2, 3, -1], k=random.randrange(4))
            parts = [read_api.PartitionData(partition, leader_epoch) for partition in partitions]
            topics.append(read_api.ReadStateData(topic_id, parts))
        # Summary requests and Read requests have the same encoding.
        version = random.randrange(2) if random.randrange(2) else -1
        request = read_api.ReadShareGroupStateRequest(group, topics)
        sections = count()
        section = random.randrange(6) if self.is_unusual() else -1
        body = encode_reference(
            READ_REQUEST, request, 0, lambda: [UNKNOWN_TAG] if next(sections) == section else []
        )
        if self.is_unusual() and self.is_unusual():
            body = body[: random.randrange(len(body) + 1)] + random.randbytes(random.randrange(3))
        return (read_api.API_KEY, 0, body) if version < 0 else (summary_api.API_KEY, version, body)

    def draw_write(self) -> Request:
        random = self.random
        self.window += random.randrange(2)
        version = random.randrange(2)
        topic_ids = random.sample(TOPIC_IDS, random.randrange(1, 3))
        if self.is_unusual():
            topic_ids = random.choices(TOPIC_IDS, k=random.randrange(5))
        topics = [write_api.WriteStateData(topic_id, self.draw_partitions(version)) for topic_id in topic_ids]
        group = "" if self.is_unusual() and self.is_unusual() else random.choice(GROUPS)
        request = write_api.WriteShareGroupStateRequest(group, topics)
        section = random.randrange(12) if self.is_unusual() else -1
        sections = count()
        body = encode_reference(
            WRITE_REQUEST, request, version, lambda: [UNKNOWN_TAG] if next(sections) == section else []
        )
        if self.is_unusual() and self.is_unusual():
            body = body[: random.randrange(len(body) + 1)] + random.randbytes(random.randrange(3))
        return write_api.API_KEY, version, body

    def draw_partitions(self, version: int) -> list[write_api.PartitionData]:
        random = self.random
        partitions = random.sample(range(4), random.randrange(1, 5))
        if random.randrange(3) == 0:
            # If consumers commit each record, brokers repeat share-partitions in a request.
            partitions = random.choices(range(4), k=random.randrange(1, 9))
        if self.is_unusual():
            partitions = random.choices([0, 1, 2, 3, -1, 200, 9_000], k=random.randrange(4))
        return [
            write_api.PartitionData(
                partition,
                random.randrange(-1, 3) if self.is_unusual() else 2,
                random.randrange(-1, 3) if self.is_unusual() else 2,
                random.randrange(-2, 80) if self.is_unusual() else self.window,
                random.randrange(-1, 3) if version == 1 else -1,
                self.draw_batches(),
            )
            for partition in partitions
        ]

    def draw_batches(self) -> bytes:
        random = self.random
        written = []
        first = self.window + random.randrange(-3, 12)
        for _ in range(random.choice([0, 1, 1, 2, 5])):
            first += random.choice([0, 0, 0, 1, 3])
            last = first + random.choice([0, 0, 0, 2, 6])
            written.append(StateBatch(first, last, random.choice([0, 2, 2, 4]), random.choice([1, 1, 2])))
            first = last + 1
        if random.randrange(6) == 0:
            # Add overlapping batches, in random order.
            written += [
                StateBatch(first + random.randrange(-9, 3), first + 3, random.choice([0, 2, 4]), count)
                for count in range(random.randrange(1, 6))
            ]
            random.shuffle(written)
        if self.is_unusual() and self.is_unusual():
            written.append(StateBatch(first, first - 1, 2, 1))
        return pack(written)


def make_initialize_request(
    group: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
) -> Request:
    part = initialize_api.PartitionData(partition, state_epoch, start_offset)
    topic = initialize_api.InitializeStateData(topic_id, [part])
    request = initialize_api.InitializeShareGroupStateRequest(group, [topic])
    return initialize_api.API_KEY, 0, initialize_api.encode_request(request, 0)
