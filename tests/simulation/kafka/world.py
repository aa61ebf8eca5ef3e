"""The simulated environment of several coordinators: the brokers, the group and the processes."""

from random import Random

from coordinator.cluster.topics import TopicDirectory
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey
from tests.kafka_in_memory.share_groups import DeleteState, ShareGroupsWithoutCreation
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.kafka.connections import BrokerNetwork
from tests.simulation.kafka.log_truncation import LogTruncations
from tests.simulation.kafka.membership import Membership
from tests.simulation.kafka.plan import KafkaPlan
from tests.simulation.kafka.process import KafkaProcess
from tests.simulation.kafka.raw_log import read_states
from tests.simulation.kafka.traced_log import LeaseTraces
from tests.simulation.loop import SimLoop
from tests.simulation.world import World

# All shards must be owned and loaded within this number of seconds after the end of faults. The additional
# minute includes the session timeout of a dead member and the pause before a retry.
OWNED_BY_S = World.ready_by_s + 60.0


class KafkaWorld(World[KafkaPlan, KafkaProcess]):
    """Several coordinators, and the cluster with their states and their group."""

    ready_by_s = OWNED_BY_S

    def __init__(self, plan: KafkaPlan, loop: SimLoop, rng: Random, topics: TopicDirectory) -> None:
        super().__init__(plan, loop, rng, topics, places=plan.coordinators, forwarding=plan.forwarding)
        self.brokers = SimBrokers(
            loop,
            Random(rng.getrandbits(64)),
            plan.broker_faults,
            nodes=plan.brokers,
            partitions=plan.state_partitions,
        )
        self.membership = Membership(
            loop,
            Random(rng.getrandbits(64)),
            plan.membership,
            self.brokers,
            plan.state_partitions,
            named=plan.named,
        )
        # The function that deletes the state of a user topic as a group coordinator does. The simulator sets
        # it.
        self.delete_state: DeleteState
        self.share_groups = ShareGroupsWithoutCreation(lambda group, topic: self.delete_state(group, topic))
        self.kafka = BrokerNetwork(
            self.brokers,
            plan.log_limits.request_timeout_s,
            self.membership,
            self.share_groups,
        ).join_network(self.network)
        self.truncations = LogTruncations(
            self.history, self.brokers, plan.state_partitions, plan.log_limits.lease_s
        )
        # The lease traces, if the lease model (`tests.model`) covers the faults of the plan.
        self.traces: LeaseTraces | None = None
        # The broker that is disconnected from the others until the end of the simulation, if any.
        self.stale_node: int | None = None
        # Indexes of coordinators that clients cannot connect to.
        self.unreachable_places: set[int] = set()
        self._started: list[KafkaProcess] = []

    @property
    def damage_count(self) -> int:
        """The number of unclean elections that lost acknowledged records."""
        return sum(map(len, self.truncations.losses.values()))

    def _new_process(self, place: int, number: int) -> KafkaProcess:
        self._started.append(KafkaProcess(self, place, number))
        return self._started[-1]

    async def release(self) -> None:
        """Close the clients of all processes, because aiokafka warns of open connections."""
        for process in self._started:
            process.resume()
        for process in self._started:
            await process.release()

    def owner_place(self, number: int) -> int | None:
        """Return the index of the coordinator that is the assigned owner of a shard, or None."""
        name = self.membership.owner(number)
        return None if name is None else int(name.split(".")[0])

    def make_stale(self, node: int) -> None:
        """Disconnect a broker from the other brokers until the end of the simulation."""
        self.stale_node = node
        self.disconnect_broker(node)

    def disconnect_broker(self, node: int) -> None:
        """Disconnect a broker from the other brokers."""
        self.brokers.disconnect_broker(node)
        self.membership.disconnect_broker(node)

    def reconnect_broker(self, node: int) -> None:
        self.brokers.reconnect_broker(node)
        self.membership.reconnect_broker(node)

    def stop_faults(self) -> None:
        """End all faults and disable further ones."""
        super().stop_faults()
        self.brokers.blocked.clear()
        self.brokers.held.clear()
        self.unreachable_places.clear()
        self.membership.blocked.clear()
        for node in self.brokers.nodes:
            self.brokers.restart_node(node)
            if node != self.stale_node:
                self.reconnect_broker(node)
        for process in self.alive():
            process.resume()

    def _set_faults(self, plan: KafkaPlan) -> None:
        super()._set_faults(plan)
        self.brokers.faults, self.membership.faults = plan.broker_faults, plan.membership

    # Methods that compare memory and log.

    def health(self) -> object:
        """Return whether all shards are assigned, and the reasons why coordinators are not ready."""
        return self._is_membership_complete(), super().health()

    def _is_membership_complete(self) -> bool:
        return self.membership.is_settled({process.name for process in self.alive()})

    def is_complete(self) -> bool:
        """Return whether all processes run and each shard has one owner, which the assignment names."""
        return (
            super().is_complete()
            and self._is_membership_complete()
            and all(
                [process.place for process in self._owning_processes(number)] == [self.owner_place(number)]
                for number in range(self.plan.state_partitions)
            )
            and (not self.plan.forwarding or all(map(self._knows_owners, self.alive())))
        )

    def _knows_owners(self, process: KafkaProcess) -> bool:
        return process.assignment is not None and all(
            owner is not None and owner.instance == self.membership.owner(number)
            for number in range(self.plan.state_partitions)
            for owner in [process.assignment.owner(number)]
        )

    def _owning_processes(self, number: int) -> list[KafkaProcess]:
        return [process for process in self.alive() if number in process.runtime.owned_shards()]

    async def states_in_log(self) -> dict[SharePartitionKey, ShareState]:
        states: dict[SharePartitionKey, ShareState] = {}
        for number, partition in enumerate(self.brokers.partitions):
            states |= read_states(partition, number)
        return states
