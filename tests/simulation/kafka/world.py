"""The world of several coordinators: brokers, membership, network, and processes that come and go."""

import asyncio
from random import Random

from coordinator.errors import LogError
from coordinator.shard import ShareState
from coordinator.topics import TopicDirectory
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.simulation.history import History, Violation
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.kafka.group import ProductMembership
from tests.simulation.kafka.log_truncation import LogTruncations
from tests.simulation.kafka.membership import SimMembership
from tests.simulation.kafka.plan import KafkaPlan
from tests.simulation.kafka.process import KafkaProcess
from tests.simulation.kafka.raw_log import states_in
from tests.simulation.loop import SimLoop
from tests.simulation.net import Network
from tests.simulation.process import SimClock
from tests.simulation.world import READY_BY_S, until

# How long all shards may take to be owned and loaded when nothing is wrong any more: those who are missing
# have to be missed, and a pause between two attempts to end.
OWNED_BY_S = READY_BY_S + 60.0


class KafkaWorld:
    """All that is not a client. While it is `faulty`, things go wrong."""

    def __init__(self, plan: KafkaPlan, loop: SimLoop, rng: Random, topics: TopicDirectory) -> None:
        self.plan = plan
        self.loop = loop
        self.history = History()
        self.network = Network(loop, Random(rng.getrandbits(64)), plan.net)
        loop.network = self.network
        self.brokers = SimBrokers(
            loop,
            Random(rng.getrandbits(64)),
            plan.broker_faults,
            nodes=plan.brokers,
            partitions=plan.state_partitions,
        )
        self.membership = self._make_membership(Random(rng.getrandbits(64)))
        self.truncations = LogTruncations(
            self.history, self.brokers, plan.state_partitions, plan.log_limits.lease_s
        )
        self.clocks = [SimClock(loop) for _ in range(plan.coordinators)]
        self.processes: list[KafkaProcess | None] = [None] * plan.coordinators
        # Whoever ends or begins the life of a process holds its lock.
        self.lives = [asyncio.Lock() for _ in range(plan.coordinators)]
        # Places that those who write do not reach.
        self.apart: set[int] = set()
        self.faulty = True
        self.crashes = 0
        self.stops = 0
        self.pauses = 0
        self._topics = topics
        self._life = 0

    def _make_membership(self, rng: Random) -> SimMembership | ProductMembership:
        plan = self.plan
        if plan.ownership == "group":
            return ProductMembership(
                self.loop, rng, plan.membership, self.brokers, plan.state_partitions, named=plan.named
            )
        return SimMembership(self.loop, rng, plan.membership, plan.state_partitions)

    # Life and death.

    async def start(self, place: int) -> None:
        """Start a coordinator, again and again until there is a cluster for it."""
        while self.processes[place] is None:
            self._life += 1
            was_faulty = self.faulty
            process = KafkaProcess(
                place,
                self._life,
                loop=self.loop,
                plan=self.plan,
                brokers=self.brokers,
                membership=self.membership,
                clock=self.clocks[place],
                topics=self._topics,
            )
            try:
                await process.start()
            except LogError as error:
                if not was_faulty:
                    raise Violation(f"healed, but the log cannot be opened: {error}") from error
                await process.crash()
                await asyncio.sleep(0.2)
            else:
                self.processes[place] = process

    async def crash(self, place: int) -> None:
        """Let a process die now."""
        process, self.processes[place] = self.processes[place], None
        assert process is not None
        await process.crash()
        self.crashes += 1

    async def stop(self, place: int) -> None:
        """Let a process stop in order."""
        process, self.processes[place] = self.processes[place], None
        assert process is not None
        await process.stop()
        self.stops += 1

    def alive(self) -> list[KafkaProcess]:
        """Return the processes that there are."""
        return [process for process in self.processes if process is not None]

    def owner_place(self, number: int) -> int | None:
        """Return the place of who should own a shard."""
        name = self.membership.owner(number)
        return None if name is None else int(name.split(".")[0])

    def cut_off(self, node: int) -> None:
        """Cut a broker off from the other brokers."""
        self.brokers.cut_off(node)
        self.membership.cut_off(node)

    def rejoin(self, node: int) -> None:
        """End that."""
        self.brokers.rejoin(node)
        self.membership.rejoin(node)

    def stop_faults(self) -> None:
        """Let nothing go wrong from now on, and end what is going wrong."""
        healed = self.plan.healed()
        self.faulty = False
        self.network.faults = healed.net
        self.brokers.faults, self.membership.faults = healed.broker_faults, healed.membership
        self.brokers.blocked.clear()
        self.brokers.held.clear()
        self.apart.clear()
        self.membership.blocked.clear()
        for node in self.brokers.nodes:
            self.brokers.revive(node)
            self.rejoin(node)
        for process in self.alive():
            process.resume()

    def resume_faults(self) -> None:
        """Let things go wrong again."""
        self.faulty = True
        self.network.faults = self.plan.net
        self.brokers.faults, self.membership.faults = self.plan.broker_faults, self.plan.membership

    # Memory and log.

    def health(self) -> object:
        """Return why something is not as it should be, with everybody."""
        reasons: list[object] = [process.runtime.health() for process in self.alive()]
        return [self._settled(), *reasons]

    def _settled(self) -> bool:
        return self.membership.settled({process.name for process in self.alive()})

    def whole(self) -> bool:
        """Tell whether all processes live, and each shard is where it should be."""
        return (
            None not in self.processes
            and self._settled()
            and not any(process.runtime.health() for process in self.alive())
            and all(
                [process.place for process in self._owners(number)] == [self.owner_place(number)]
                for number in range(self.plan.state_partitions)
            )
        )

    def _owners(self, number: int) -> list[KafkaProcess]:
        return [process for process in self.alive() if number in process.runtime.owned_shards()]

    async def compare_memory_with_log(self) -> dict[SharePartitionKey, ShareState]:
        """Read the logs as they lie there; raise Violation if their owners' memories say something else."""
        await until(self.whole, self.health, OWNED_BY_S)
        replayed: dict[SharePartitionKey, ShareState] = {}
        live: dict[SharePartitionKey, ShareState] = {}
        for _ in range(5):
            await until(self.whole, self.health, OWNED_BY_S)
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
        """Return what the logs say."""
        states: dict[SharePartitionKey, ShareState] = {}
        for number, partition in enumerate(self.brokers.partitions):
            states |= states_in(partition, number)
        return states

    async def _states_in_memory(self) -> dict[SharePartitionKey, ShareState]:
        states: dict[SharePartitionKey, ShareState] = {}
        for number in range(self.plan.state_partitions):
            for process in self._owners(number):
                async for key, state in process.runtime.share_partitions():
                    if state_partition(key, self.plan.state_partitions) == number:
                        states[key] = state
        return states
