"""Three coordinators that share the shards of one topic, in one event loop on virtual time.

Log, runtime, service, forwarder, listener and connections are production code. The Kafka cluster is in memory
and the network is simulated. The test sets the assignment.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from coordinator.client.rpcs import Rpc
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.cluster.ownership import Assignment, Replica
from coordinator.config import HostPort
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.log.kafka.ownership import CLOCK_DRIFT_MAX
from coordinator.metrics import Metrics
from coordinator.process.clock import SystemClock
from coordinator.serve.forwarding import Forwarder, ForwardingLimits
from coordinator.serve.server import Api, CoordinatorDirectory, Listener, ServerLimits
from coordinator.serve.service import Service
from protocol.messages import APIS
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.builders import TOPIC_ID, execute
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.connections import PROCESS_NAME, connect_to_brokers
from tests.simulation.loop import SimLoop
from tests.simulation.net import Network
from tests.unit.forwarding.faulty_proxy import FaultyProxy
from tests.unit.log.kafka_logs import loop_time
from tests.unit.runtime.runtime_without_jobs import make_runtime

STATE_PARTITIONS = 6
GROUP = "group"
NOBODY = -1
BOOTSTRAP_SERVERS = "broker-1:9092"
REQUEST_TIMEOUT_S = 1.0
# The wait in seconds after a claim if the previous owner wrote no release.
LEASE_WAIT_S = KafkaLogLimits().lease_s * (1 + CLOCK_DRIFT_MAX)


class FakeClientConnection:
    """The connection of a broker; a test sets `disconnected` to close it."""

    disconnected = False


def partition_of_shard(shard: int, which: int = 0) -> int:
    """Return a partition of TOPIC_ID whose state is in this shard; `which` selects one of several."""
    found = (
        partition
        for partition in range(100_000)
        if state_partition(SharePartitionKey(GROUP, TOPIC_ID, partition), STATE_PARTITIONS) == shard
    )
    for _ in range(which):
        next(found)
    return next(found)


class CoordinatorNode:
    """A coordinator. Brokers and other coordinators connect to the coordinator through a faulty proxy."""

    def __init__(self, place: int, network: Network, limits: ForwardingLimits) -> None:
        self.metrics = Metrics()
        self.replica = Replica(f"instance-{place}", f"coordinator-{place}:9095")
        self.relay = FaultyProxy(network, (f"coordinator-{place}", 9095), (f"behind-{place}", 9095))
        self.lease_is_fresh = True
        self._limits = limits
        self._listens = HostPort(f"behind-{place}", 9095)
        self._log = KafkaLog(
            Brokers(BOOTSTRAP_SERVERS, "state", request_timeout_s=REQUEST_TIMEOUT_S),
            TopicConfig("state", STATE_PARTITIONS),
            owner=self.replica.instance,
            clock=SystemClock(),
            monotonic=loop_time,
        )

    async def start(self) -> None:
        """Start without owned shards."""
        runtime = self.runtime = make_runtime(
            self._log, STATE_PARTITIONS, metrics=self.metrics, may_claim=lambda: self.lease_is_fresh
        )
        self.forwarder = Forwarder(
            runtime, instance=self.replica.instance, metrics=self.metrics, limits=self._limits
        )
        self.forwarder.active = True
        self.service = Service(runtime, self.forwarder)
        directory = CoordinatorDirectory(
            self._listens, node_id_first=1_000_000, node_ids=4, state_partitions=STATE_PARTITIONS
        )
        self._listener = Listener(Api(self.service, directory, self.metrics), self.metrics, ServerLimits())
        await runtime.start(elect_all=False)
        await self._listener.start(self._listens)

    async def stop(self) -> None:
        """Stop the listener, the forwarder and the runtime in the order of the application."""
        await self._listener.stop()
        await self.forwarder.close()
        await self.runtime.stop()

    def apply_assignment(self, assignment: Assignment | None) -> None:
        """Apply an assignment: resign lost shards, update the forwarder, elect gained shards."""
        mine = [
            shard
            for shard in range(STATE_PARTITIONS)
            if assignment is not None and assignment.owner(shard) == self.replica
        ]
        for shard in set(self.runtime.owned_shards()) - set(mine):
            self.runtime.resign(shard)
        self.forwarder.set_assignment(assignment)
        for shard in mine:
            self.runtime.elect(shard)

    def send_request(
        self, rpc: Rpc, *parts: Any, origin: FakeClientConnection | None = None, forwarded: bool = False
    ) -> Any:
        """Send a request for TOPIC_ID; return a future of its partition results."""
        module: Any = APIS[rpc.api_key].module
        request = getattr(module, f"{rpc.name}Request")
        (topic,) = (
            getattr(module, name)
            for name in vars(module)
            if name.endswith("StateData") or name.endswith("StateSummaryData")
        )
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        execute(
            self.service,
            rpc,
            request(GROUP, [topic(TOPIC_ID, list(parts))]),
            origin,
            lambda response: done.set_result(response.results[0].partitions),
            forwarded=forwarded,
        )
        return done

    async def get_error_codes(self, rpc: Rpc, *parts: Any, **more: Any) -> list[int]:
        """Send a request; return the error codes of its results."""
        return [result.error_code for result in await self.send_request(rpc, *parts, **more)]

    def count_forwarded(self, api: str, code: str = "NONE") -> int:
        """Return the number of forwarded requests of an API with the given error code."""
        labels = {"api": api, "code": code}
        return int(self.metrics.registry.get_sample_value("share_coordinator_forwarded_total", labels) or 0)


class ForwardingGroup:
    """Three coordinators that know the assignment. Initially coordinator n owns the shards n and n + 3."""

    def __init__(self, brokers: SimBrokers, network: Network, limits: ForwardingLimits) -> None:
        self.brokers = brokers
        self.network = network
        self.nodes = [CoordinatorNode(place, network, limits) for place in range(3)]
        self._generation = 0

    def block_brokers(self, *nodes: int) -> None:
        """Disconnect the coordinators from these brokers, and from no others."""
        self.brokers.blocked = {(PROCESS_NAME, node) for node in nodes}

    def make_assignment(self, *owners: int) -> Assignment:
        """Return the next assignment; `owners` has the index of the owning coordinator for each shard."""
        self._generation += 1
        return Assignment(self._generation, tuple(one.replica for one in self.nodes), owners)

    def publish_assignment(self, *owners: int) -> None:
        assignment = self.make_assignment(*owners)
        for one in self.nodes:
            one.apply_assignment(assignment)

    async def wait_until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait in virtual time until the condition holds."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def wait_until_loaded(self) -> None:
        await self.wait_until(
            lambda: (
                not any(view.status == "LOADING" for one in self.nodes for view in one.runtime.shard_views())
            )
        )


@asynccontextmanager
async def run_forwarding_group(limits: ForwardingLimits | None = None) -> AsyncIterator[ForwardingGroup]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    brokers = SimBrokers(loop, Random(1), BrokerFaults(), nodes=3, partitions=STATE_PARTITIONS)
    connect_to_brokers(brokers, REQUEST_TIMEOUT_S)
    group = ForwardingGroup(brokers, loop.network, limits or ForwardingLimits())
    for one in group.nodes:
        await one.start()
    group.publish_assignment(0, 1, 2, 0, 1, 2)
    await group.wait_until_loaded()
    try:
        yield group
    finally:
        for one in group.nodes:
            await one.stop()
    assert loop.failures == []
