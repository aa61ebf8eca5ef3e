"""A consumer group in memory with the brokers of its cluster, and with faults that a test sets."""

from collections.abc import Mapping
from itertools import count
from random import Random

from coordinator.cluster.kafka.group_client import KafkaGroupClient
from protocol.errors import ErrorCode
from tests.kafka_in_memory.faulty_group_client import FaultyGroupClient
from tests.kafka_in_memory.group_coordinator import GroupCoordinator
from tests.kafka_in_memory.kafka import RunningLoop, SteadyNetwork, running_network
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.membership import MembershipFaults
from tests.simulation.kafka.partition import SimPartition

TOPIC = "state"
REQUEST_TIMEOUT_S = 3.0
_NAMES = {3: "metadata", 10: "find", 11: "join", 12: "heartbeat", 13: "leave", 14: "sync", 15: "describe"}


class GroupInMemory(GroupCoordinator):
    """A consumer group, and the brokers that know its group coordinator."""

    def __init__(
        self, *, session_s: float, rebalance_s: float, first_delay_s: float = 0.0, nodes: int = 3
    ) -> None:
        super().__init__(session_s=session_s, rebalance_s=rebalance_s, first_delay_s=first_delay_s)
        self.brokers = SimBrokers(
            RunningLoop(),  # type: ignore[arg-type]
            Random(1),
            BrokerFaults(travel_s=0.001),
            nodes=nodes,
            partitions=0,
        )
        # By API name, the error codes of the next requests; and the API names of all requests.
        self.errors: dict[str, list[int]] = {}
        self.requests: list[str] = []
        # Network faults between the group members and the group coordinator.
        self.blocked: set[str] = set()
        self.rng, self.faults = Random(1), MembershipFaults()
        self._network = SteadyNetwork(self.brokers, REQUEST_TIMEOUT_S, self)
        for broker in self._network.served_by.values():
            broker.on_request = lambda request: self.requests.append(_NAMES.get(request.api_key, "other"))
        self._clients = count()

    def new_client(self) -> FaultyGroupClient:
        self._network.join_network(running_network())
        servers = ",".join(f"{host}:{port}" for host, port in list(self.brokers.addresses.values())[:3])
        client = KafkaGroupClient(
            servers,
            "group",
            TOPIC,
            session_timeout_s=self.session_s,
            rebalance_timeout_s=self.rebalance_s,
            request_timeout_s=REQUEST_TIMEOUT_S,
        )
        return FaultyGroupClient(client, f"member-{next(self._clients)}", self.brokers.blocked)

    @property
    def partition_leaders(self) -> dict[int, int]:
        """The leaders of the state partitions, as all brokers report them."""
        return dict(enumerate(self.brokers.leaders()))

    @partition_leaders.setter
    def partition_leaders(self, leaders: Mapping[int, int]) -> None:
        partitions = self.brokers.partitions
        for number in range(len(partitions), len(leaders)):
            partitions.append(SimPartition(self.brokers.loop, leaders[number]))
        for number, leader in leaders.items():
            self.brokers.set_leader(number, leader)

    # The methods below are called by the brokers.

    def coordinator_at(self, node: int) -> GroupCoordinator | None:
        """Return the group if the broker `node` coordinates it, else None."""
        return self if node == self.node else None

    def coordinator_known_to(self, node: int) -> int:
        return self.node

    def next_error(self, api_key: int) -> int:
        """Return the error with which the next request of an API fails, or NONE."""
        errors = self.errors.get(_NAMES[api_key])
        return errors.pop(0) if errors else ErrorCode.NONE
