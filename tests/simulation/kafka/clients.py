"""Clients of several coordinators: each request goes to one of them, which may be the wrong one."""

from collections.abc import Callable, Sequence
from random import Random

from coordinator.config import HostPort
from protocol.messages import find_coordinator as find_api
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.simulation.clients import Clients, Peer, close_on_timeout
from tests.simulation.history import History, Violation
from tests.simulation.net import Network

# Who owns a state partition as the membership sees it: a place, or nobody.
Owner = Callable[[int], int | None]


class ManyClients(Clients):
    """Clients that know where coordinators live; a node is the place of one."""

    def __init__(
        self,
        network: Network,
        addresses: Sequence[HostPort],
        history: History,
        report: Callable[[Violation], None],
        *,
        state_partitions: int,
        owner: Owner,
        rng: Random,
    ) -> None:
        super().__init__(
            network,
            addresses[0],
            history,
            report,
            state_partitions=state_partitions,
            node_id_first=0,
            node_ids=len(addresses),
            answers_in_time=False,
        )
        self.bootstrap = ",".join(map(str, addresses))
        # How many requests go astray.
        self.astray_rate = 0.0
        # Places that brokers do not go to, as they cannot be reached from where those are.
        self.apart: set[int] = set()
        self._addresses = addresses
        self._owner = owner
        self._rng = rng
        # Where somebody goes with a state partition until that fails.
        self._known: dict[tuple[str, int], int] = {}

    def address(self, node: int | None) -> HostPort:
        """Return where a node is."""
        assert node is not None
        return self._addresses[node]

    async def connect(self, name: str, node: int | None = None) -> Peer:
        """Open a connection to a node, or to some. Raises ConnectionLost when that fails."""
        if node is None:
            owners = [owner for owner in map(self._owner, range(self._state_partitions)) if owner is not None]
            some = self._rng.random() < 0.8 and owners
            node = self._rng.choice(owners) if some else self._rng.randrange(len(self._addresses))
        peer = await super().connect(name, node)
        peer.node = node
        return peer

    def node_of(self, key: SharePartitionKey, who: str = "") -> int:
        """Return where somebody believes the coordinator of a share-partition to be."""
        shard = state_partition(key, self._state_partitions)
        if self._known.get((who, shard)) in self.apart:
            del self._known[who, shard]
        if (who, shard) not in self._known:
            owner = self._owner(shard)
            if owner is None or owner in self.apart or self._rng.random() < self.astray_rate:
                near = [place for place in range(len(self._addresses)) if place not in self.apart]
                owner = self._rng.choice(near or [0])
            self._known[who, shard] = owner
        return self._known[who, shard]

    def missed(self, key: SharePartitionKey, who: str) -> None:
        """Let somebody look for the coordinator anew, now or later."""
        if self._rng.random() < 0.7:
            self._known.pop((who, state_partition(key, self._state_partitions)), None)

    def reachable_keys(self, peer: Peer, keys: Sequence[SharePartitionKey]) -> Sequence[SharePartitionKey]:
        """Return mostly those that the node of a connection coordinates."""
        if self._rng.random() < self.astray_rate + 0.05:
            return keys
        return [key for key in keys if self.home_of(key) == peer.node] or keys

    def home_of(self, key: SharePartitionKey) -> int | None:
        """Return where the coordinator of a share-partition should be."""
        return self._owner(state_partition(key, self._state_partitions))

    async def look_up(self, peer: Peer, key: SharePartitionKey) -> None:
        """Send FindCoordinator and check that the owner is a known node or unknown. Raises ConnectionLost."""
        request = find_api.FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key)])
        async with close_on_timeout(peer):
            response = await peer.send(find_api, 6, request, response_header_version=1)
        (found,) = response.coordinators
        if found.key != str(key) or not (
            found.error_code or HostPort(found.host, found.port) in self._addresses
        ):
            self.report(Violation(f"who coordinates {key} was answered {response}"))
