"""A Kafka cluster in memory for the tests of one package, on virtual time, with faults that a test sets.

Clients connect through the product's connection code. The brokers are the simulator's brokers, without random
faults.
"""

import asyncio
from collections.abc import Mapping
from itertools import count
from random import Random
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from coordinator.cluster.kafka.broker_results import FetchResult
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.cluster.kafka.metadata import PartitionMetadata, TopicMetadata
from protocol.errors import ErrorCode
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.connections import BrokerNetwork
from tests.simulation.kafka.partition import SimPartition
from tests.simulation.loop import SimLoop
from tests.simulation.net import Network
from tests.simulation.pipes import NetFaults

REQUEST_TIMEOUT_S = 1.0
_DELETE_RECORDS = 21
_RECORDED = {0: "produce", 1: "fetch", 2: "list", _DELETE_RECORDS: "delete", 22: "producer id"}
_hosts = count()
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Any]] = WeakKeyDictionary()
_Client = TypeVar("_Client")


def register_for_close(client: _Client) -> _Client:
    """Register a client, so that `close_clients` closes it; return the client."""
    _clients.setdefault(asyncio.get_running_loop(), []).append(client)
    return client


async def close_clients() -> None:
    """Close all clients of the running loop, because aiokafka warns of open connections."""
    for client in _clients.pop(asyncio.get_running_loop(), ()):
        await client.close()


class RealTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in real time that connects to clusters in memory; other addresses use sockets."""

    network: Network | None = None

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        if self.network is None or (host, port) not in self.network.brokers:
            return await super().create_connection(protocol_factory, host, port, **options)
        protocol = protocol_factory()
        transport = await self.network.open(protocol, host, port)
        protocol.connection_made(transport)
        return transport, protocol


def running_network() -> Network:
    """Return the network of the running event loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop | RealTimeLoop)
    if loop.network is None:
        loop.network = Network(loop, Random(1), NetFaults())  # type: ignore[arg-type]
    network: Network = loop.network
    return network


class RunningLoop:
    """The event loop that is running at each call, because a cluster may exist longer than one event loop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)


class KafkaInMemory:
    """A cluster. Each topic has its own simulated brokers, with the same node ids and the same faults."""

    def __init__(self, nodes: int = 3) -> None:
        self.nodes = nodes
        self.transactional = True
        self.deletes_records = True
        # If set, brokers serve DeleteRecords when this future is done.
        self.deletions_delayed: asyncio.Future[None] | None = None
        # Whether brokers check the topic ids in requests.
        self.checks_topic_ids = True
        # Error codes for the next produced batches, which are not appended.
        self.produce_errors: list[int] = []
        # Error codes of fetches by partition, until the test removes them.
        self.fetch_errors: dict[int, int] = {}
        # API name and node id of the requests about records and producers.
        self.requests: list[tuple[str, int]] = []
        self._brokers: dict[str, TopicBrokers] = {}
        self._networks: dict[str, BrokerNetwork] = {}

    def new_client(self, topic: str) -> Brokers:
        """Return a new client for a topic, of the class that the product uses."""
        brokers = self.brokers(topic)
        if topic not in self._networks:
            newest = {} if self.deletes_records else {_DELETE_RECORDS: -1}
            network = self._networks[topic] = SteadyNetwork(brokers, REQUEST_TIMEOUT_S, newest=newest)
            for node, broker in network.served_by.items():
                broker.on_request = lambda request, node=node: self._record(request.api_key, node)  # type: ignore[misc]
        self._networks[topic].join_network(running_network())
        servers = ",".join(f"{host}:{port}" for host, port in brokers.addresses.values())
        return register_for_close(Brokers(servers, topic, request_timeout_s=REQUEST_TIMEOUT_S))

    def _record(self, api_key: int, node: int) -> asyncio.Future[None] | None:
        if api_key in _RECORDED:
            self.requests.append((_RECORDED[api_key], node))
        return self.deletions_delayed if api_key == _DELETE_RECORDS else None

    # Topics.

    def brokers(self, topic: str) -> "TopicBrokers":
        """Return the simulated brokers of a topic, which may not exist yet."""
        if topic not in self._brokers:
            self._brokers[topic] = TopicBrokers(self, topic)
        return self._brokers[topic]

    @property
    def topics(self) -> dict[str, list[SimPartition]]:
        return {topic: each.partitions for topic, each in self._brokers.items() if each.partitions}

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, possibly again with another topic id."""
        brokers = self.brokers(topic)
        brokers.delete_topic()
        brokers.create_topic(partitions, configs or {})

    def recreate_topic(self, topic: str) -> None:
        """Delete a topic and create it again."""
        self.create_topic(topic, len(self.topics[topic]), self.brokers(topic).configs)

    # Faults.

    def set_down(self, *nodes: int) -> None:
        """Stop these brokers, and start all others. The leaders stay."""
        for brokers in self._brokers.values():
            brokers.set_down(*nodes)

    def set_disconnected(self, name: str, disconnected: bool) -> None:
        """Disconnect a process from all brokers, or connect it again."""
        for brokers in self._brokers.values():
            pairs = {(name, node) for node in brokers.nodes}
            brokers.blocked = brokers.blocked | pairs if disconnected else brokers.blocked - pairs

    def set_leader(self, partition: int, node: int) -> None:
        """Elect a broker, which has all records, as the leader of a partition."""
        for brokers in self._brokers.values():
            brokers.set_leader(partition, node)

    def lose_produce(self, *, requests: int = 0, responses: int = 0) -> None:
        """Lose the next produce requests, or the responses to the next produce requests."""
        for network in self._networks.values():
            network.requests_lost, network.responses_lost = requests, responses

    def cut_off_from_controller(self, node: int) -> None:
        """Freeze the metadata that a broker reports at its current value."""
        for brokers in self._brokers.values():
            brokers.frozen[node] = brokers.topic_metadata(node)


