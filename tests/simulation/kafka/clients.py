"""Send requests to several coordinators; the one that receives a request may not own the shard."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from random import Random

from coordinator.config import HostPort
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.simulation.clients import Clients, CoordinatorConnection
from tests.simulation.history import Violation

# A function that returns the index of the coordinator that owns a state partition in the current assignment,
# or None.
Owner = Callable[[int], int | None]


@dataclass
class MultiCoordinatorClients(Clients):
    """Clients that know the addresses of all coordinators. A node id is the index of a coordinator."""

    _: KW_ONLY
    owner: Owner
    rng: Random
    # The fraction of requests that are sent to a random coordinator.
    misrouted_rate: float
    # Indexes of coordinators that clients cannot connect to, because the network is partitioned.
    unreachable_places: set[int]
    # By client and state partition: the index of the coordinator that the client uses until a request fails.
    _known: dict[tuple[str, int], int] = field(default_factory=dict)

    def address(self, node: int | None) -> HostPort:
        assert node is not None
        return self.addresses[node]

    async def connect(self, name: str, node: int | None = None) -> CoordinatorConnection:
        """Connect to a node, or to a random node if `node` is None. Raises ConnectionLost."""
        if node is None:
            owners = [owner for owner in map(self.owner, range(self.state_partitions)) if owner is not None]
            prefers_owner = self.rng.random() < 0.8 and owners
            node = self.rng.choice(owners) if prefers_owner else self.rng.randrange(len(self.addresses))
        peer = await super().connect(name, node)
        peer.node = node
        return peer

    def assumed_node(self, key: SharePartitionKey, client_name: str = "") -> int:
        """Return the index of the coordinator to which a client sends requests for a share-partition."""
        shard = state_partition(key, self.state_partitions)
        if self._known.get((client_name, shard)) in self.unreachable_places:
            del self._known[client_name, shard]
        if (client_name, shard) not in self._known:
            owner = self.owner(shard)
            if owner is None or owner in self.unreachable_places or self.rng.random() < self.misrouted_rate:
                reachable = [
                    place for place in range(len(self.addresses)) if place not in self.unreachable_places
                ]
                owner = self.rng.choice(reachable or [0])
            self._known[client_name, shard] = owner
        return self._known[client_name, shard]

    def on_unknown_outcome(self, key: SharePartitionKey, client_name: str) -> None:
        """With a probability of 70 %, let the client choose the coordinator of the share-partition again."""
        if self.rng.random() < 0.7:
            self._known.pop((client_name, state_partition(key, self.state_partitions)), None)

    def reachable_keys(
        self, peer: CoordinatorConnection, keys: Sequence[SharePartitionKey]
    ) -> Sequence[SharePartitionKey]:
        """Return the keys whose shards the connection's node owns; if none, and sometimes, all keys."""
        if self.rng.random() < self.misrouted_rate + 0.05:
            return keys
        return [key for key in keys if self.coordinating_node(key) == peer.node] or keys

    def coordinating_node(self, key: SharePartitionKey) -> int | None:
        """Return the number of the process that should own the shard of a share-partition, or None."""
        return self.owner(state_partition(key, self.state_partitions))

    async def check_find_coordinator(self, peer: CoordinatorConnection, key: SharePartitionKey) -> None:
        """Send FindCoordinator and check the response. Raises ConnectionLost."""
        await self.find_owner(peer, key)

    def owner_address(self, key: SharePartitionKey) -> HostPort | None:
        """Return the address of the assigned owner of a share-partition's shard, or None."""
        owner = self.coordinating_node(key)
        return None if owner is None else self.address(owner)

    async def find_owner(self, peer: CoordinatorConnection, key: SharePartitionKey) -> HostPort | None:
        """Send FindCoordinator; return the address in the response, or None. Raises ConnectionLost."""
        response = await self.find_coordinator(peer, key)
        (found,) = response.coordinators
        if found.key != str(key) or not (
            found.error_code or HostPort(found.host, found.port) in self.addresses
        ):
            self.report(Violation(f"FindCoordinator for {key} returned {response}"))
        return None if found.error_code else HostPort(found.host, found.port)
