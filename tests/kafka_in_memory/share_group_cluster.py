"""A cluster in memory with share groups, for the tests of one package, with faults that a test sets."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import NamedTuple

from coordinator.cluster.kafka.share_groups import ShareGroups as ShareGroupClient
from protocol.errors import ErrorCode
from tests.kafka_in_memory.frames import Request
from tests.kafka_in_memory.kafka import RunningLoop, SteadyNetwork, register_for_close, running_network
from tests.kafka_in_memory.share_groups import ShareGroups
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers

REQUEST_TIMEOUT_S = 3.0
_METADATA = 3
_NAMES = {10: "find", 16: "list", 42: "delete groups", 77: "describe", 90: "offsets", 92: "delete"}
_hosts = count()


class ReceivedRequest(NamedTuple):
    """A request that a broker received.

    `api` is "find" (the coordinator of groups), "list", "describe", "offsets", "delete", "delete groups",
    "resolve" (topic ids), or "other".
    """

    api: str
    node: int
    message: object


class ShareGroupCluster(ShareGroups):
    """A cluster with share groups, and with brokers that coordinate the share groups."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(self._delete_state_in_replicas)
        self.brokers = GroupBrokers(nodes)
        # Functions that are called when a share group's offsets of a topic are deleted, with group id and
        # topic name.
        self.state_deleted: list[Callable[[str, str], Awaitable[None]]] = []
        self.requests: list[ReceivedRequest] = []
        # By API: a function that is called once, before the next request of that API is served.
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        # APIs whose requests are not answered; brokers that answer only metadata refreshes.
        self.unanswered: set[str] = set()
        self.unanswered_nodes: set[int] = set()
        self._network = SteadyNetwork(self.brokers, REQUEST_TIMEOUT_S, share_groups=self, newest={})
        for node, broker in self._network.served_by.items():
            broker.on_request = lambda request, node=node: self._receive(request, node)  # type: ignore[misc]

    def new_client(self) -> ShareGroupClient:
        """Return the product's client."""
        self._network.join_network(running_network())
        servers = ",".join(f"{host}:{port}" for host, port in self.brokers.addresses.values())
        return register_for_close(ShareGroupClient(servers, request_timeout_s=REQUEST_TIMEOUT_S))

    @property
    def request_counts(self) -> Counter[str]:
        """The number of received requests by API."""
        return Counter(request.api for request in self.requests)

    def stop_brokers(self) -> None:
        """Refuse connections."""
        self.brokers.set_down(*self.brokers.nodes)

    def start_brokers(self) -> None:
        """Accept connections again."""
        self.brokers.set_down()

    def _receive(self, request: Request, node: int) -> asyncio.Future[None] | None:
        api = _NAMES.get(request.api_key, "other")
        if request.api_key == _METADATA and request.message.topics:
            api = "resolve"
        self.requests.append(ReceivedRequest(api, node, request.message))
        if api in self.unanswered or (node in self.unanswered_nodes and api != "other"):
            return asyncio.get_running_loop().create_future()
        hook = self.before.pop(api, None)
        return None if hook is None else asyncio.ensure_future(hook())

    async def _delete_state_in_replicas(self, group: str, topic: str) -> int:
        for delete_state in self.state_deleted:
            await delete_state(group, topic)
        return ErrorCode.NONE


class GroupBrokers(SimBrokers):
    """Brokers without topics, each of which coordinates some of the share groups."""

    def __init__(self, nodes: int) -> None:
        super().__init__(
            RunningLoop(),  # type: ignore[arg-type]
            Random(1),
            BrokerFaults(travel_s=0.001),
            nodes=nodes,
            partitions=0,
            host=f"group-broker-{next(_hosts)}",
        )
        # The node id of the coordinator by share group, if a test sets it. NO_NODE means that no broker knows
        # it.
        self.coordinators: dict[str, int] = {}

    def find_coordinator(self, node: int, key: str) -> tuple[int, int]:
        """Return an error code, and the node id of a share group's coordinator."""
        chosen = self.coordinators.get(key)
        if chosen is None:
            return super().find_coordinator(node, key)
        return (ErrorCode.COORDINATOR_NOT_AVAILABLE if chosen < 0 else ErrorCode.NONE), chosen
