"""Brokers that answer ApiVersions and Metadata on loopback sockets. Each broker has its own metadata."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiokafka.protocol.metadata import MetadataResponse_v5

from protocol.errors import ErrorCode
from protocol.messages import api_versions, metadata, request_header
from protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from protocol.messages.metadata import (
    DescribedBroker,
    DescribedPartition,
    DescribedTopic,
    MetadataResponse,
)

TOPIC = "state"
TOPIC_ID, NEW_TOPIC_ID = b"\1" * 16, b"\2" * 16
METADATA, API_VERSIONS = metadata.API_KEY, api_versions.API_KEY
_OLD_VERSION = 5
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
    port: int = 0
    ports: dict[int, int] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until the connection ends."""
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if answer := self._answer(frame):
                    writer.write(len(answer).to_bytes(4) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, frame: bytes) -> bytes:
        api_key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
        correlation_id = frame[4:8]
        if api_key == API_VERSIONS:
            keys = [ApiVersion(API_VERSIONS, 0, 0), ApiVersion(METADATA, 0, self.newest_version)]
            return correlation_id + api_versions.encode_response(ApiVersionsResponse(0, keys), version)
        assert api_key == METADATA
        if self.silent:
            return b""
        self.answered += 1
        if version < metadata.MIN_VERSION:
            assert version == _OLD_VERSION
            return correlation_id + self._old_response()
        header, offset = request_header.decode(frame, 0, 2)
        assert header.correlation_id.to_bytes(4) == correlation_id
        asked = metadata.decode_request(frame, offset, version).topics
        assert asked is not None
        response = self._response(asked[0].name if asked else None)
        return correlation_id + b"\0" + metadata.encode_response(response, version)

    def _response(self, name: str | None) -> MetadataResponse:
        partitions = [
            DescribedPartition(0, number, leader, leader_epoch, [1, 2, 3], [leader], [])
            for number, (leader, leader_epoch) in enumerate(self.leaders)
        ]
        code = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topics = [DescribedTopic(code, name, self.topic_id, False, partitions, 0)] if name else []
        brokers = [DescribedBroker(node, _HOST, port, None) for node, port in self.ports.items()]
        return MetadataResponse(0, brokers, "cluster", 1, topics)

    def _old_response(self) -> bytes:
        brokers = [(node, _HOST, port, None) for node, port in self.ports.items()]
        partitions = [
            (0, number, leader, [1, 2, 3], [leader], []) for number, (leader, _) in enumerate(self.leaders)
        ]
        old = MetadataResponse_v5(0, brokers, "cluster", 1, [(0, TOPIC, False, partitions)])
        encoded: bytes = old.encode()
        return encoded


@asynccontextmanager
async def start_brokers(*brokers: FakeBroker) -> AsyncIterator[str]:
    """Start the brokers. Yield their addresses as bootstrap servers, in the given order."""
    async with AsyncExitStack() as stack:
        for broker in brokers:
            server = await asyncio.start_server(broker.serve, _HOST, 0)
            stack.callback(server.close)
            broker.port = server.sockets[0].getsockname()[1]
        for broker in brokers:
            broker.ports = {other.node: other.port for other in brokers}
        yield ",".join(f"{_HOST}:{broker.port}" for broker in brokers)
