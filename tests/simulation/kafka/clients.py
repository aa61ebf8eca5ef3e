"""Clients of several coordinators: each request goes to one of them, which may be the wrong one."""

from collections.abc import Callable, Sequence
from random import Random

from coordinator.config import HostPort
from protocol.messages import find_coordinator as find_api
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.simulation.clients import Clients, Peer, lost_in_time
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
        # How many requests go astray.
        self.astray_rate = 0.0
        self._addresses = addresses
        self._owner = owner
        self._rng = rng

    def address(self, node: int | None) -> HostPort:
        """Return where a node is; some address if it does not matter."""
        return self._rng.choice(self._addresses) if node is None else self._addresses[node]

    def node_of(self, key: SharePartitionKey) -> int:
        """Return where the coordinator of a share-partition is, or may be."""
        owner = self._owner(state_partition(key, self._state_partitions))
        if owner is None or self._rng.random() < self.astray_rate:
            return self._rng.randrange(len(self._addresses))
        return owner

    def home_of(self, key: SharePartitionKey) -> int | None:
        """Return where the coordinator of a share-partition should be."""
        return self._owner(state_partition(key, self._state_partitions))

    async def look_up(self, peer: Peer, key: SharePartitionKey) -> None:
        """Ask who coordinates a share-partition: one of those there are, or nobody knows. Raises Lost."""
        request = find_api.FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key)])
        async with lost_in_time(peer):
            response = await peer.send(find_api, 6, request, response_header_version=1)
        (found,) = response.coordinators
        if found.key != str(key) or not (
            found.error_code or HostPort(found.host, found.port) in self._addresses
        ):
            self.report(Violation(f"who coordinates {key} was answered {response}"))
