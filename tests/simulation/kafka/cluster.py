"""Simulate a process's `Cluster` client, over a network that loses and delays requests.

Requests in flight are independent of their process: they arrive even if the process is paused or dead.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from coordinator.cluster.kafka import cluster as kafka
from coordinator.cluster.kafka.cluster import (
    FetchResult,
    ListedOffset,
    NoResponse,
    ProduceResult,
    ProducerId,
    TopicDescription,
)
from coordinator.cluster.kafka.metadata import NO_TOPIC_ID, ClusterMetadata, TopicMetadata
from coordinator.cluster.kafka.metadata_cache import MetadataCache
from coordinator.errors import LogUnavailable
from protocol.errors import ErrorCode
from tests.simulation.kafka.brokers import SimBrokers

_Answer = TypeVar("_Answer")

# A function that serves a request at the broker and returns (seconds of delay, response).
_Serve = Callable[[], tuple[float, _Answer]]

_REFRESH_PAUSE_S = 0.1
_TOPIC = "state"
_TOPIC_ID = bytes(range(16))


class SimCluster:
    """A `Cluster` of one process. `name` identifies the process to the brokers."""

    def __init__(self, name: str, brokers: SimBrokers, *, request_timeout_s: float, world: Context) -> None:
        self.name = name
        self.dead = False
        self._brokers = brokers
        self._loop = brokers.loop
        self._rng = brokers.rng
        self._timeout_s = request_timeout_s
        self._world = world
        self._leaders: list[int] = []
        self._unreachable_reason: str | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_asked = False
        # The product's metadata, if the metadata of brokers is delayed.
        self._cache: MetadataCache | None = None
        if brokers.faults.metadata_delay_s is not None:
            self._cache = MetadataCache(_TOPIC, self._ask_metadata, self._ask_bootstrap_servers)

    # Connection and metadata.

    async def connect(self) -> None:
        """Fetch the metadata of the cluster."""
        await self._refresh()

    async def close(self) -> None:
        """Send no more requests."""
        self.dead = True
        if self._cache is not None:
            await self._cache.close()

    def leader(self, partition: int) -> int:
        """Return the leader of a partition in the metadata of this process."""
        if self._cache is not None:
            return self._cache.leader(partition)
        return self._leaders[partition] if self._leaders else kafka.NO_NODE

    def refresh_soon(self) -> None:
        """Refresh the metadata in the background."""
        self._refresh_asked = True
        if not self.dead and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = self._loop.create_task(self._keep_asking())

    async def _keep_asking(self) -> None:
        while self._refresh_asked and not self.dead:
            self._refresh_asked = False
            try:
                await self._refresh()
            except LogUnavailable:
                self._refresh_asked = True
            await asyncio.sleep(_REFRESH_PAUSE_S)

    async def _refresh(self) -> None:
        if self._cache is not None:
            await self._cache.refresh(ask_others=True)
            return
        for node in self._rng.sample(self._brokers.nodes, len(self._brokers.nodes)):
            try:
                self._leaders = await self._ask(node, lambda node=node: (0.0, self._metadata(node)))
            except NoResponse:
                continue
            self._unreachable_reason = None
            return
        self._unreachable_reason = "No broker can be reached."
        raise LogUnavailable(self._unreachable_reason)

    async def _ask_metadata(self, node: int) -> ClusterMetadata:
        return await self._ask(node, lambda: (0.0, self._cluster_metadata(node)))

    async def _ask_bootstrap_servers(self) -> ClusterMetadata:
        # Each process has the bootstrap servers in another order.
        for node in Random(self.name).sample(self._brokers.nodes, len(self._brokers.nodes)):
            with suppress(NoResponse):
                return await self._ask_metadata(node)
        raise LogUnavailable("No broker can be reached.")

    def _cluster_metadata(self, node: int) -> ClusterMetadata:
        addresses = {node: (f"broker-{node}", 9092) for node in self._brokers.nodes}
        topic = TopicMetadata(ErrorCode.NONE, _TOPIC, _TOPIC_ID, self._brokers.metadata(node))
        return ClusterMetadata("cluster", addresses, [topic])

    def _metadata(self, node: int) -> list[int]:
        views = self._brokers.views
        return list(views[node][0]) if node in views else self._brokers.leaders()

    def unreachable_reason(self) -> str | None:
        """Return the reason while no broker can be reached, or None."""
        return self._unreachable_reason if self._cache is None else self._cache.unreachable_reason

    def pin_topic_id(self) -> bytes:
        """Return the topic id for an unknown topic id."""
        return NO_TOPIC_ID

    def recreated_reason(self) -> str | None:
        """Return None, because the topic is never deleted."""
        return None

    # Transport.

    def _ask(self, node: int, serve: _Serve[_Answer], *, held_s: float = 0.0) -> "asyncio.Future[_Answer]":
        """Send a request that may be lost or late. The future receives the response, or NoResponse."""
        brokers, rng, faults = self._brokers, self._rng, self._brokers.faults
        answered: asyncio.Future[_Answer] = self._loop.create_future()
        there_s, back_s = rng.expovariate(1 / faults.travel_s), rng.expovariate(1 / faults.travel_s)
        if self.dead or not brokers.reaches(self.name, node):
            self._later(there_s, self._fail, answered, node, False)
            return answered
        chance = rng.random()
        life, gives_up_s = brokers.lives[node], self._timeout_s * rng.choice((0.05, 1.0))

        def arrive(answers: bool) -> None:
            if brokers.lives[node] != life or not brokers.reaches(self.name, node):
                self._later(gives_up_s, self._fail, answered, node, True)
                return
            wait_s, answer = serve()
            if answers and wait_s < self._timeout_s:
                self._later(wait_s + back_s, come_back, answer)
            else:
                self._later(gives_up_s, self._fail, answered, node, True)

        def come_back(answer: _Answer) -> None:
            if brokers.lives[node] != life or not brokers.reaches(self.name, node):
                self._later(gives_up_s, self._fail, answered, node, True)
            elif not answered.done():
                answered.set_result(answer)

        if held_s:
            self._later(gives_up_s, self._fail, answered, node, True)
            self._later(held_s + there_s, arrive, held_s < gives_up_s)
        elif chance < faults.request_lost_rate:
            self._later(gives_up_s, self._fail, answered, node, True)
        elif chance < faults.request_lost_rate + faults.late_rate:
            self._later(gives_up_s, self._fail, answered, node, True)
            self._later(gives_up_s + rng.uniform(0.0, faults.late_max_s), arrive, False)
        elif chance < faults.request_lost_rate + faults.late_rate + faults.answer_lost_rate:
            self._later(there_s, arrive, False)
        else:
            self._later(there_s, arrive, True)
        return answered

    def _later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        self._loop.call_later(delay_s, callback, *args, context=self._world)

    @staticmethod
    def _fail(answered: "asyncio.Future[Any]", node: int, sent: bool) -> None:
        if not answered.done():
            answered.set_exception(NoResponse(f"broker {node} does not answer", sent=sent))

    # Requests.

    async def produce(
        self, node: int, channel: str, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> Mapping[int, ProduceResult]:
        """Append batches. A batch is dropped if the partition lost its producer state in the meantime."""
        brokers = self._brokers
        forgotten = {number: brokers.partitions[number].forgotten for number, _ in batches}

        def serve() -> tuple[float, Mapping[int, ProduceResult]]:
            alive = [
                (number, batch)
                for number, batch in batches
                if brokers.partitions[number].forgotten == forgotten[number]
            ]
            return brokers.produce(self.name, node, alive, timeout_ms / 1_000)

        return await self._ask(node, serve, held_s=brokers.held_for_s(self.name))

    async def list_ends(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        """Return end offsets."""
        return await self._ask(node, lambda: (0.0, self._brokers.list_ends(node, partitions)))

    async def list_starts(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        """Return start offsets."""
        return await self._ask(node, lambda: (0.0, self._brokers.list_starts(node, partitions)))

    async def fetch(
        self, node: int, channel: str, positions: Mapping[int, int], bytes_max: int
    ) -> Mapping[int, FetchResult]:
        """Return batches."""
        asked = dict(positions)
        return await self._ask(node, lambda: (0.0, self._brokers.fetch(node, asked)))

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Delete records."""
        asked = dict(offsets)
        return await self._ask(node, lambda: (0.0, self._brokers.delete_records(node, asked)))

    async def producer_id(self, transactional_id: str | None) -> ProducerId:
        """Get a producer id from a random broker."""
        node = self._rng.choice(self._brokers.nodes)
        return await self._ask(node, lambda: (0.0, self._brokers.producer_id(node, transactional_id)))

    # Administration. The only fault is that no broker can be reached.

    async def brokers(self) -> int:
        """Return the number of brokers."""
        return len(self._brokers.nodes)

    async def describe_topic(self) -> TopicDescription | None:
        """Describe the topic. The topic always exists."""
        await self._refresh()
        return TopicDescription(len(self._brokers.partitions), len(self._brokers.nodes), True)

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        """Return False, because the topic already exists."""
        return False

    async def topic_configs(self) -> Mapping[str, str] | None:
        """Return None, because the configs are hidden."""
        return None
