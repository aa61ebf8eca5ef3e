"""Send random requests for any share-partition, repeated reads, and invalid bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from struct import Struct
from typing import Any

from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey
from tests.simulation.clients import ConnectionLost, CoordinatorConnection
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE, Operation
from tests.simulation.rpc_parts import DeletePart, InitializePart, ReadPart, SummaryPart, WritePart
from tests.simulation.workloads import HOSTILE_COUNT_MIN, SharedClientState


def invalid_keys(key: SharePartitionKey) -> tuple[SharePartitionKey, SharePartitionKey]:
    """Return a key with a topic that never existed, and a key with a negative partition."""
    return key._replace(topic_id=b"nobody's topic!!"), key._replace(partition=-1)


class ConnectedClient:
    """A client that has one connection, and opens a new connection when the old one is lost."""

    def __init__(self, name: str, cluster: SharedClientState, rng: Random, pause_s: float) -> None:
        self.name = name
        self._cluster = cluster
        self._rng = rng
        self._pause_s = pause_s

    async def run(self) -> None:
        """Send requests until cancelled, with random pauses of `pause_s` on average."""
        cluster = self._cluster
        peer: CoordinatorConnection | None = None
        while True:
            await cluster.pause_randomly(self._rng, self._pause_s)
            await cluster.wait_for_permission(self.name)
            try:
                if peer is None or peer.is_lost:
                    peer = await cluster.clients.connect(self.name)
                await self._send_requests(peer)
            except ConnectionLost:
                pass
            finally:
                cluster.calls_in_progress -= 1

    async def _send_requests(self, peer: CoordinatorConnection) -> None:
        raise NotImplementedError


class HostileClient(ConnectedClient):
    """A client that sends random requests for any share-partition, several at a time."""

    def __init__(self, name: str, cluster: SharedClientState, rng: Random) -> None:
        super().__init__(name, cluster, rng, cluster.load.hostile_pause_s)
        self._keys = [*cluster.keys, *invalid_keys(rng.choice(cluster.keys))]

    async def _send_requests(self, peer: CoordinatorConnection) -> None:
        cluster, rng = self._cluster, self._rng
        if rng.random() < cluster.load.slow_reader_rate:
            peer.end.read_slowly(rng.expovariate(0.5))
        requests = [
            self._send_random_request(peer)
            for _ in range(rng.randrange(1, cluster.load.hostile_pipeline_max + 1))
        ]
        ops = [op for ops in await asyncio.gather(*requests) for op in ops]
        for op in ops:
            cluster.count_final_response(self.name, op)
        if any(op.reached_wrong_coordinator for op in ops) or rng.random() < 0.02:
            peer.close(reset=rng.random() < 0.5)

    def _send_random_request(self, peer: CoordinatorConnection) -> Awaitable[list[Operation]]:
        rng = self._rng
        kind = rng.choice((READ, READ, WRITE, WRITE, WRITE, SUMMARY, INITIALIZE, DELETE))
        if kind in (INITIALIZE, DELETE) and rng.random() < 0.7:
            kind = SUMMARY
        keys = self._cluster.clients.reachable_keys(peer, self._keys)
        group_id = rng.choice(keys).group_id
        keys = [key for key in keys if key.group_id == group_id]
        chosen_keys = [rng.choice(keys) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
        make = _MAKE_PART[kind]
        requested = [(key, make(self, key)) for key in chosen_keys]
        return peer.send_state_request(
            kind, requested, version=0 if kind == WRITE and self._fits_version_0(requested) else None
        )

    def _fits_version_0(self, requested: list[tuple[SharePartitionKey, Any]]) -> bool:
        """Return whether all entries can be sent in version 0, which has no delivery complete count."""
        return all(part.delivery_complete_count == -1 for _, part in requested)

    def _random_epoch(self, current: int) -> int:
        return self._rng.choice((current, current, current, current - 1, current + 1, 0, -1))

    def _make_read_part(self, key: SharePartitionKey) -> ReadPart:
        return ReadPart(key.partition, self._random_epoch(self._cluster.leader_epochs.get(key, 0)))

    def _make_write_part(self, key: SharePartitionKey) -> WritePart:
        rng, cluster = self._rng, self._cluster
        cluster.hostile_count = max(cluster.hostile_count + 1, HOSTILE_COUNT_MIN)
        batches = []
        for _ in range(rng.randrange(4)):
            first = rng.randrange(60)
            last = first + rng.randrange(12) - (5 if rng.random() < 0.03 else 0)
            batches.append(StateBatch(first, last, rng.choice((0, 2, 4)), cluster.hostile_count % 32_000))
        return WritePart(
            key.partition,
            self._random_epoch(cluster.state_epochs.get(key.group_id, 0)),
            self._random_epoch(cluster.leader_epochs.get(key, 0)),
            rng.choice((-1, 0, rng.randrange(50))),
            rng.choice((-1, 0, rng.randrange(50))),
            pack(batches),
        )

    def _make_initialize_part(self, key: SharePartitionKey) -> InitializePart:
        epoch = self._random_epoch(self._cluster.state_epochs.get(key.group_id, 0))
        return InitializePart(key.partition, epoch, self._rng.choice((-1, 0, self._rng.randrange(50))))

    def _make_delete_part(self, key: SharePartitionKey) -> DeletePart:
        return DeletePart(key.partition)

    def _make_summary_part(self, key: SharePartitionKey) -> SummaryPart:
        return SummaryPart(key.partition, self._random_epoch(0))


_MAKE_PART: dict[str, Callable[[HostileClient, SharePartitionKey], Any]] = {
    READ: HostileClient._make_read_part,
    WRITE: HostileClient._make_write_part,
    INITIALIZE: HostileClient._make_initialize_part,
    DELETE: HostileClient._make_delete_part,
    SUMMARY: HostileClient._make_summary_part,
}

_SIZE = Struct(">i")
# An ApiVersions request of version 0 with a null client id, after its size.
_API_VERSIONS_REQUEST = bytes.fromhex("0000000a 0012 0000 00000007 ffff")
_FOR_EVER_S = 1e9


class PollingReader(ConnectedClient):
    """A client that repeatedly reads random share-partitions with the newest leader epoch."""

    async def _send_requests(self, peer: CoordinatorConnection) -> None:
        cluster, rng = self._cluster, self._rng
        key = rng.choice(cluster.clients.reachable_keys(peer, cluster.keys))
        if rng.random() < cluster.load.summary_rate:
            (op,) = await peer.send_state_request(SUMMARY, [(key, SummaryPart(key.partition, 0))])
        else:
            (op,) = await peer.send_state_request(
                READ, [(key, ReadPart(key.partition, cluster.leader_epochs[key]))]
            )
        cluster.count_final_response(self.name, op)
        cluster.clients.history.idle_ops += 1
        if op.reached_wrong_coordinator:
            peer.close()


class GarbageSender:
    """A client that sends invalid or incomplete requests, each on a new connection."""

    def __init__(self, cluster: SharedClientState, rng: Random, every_s: float) -> None:
        self._cluster = cluster
        self._rng = rng
        self._every_s = every_s

    async def run(self) -> None:
        """Send invalid bytes until cancelled."""
        cluster, rng = self._cluster, self._rng
        while True:
            await cluster.pause_randomly(rng, self._every_s)
            if not cluster.sends_garbage:
                continue
            try:
                peer = await cluster.clients.connect("garbage sender")
            except ConnectionLost:
                continue
            peer.end.on_data = lambda data: None
            if rng.random() < 0.2:
                peer.end.read_slowly(_FOR_EVER_S)
                peer.end.send(rng.randrange(1, 60) * _API_VERSIONS_REQUEST)
                continue
            peer.end.send(self._draw_invalid_bytes())
            if rng.random() < 0.7:
                await cluster.pause_randomly(rng, 1.0)
                peer.close(reset=rng.random() < 0.5)

    def _draw_invalid_bytes(self) -> bytes:
        rng = self._rng
        match rng.randrange(4):
            case 0:
                return rng.randbytes(rng.randrange(1, 60))
            case 1:
                return _SIZE.pack(rng.choice((-1, -(2**31), 2**31 - 1, 0, 3)))
            case 2:
                # The first bytes of a frame that the client never completes.
                return _SIZE.pack(rng.randrange(100, 2_000)) + rng.randbytes(50)
            case _:
                # A request with an unsupported API or version, or with an invalid body.
                api_key = rng.choice((83, 84, 85, 86, 87, 10, 18, 0, 1_000))
                frame = api_key.to_bytes(2, "big") + rng.randbytes(rng.randrange(6, 60))
                return _SIZE.pack(len(frame)) + frame
