"""Brokers on loopback sockets, each of which has its own metadata of one topic."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from coordinator.cluster.kafka.metadata import PartitionMetadata, TopicMetadata
from protocol.errors import ErrorCode
from protocol.messages import metadata
from tests.kafka_in_memory.broker import Broker, Sender
from tests.kafka_in_memory.frames import api_key
from tests.kafka_in_memory.loopback import serve

TOPIC = "state"
TOPIC_ID, NEW_TOPIC_ID = b"\1" * 16, b"\2" * 16
_HOST = "127.0.0.1"


@dataclass
class FakeBroker:
    """A broker with its own metadata. `answered` counts the metadata requests that it answered.

    `leaders` has the leader and leader epoch of each partition. A `silent` broker never answers.
    """

    node: int
    leaders: list[tuple[int, int]]
    topic_id: bytes = TOPIC_ID
    newest_version: int = metadata.MAX_VERSION
    silent: bool = False
    answered: int = 0
    topic: str = TOPIC
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)

    def topic_metadata(self, node: int) -> TopicMetadata:
        """Return the topic as this broker reports it."""
        partitions = [PartitionMetadata(number, *leader) for number, leader in enumerate(self.leaders)]
        code = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return TopicMetadata(code, self.topic, self.topic_id, partitions)

    def make_broker(self) -> "_CountingBroker":
        """Return the broker that serves requests."""
        cluster: Any = self
        broker = _CountingBroker(self.node, cluster, newest={metadata.API_KEY: self.newest_version})
        broker.fake = self
        return broker


class _CountingBroker(Broker):
    fake: FakeBroker

    def serve(self, sender: Sender, frame: bytes, respond: Any) -> None:
        """Serve a request, unless the broker is silent."""
        if api_key(frame) == metadata.API_KEY:
            if self.fake.silent:
                return
            self.fake.answered += 1
        super().serve(sender, frame, respond)


@asynccontextmanager
async def start_brokers(*brokers: FakeBroker) -> AsyncIterator[str]:
    """Start the brokers. Yield their addresses as bootstrap servers, in the given order."""
    addresses: dict[int, tuple[str, int]] = {}
    async with AsyncExitStack() as stack:
        for broker in brokers:
            broker.addresses = addresses
            server = await asyncio.start_server(partial(serve, broker.make_broker()), _HOST, 0)
            stack.callback(server.close)
            addresses[broker.node] = server.sockets[0].getsockname()
        yield ",".join(f"{host}:{port}" for host, port in addresses.values())