class SteadyNetwork(BrokerNetwork):
    """Connections on which each message takes the same time."""

    def draw_travel_s(self) -> float:
        """Return the time, in seconds, that a message needs."""
        return self.brokers.faults.travel_s


class TopicBrokers(SimBrokers):
    """The simulated brokers of one topic."""

    def __init__(self, kafka: KafkaInMemory, topic: str) -> None:
        super().__init__(
            RunningLoop(),  # type: ignore[arg-type]
            Random(1),
            BrokerFaults(travel_s=0.001, transactional=kafka.transactional),
            nodes=kafka.nodes,
            partitions=0,
            host=f"host-{next(_hosts)}",
        )
        self.topic, self.topic_id = topic, bytes(16)
        # The metadata that each broker without a connection to the controller continues to report.
        self.frozen: dict[int, TopicMetadata] = {}
        self._kafka = kafka

    @property
    def checks_topic_ids(self) -> bool:  # type: ignore[override]
        return self._kafka.checks_topic_ids

    def delete_topic(self) -> None:
        """Delete the topic, if it exists."""
        self.partitions = []

    def create_topic(self, partitions: int, configs: Mapping[str, str]) -> int:
        """Create the topic; return an error code."""
        if self.partitions:
            return ErrorCode.TOPIC_ALREADY_EXISTS
        self.topic_id = (int.from_bytes(self.topic_id) + 1).to_bytes(16)
        leaders = [1 + number % len(self.nodes) for number in range(partitions)]
        self.partitions = [SimPartition(self.loop, leader) for leader in leaders]
        self.configs = dict(configs)
        return ErrorCode.NONE

    def topic_metadata(self, node: int) -> TopicMetadata:
        """Return the metadata of the topic that a broker reports."""
        if node in self.frozen:
            return self.frozen[node]
        if not self.partitions:
            return TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self.topic)
        partitions = [
            PartitionMetadata(number, each.leader, each.leader_epoch)
            for number, each in enumerate(self.partitions)
        ]
        return TopicMetadata(ErrorCode.NONE, self.topic, self.topic_id, partitions)

    def _draw_produce_error(self) -> int:
        errors = self._kafka.produce_errors
        return errors.pop(0) if errors else ErrorCode.NONE

    def _fetch(self, node: int, number: int, leader_epoch: int, position: int) -> FetchResult:
        if number in self._kafka.fetch_errors:
            return FetchResult(self._kafka.fetch_errors[number], -1, b"")
        return super()._fetch(node, number, leader_epoch, position)
