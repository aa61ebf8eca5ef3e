"""Simulate the connections of coordinators to brokers, over a network that loses and delays requests.

A connection delivers requests and responses in order. If a request or response is lost, no later response
arrives on the connection. A request arrives even if the process that sent it is paused or dead.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from random import Random
from typing import TYPE_CHECKING, Any

from tests.kafka_in_memory.broker import Broker, RequestSender
from tests.kafka_in_memory.frames import api_key
from tests.kafka_in_memory.groups import GROUP_APIS
from tests.kafka_in_memory.share_groups import DELETE_GROUPS, ShareGroups
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.loop import PROCESS, Process
from tests.simulation.net import Network
from tests.simulation.pipes import NetFaults

if TYPE_CHECKING:
    from tests.kafka_in_memory.group import GroupInMemory
    from tests.simulation.kafka.membership import Membership

PROCESS_NAME = "one"
_PRODUCE = 0
# The newest API versions of brokers that support neither DescribeConfigs nor DeleteGroups.
_NO_CONFIGS_OR_GROUP_DELETIONS = {32: -1, DELETE_GROUPS: -1}
# The seconds after which a client detects that a response was lost because of `responses_lost`.
_RESPONSE_LOST_S = 0.1
# The minimum time between two events on a connection, which preserves their order.
_STEP_S = 1e-7


class BrokerNetwork:
    """The connections of all processes to the brokers."""

    def __init__(
        self,
        brokers: SimBrokers,
        request_timeout_s: float,
        membership: "Membership | GroupInMemory | None" = None,
        share_groups: ShareGroups | None = None,
        newest: Mapping[int, int] = _NO_CONFIGS_OR_GROUP_DELETIONS,
    ) -> None:
        """Create a broker for each node.

        `request_timeout_s` is the timeout of the processes. `newest` maps API keys to the newest version that
        brokers support.
        """
        self.brokers = brokers
        self.membership = membership
        self.request_timeout_s = request_timeout_s
        self.world = Context()
        self.served_by = {
            node: Broker(node, brokers, membership, newest, share_groups) for node in brokers.nodes
        }
        self._nodes = {address: node for node, address in brokers.addresses.items()}
        self._connections: dict[BrokerConnection, None] = {}
        self._dead: set[str] = set()
        # How many of the next produce requests, and of the next produce responses, are lost.
        self.requests_lost = self.responses_lost = 0
        brokers.on_kill = self._close_connections_to

    def join_network(self, network: Network) -> "BrokerNetwork":
        """Register the brokers in a network, under their addresses."""
        network.brokers |= dict.fromkeys(self._nodes, self)
        return self

    async def open(self, protocol: asyncio.Protocol, address: tuple[str, int]) -> asyncio.Transport:
        """Connect the current process to a broker.

        Raises ConnectionRefusedError if the process cannot reach the broker.
        """
        brokers, process, node = self.brokers, PROCESS.get(), self._nodes[address]
        name = PROCESS_NAME if process is None else process.name
        await asyncio.sleep(self.draw_travel_s() + self.draw_travel_s())
        if not self.reaches(name, node):
            # An unreachable broker either refuses the connection, or a firewall drops the packets, so that
            # the caller waits.
            if node not in brokers.down and brokers.rng.random() < 0.5:
                await asyncio.Event().wait()
            raise ConnectionRefusedError(f"broker {node} refuses connections")
        connection = BrokerConnection(self, name, node, protocol)
        self._connections[connection] = None
        return connection

    def reaches(self, name: str, node: int) -> bool:
        """Return whether a process runs and can reach a broker."""
        return name not in self._dead and self.brokers.reaches(name, node)

    def can_reach_group(self, name: str) -> bool:
        """Return whether the next group request or response of a process arrives."""
        membership = self.membership
        assert membership is not None
        return name not in membership.blocked and membership.rng.random() >= membership.faults.lost_rate

    def draw_travel_s(self) -> float:
        """Return a random time, in seconds, that a message needs in the network."""
        return self.brokers.rng.expovariate(1 / self.brokers.faults.travel_s)

    def disconnect(self, name: str) -> None:
        """Close the connections of a process that ends; it then reaches no broker any more."""
        self._dead.add(name)
        for connection in [each for each in self._connections if each.name == name]:
            connection.abort()

    def _close_connections_to(self, node: int) -> None:
        for connection in [each for each in self._connections if each.node == node]:
            connection.fail(self.brokers.rng.expovariate(20))

    def remove(self, connection: "BrokerConnection") -> None:
        self._connections.pop(connection, None)


def connect_to_brokers(
    brokers: SimBrokers, request_timeout_s: float, share_groups: ShareGroups | None = None
) -> BrokerNetwork:
    """Connect the current task to brokers over a network without faults; the task acts as PROCESS_NAME."""
    PROCESS.set(Process(PROCESS_NAME))
    brokers.loop.network = Network(brokers.loop, Random(1), NetFaults())
    network = BrokerNetwork(brokers, request_timeout_s, share_groups=share_groups)
    return network.join_network(brokers.loop.network)


class BrokerConnection(asyncio.Transport):
    """A connection of a process to a broker, as an asyncio transport."""

    def __init__(self, network: BrokerNetwork, name: str, node: int, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.name = name
        self.node = node
        self._network = network
        self._brokers = network.brokers
        self._protocol = protocol
        self._client = copy_context()
        self._life = network.brokers.lives[node]
        # Whether all later responses are lost.
        self._silent = False
        self._closed = False
        self._at_broker_s = self._at_client_s = 0.0
        self._arrived: deque[tuple[RequestSender, bytes]] = deque()

    # The methods of a transport.

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Send a request, which may be lost or late."""
        if self._closed or self._silent:
            return
        brokers, faults = self._brokers, self._brokers.faults
        chance = brokers.rng.random() - faults.request_lost_rate
        early = self._network.request_timeout_s * brokers.rng.choice((0.05, 1.0))
        delay_s, sender = 0.0, RequestSender(self.name)
        key = api_key(data)
        if (
            chance < 0
            or not self._is_up()
            or (key in GROUP_APIS and not self._network.can_reach_group(self.name))
        ):
            self.fail(early)
            return
        if chance < faults.late_rate:
            self.fail(early)
            delay_s = early + brokers.rng.uniform(0.0, faults.late_max_s)
        elif chance < faults.late_rate + faults.answer_lost_rate:
            self.fail(early)
        if key == _PRODUCE and self._network.requests_lost:
            self._network.requests_lost -= 1
            self.fail(0.0)
            return
        if key == _PRODUCE and self._network.responses_lost:
            self._network.responses_lost -= 1
            self.fail(_RESPONSE_LOST_S)
        if key == _PRODUCE:
            sender = RequestSender(self.name, [partition.forgotten for partition in brokers.partitions])
            appends_delayed_s = brokers.append_delay_left_s(self.name)
            delay_s = max(delay_s, appends_delayed_s)
            if appends_delayed_s > early:
                self.fail(early)
        self._at_broker_s = self._next_arrival_s(self._at_broker_s, delay_s)
        self._call_at(self._at_broker_s, self._network.world, self._receive_request, sender, data)

    def is_closing(self) -> bool:
        return self._closed

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that receives responses."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol that receives responses."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def close(self) -> None:
        """Close the connection. Close the connection; requests in flight still arrive."""
        if not self._closed:
            self._closed = True
            self._brokers.loop.call_soon(self._close_connection, context=self._client)

    def abort(self) -> None:
        """Close the connection at once."""
        self._close_connection()

    # Faults.

    def fail(self, reset_s: float) -> None:
        """Lose all responses from now on, and close the connection after `reset_s` seconds."""
        self._silent = True
        self._call_at(self._brokers.loop.time() + reset_s, self._client, self._close_connection)

    def _close_connection(self) -> None:
        protocol, self._protocol = self._protocol, asyncio.Protocol()
        self._closed = True
        self._network.remove(self)
        protocol.connection_lost(None)

    # Requests and responses.

    def _is_up(self) -> bool:
        return self._brokers.lives[self.node] == self._life and self._network.reaches(self.name, self.node)

    def _next_arrival_s(self, last_s: float, delay_s: float) -> float:
        now_s = self._brokers.loop.time()
        return max(last_s + _STEP_S, now_s + delay_s + self._network.draw_travel_s())

    def _call_at(self, when_s: float, context: Context, callback: Callable[..., None], *args: Any) -> None:
        self._brokers.loop.call_at(when_s, callback, *args, context=context)

    def _receive_request(self, sender: RequestSender, frame: bytes) -> None:
        """Called when a request arrives at the broker, which serves a connection's requests one by one."""
        brokers = self._brokers
        if brokers.lives[self.node] != self._life or not brokers.reaches(self.name, self.node):
            if not self._silent:
                self.fail(self._network.request_timeout_s * brokers.rng.choice((0.05, 1.0)))
            return
        self._arrived.append((sender, frame))
        if len(self._arrived) == 1:
            self._serve_next_request()

    def _serve_next_request(self) -> None:
        if self.node not in self._brokers.silent:
            self._network.served_by[self.node].serve(*self._arrived[0], self._send_response)

    def _send_response(self, response: bytes) -> None:
        _, request = self._arrived.popleft()
        if api_key(request) in GROUP_APIS and not self._network.can_reach_group(self.name):
            self.fail(self._network.request_timeout_s)
        if not (self._silent or self._closed):
            self._at_client_s = self._next_arrival_s(self._at_client_s, 0.0)
            self._call_at(self._at_client_s, self._client, self._deliver_response, response)
        if self._arrived:
            self._serve_next_request()

    def _deliver_response(self, response: bytes) -> None:
        if self._closed or self._silent:
            return
        if self._is_up():
            self._protocol.data_received(response)
        else:
            self.fail(self._network.request_timeout_s * self._brokers.rng.choice((0.05, 1.0)))
