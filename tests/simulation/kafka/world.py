"""The environment of several coordinators: brokers, membership, network, and processes that start and
stop.
"""

import asyncio
from random import Random

from coordinator.cluster.topics import TopicDirectory
from coordinator.errors import LogError
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.kafka_in_memory.share_groups import AnyShareGroups, DeleteState
from tests.simulation.history import History, Violation
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.kafka.connections import BrokerNetwork
from tests.simulation.kafka.log_truncation import LogTruncations
from tests.simulation.kafka.membership import Membership
from tests.simulation.kafka.plan import KafkaPlan
from tests.simulation.kafka.process import KafkaProcess
from tests.simulation.kafka.raw_log import read_states
from tests.simulation.kafka.traced_log import LeaseTraces
from tests.simulation.loop import SimLoop
from tests.simulation.net import Network
from tests.simulation.process import SimClock
from tests.simulation.world import READY_BY_S, wait_until

# All shards must be owned and loaded within this number of seconds after the end of faults. This time
# includes the session timeout of a dead member and a pause between retries.
OWNED_BY_S = READY_BY_S + 60.0


class KafkaWorld:
    """Everything except the clients. Faults are injected while `faulty` is True."""

    def __init__(self, plan: KafkaPlan, loop: SimLoop, rng: Random, topics: TopicDirectory) -> None:
        self.plan = plan
        self.loop = loop
        self.history = History(forwarding=plan.forwarding)
        self.network = Network(loop, Random(rng.getrandbits(64)), plan.net)
        loop.network = self.network
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
        # The simulator sets it to a function of its clients, which delete state as brokers do.
        self.delete_state: DeleteState
        self.share_groups = AnyShareGroups(lambda group, topic: self.delete_state(group, topic))
        self.kafka = BrokerNetwork(
            self.brokers,
            plan.log_limits.request_timeout_s,
            self.membership,
            self.share_groups,
        ).join(self.network)
        self.truncations = LogTruncations(
            self.history, self.brokers, plan.state_partitions, plan.log_limits.lease_s
        )
        # Set by the simulator, if the model covers the faults of the plan.
        self.traces: LeaseTraces | None = None
        self.clocks = [SimClock(loop) for _ in range(plan.coordinators)]
        self.processes: list[KafkaProcess | None] = [None] * plan.coordinators
        # By place: a fault holds this lock while it starts or ends the process of the place.
        self.lives = [asyncio.Lock() for _ in range(plan.coordinators)]
        # The broker that is disconnected from the others until the end of the run.
        self.stale_node: int | None = None
        # Places of coordinators that writers cannot reach.
        self.apart: set[int] = set()
        self.faulty = True
        self.crashes = 0
        self.stops = 0
        self.pauses = 0
        self._topics = topics
        self._life = 0
        self._started: list[KafkaProcess] = []

    # Start and stop of processes.

    async def start(self, place: int) -> None:
        """Start a coordinator. Retry until the log can be opened."""
        while self.processes[place] is None:
            self._life += 1
            was_faulty = self.faulty
            process = KafkaProcess(
                place,
                self._life,
                loop=self.loop,
                plan=self.plan,
                kafka=self.kafka,
                membership=self.membership,
                clock=self.clocks[place],
                topics=self._topics,
                history=self.history,
                traces=self.traces,
            )
            self._started.append(process)
            try:
                await process.start()
            except LogError as error:
                if not was_faulty:
                    raise Violation(
                        f"all faults have ended, but the log cannot be opened: {error}"
                    ) from error
                await process.crash()
                await asyncio.sleep(0.2)
            else:
                self.processes[place] = process

    async def crash(self, place: int) -> None:
        """Kill the process of a place."""
        process, self.processes[place] = self.processes[place], None
        assert process is not None
        await process.crash()
        self.crashes += 1

    async def stop(self, place: int) -> None:
        """Stop the process of a place cleanly."""
        process, self.processes[place] = self.processes[place], None
        assert process is not None
        await process.stop()
        self.stops += 1

    async def release(self) -> None:
        """Close the connections of all processes, because aiokafka warns of open connections."""
        for process in self._started:
            process.resume()
        for process in self._started:
            await process.release()

    def alive(self) -> list[KafkaProcess]:
        """Return the running processes."""
        return [process for process in self.processes if process is not None]

    def owner_place(self, number: int) -> int | None:
        """Return the place of the assigned owner of a shard, or None."""
        name = self.membership.owner(number)
        return None if name is None else int(name.split(".")[0])

    def make_stale(self, node: int) -> None:
        """Disconnect a broker from the other brokers until the end of the run."""
        self.stale_node = node
        self.disconnect_broker(node)

    def disconnect_broker(self, node: int) -> None:
        """Disconnect a broker from the other brokers."""
        self.brokers.disconnect_broker(node)
        self.membership.disconnect_broker(node)

    def reconnect_broker(self, node: int) -> None:
        """Reconnect a broker."""
        self.brokers.reconnect_broker(node)
        self.membership.reconnect_broker(node)

    def stop_faults(self) -> None:
        """End all faults, and inject no more."""
        healed = self.plan.without_faults()
        self.faulty = False
        self.network.faults = healed.net
        self.brokers.faults, self.membership.faults = healed.broker_faults, healed.membership
        self.brokers.blocked.clear()
        self.brokers.held.clear()
        self.apart.clear()
        self.membership.blocked.clear()
        for node in self.brokers.nodes:
            self.brokers.restart_node(node)
            if node != self.stale_node:
                self.reconnect_broker(node)
        for process in self.alive():
            process.resume()

    def resume_faults(self) -> None:
        """Inject faults again."""
        self.faulty = True
        self.network.faults = self.plan.net
        self.brokers.faults, self.membership.faults = self.plan.broker_faults, self.plan.membership

    # Comparison of memory and log.

    def health(self) -> object:
        """Return whether the membership has assigned all shards, and the health problems of all processes."""
        reasons: list[object] = [process.runtime.health() for process in self.alive()]
        return [self._is_membership_complete(), *reasons]

    def _is_membership_complete(self) -> bool:
        return self.membership.is_settled({process.name for process in self.alive()})

    def is_complete(self) -> bool:
        """Return whether all processes run, and exactly the assigned owner owns each shard."""
        return (
            None not in self.processes
            and self._is_membership_complete()
            and not any(process.runtime.health() for process in self.alive())
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

    async def compare_memory_with_log(self) -> dict[SharePartitionKey, ShareState]:
        """Compare the logs with the memory of their owners. Raises Violation if they differ."""
        await wait_until(self.is_complete, self.health, OWNED_BY_S)
        replayed: dict[SharePartitionKey, ShareState] = {}
        live: dict[SharePartitionKey, ShareState] = {}
        for _ in range(5):
            await wait_until(self.is_complete, self.health, OWNED_BY_S)
            replayed = self.states_in_log()
            live = await self._states_in_memory()
            if replayed == live:
                return live
            await asyncio.sleep(0.3)
        different = [key for key in {**replayed, **live} if replayed.get(key) != live.get(key)]
        raise Violation(
            "\n  ".join(f"{key}: live {live.get(key)}, replayed {replayed.get(key)}" for key in different)
        )

    def states_in_log(self) -> dict[SharePartitionKey, ShareState]:
        """Return the states in the logs."""
        states: dict[SharePartitionKey, ShareState] = {}
        for number, partition in enumerate(self.brokers.partitions):
            states |= read_states(partition, number)
        return states

    async def _states_in_memory(self) -> dict[SharePartitionKey, ShareState]:
        states: dict[SharePartitionKey, ShareState] = {}
        for number in range(self.plan.state_partitions):
            for process in self._owning_processes(number):
                async for key, state in process.runtime.share_partitions():
                    if state_partition(key, self.plan.state_partitions) == number:
                        states[key] = state
        return states
