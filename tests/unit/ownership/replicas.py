"""Replicas of a group for tests: each has an ownership, and a listener that records its calls."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.cluster.ownership.base import Assignment, Replica
from coordinator.cluster.ownership.group import GroupOwnership
from coordinator.cluster.ownership.limits import GroupLimits
from tests.kafka_in_memory.faulty_group_client import FaultyGroupClient

_starts = itertools.count(1)


@dataclass
class RecordingListener:
    """An `OwnershipListener` that records its calls, and any contradictions between them."""

    owned: set[int] = field(default_factory=set)
    assignment: Assignment | None = None
    assignments: list[Assignment | None] = field(default_factory=list)
    resignations: list[int] = field(default_factory=list)
    elections: list[tuple[int, bool]] = field(default_factory=list)
    is_ready: bool = True
    # Resigned shards that are not yet released.
    releasing: set[int] = field(default_factory=set)
    slow: bool = False
    # Shards that another owner's claim in the log has fenced, until they are elected again.
    fenced: set[int] = field(default_factory=set)
    contradictions: list[str] = field(default_factory=list)

    def on_assignment_changed(self, assignment: Assignment | None) -> None:
        self.assignment = assignment
        self.assignments.append(assignment)

    def on_elected(self, state_partition: int, *, release_expected: bool) -> None:
        if state_partition in self.owned:
            self.contradictions.append(f"elected again for {state_partition}")
        self.owned.add(state_partition)
        self.fenced.discard(state_partition)
        self.elections.append((state_partition, release_expected))

    def on_resigned(self, state_partition: int) -> None:
        # A fenced shard may be resigned, too: the assignment may arrive after the fencing.
        if state_partition not in self.owned | self.fenced:
            self.contradictions.append(f"resigned {state_partition}, which it does not own")
        self.owned.discard(state_partition)
        self.resignations.append(state_partition)
        if self.slow:
            self.releasing.add(state_partition)

    def is_ready_to_serve(self) -> bool:
        return self.is_ready

    def is_resigning(self) -> bool:
        return bool(self.releasing)


@dataclass
class GroupReplica:
    """A replica: its ownership, and its listener."""

    replica: Replica
    ownership: GroupOwnership
    listener: RecordingListener
    link: FaultyGroupClient

    @property
    def owned(self) -> set[int]:
        return self.listener.owned

    def fence_shard(self, state_partition: int) -> None:
        """Report that the log fenced a shard, as the runtime does."""
        self.listener.owned.remove(state_partition)
        self.listener.fenced.add(state_partition)
        self.ownership.on_fenced(state_partition)


class ReplicaGroup:
    """Replicas that share the shards of one topic. `link` returns a group client for each replica."""

    def __init__(
        self,
        link: Callable[[], FaultyGroupClient],
        *,
        state_partitions: int = 12,
        topic: str = "state",
        group_id: str = "group",
        limits: GroupLimits | None = None,
        monotonic: Callable[[], float] | None = None,
        own_thread: bool = False,
        patience_s: float = 30.0,
    ) -> None:
        self.state_partitions = state_partitions
        self.topic = topic
        self.limits = limits or GroupLimits()
        self.replicas: list[GroupReplica] = []
        self._link = link
        self._group_id = group_id
        self._monotonic = monotonic or asyncio.get_running_loop().time
        self._own_thread = own_thread
        self._patience_s = patience_s

    async def add(
        self,
        *,
        wire: str | None = None,
        broker_id: int = -1,
        ready: bool = True,
        state_partitions: int | None = None,
        topic: str | None = None,
        instance_id: str = "",
    ) -> GroupReplica:
        """Start another replica. The start time of the new replica is later than those of all others."""
        number = next(_starts)
        address = wire or f"replica-{number}:9095"
        # The instance id has the length of a UUID, which a real process uses.
        instance = f"instance-{number:023}"
        replica = Replica(instance, address, http=address.replace("9095", "9096"), broker_id=broker_id)
        link = self._link()
        listener = RecordingListener(is_ready=ready)
        ownership = GroupOwnership(
            lambda: link,  # type: ignore[arg-type, return-value]
            replica=replica,
            state_topic=topic or self.topic,
            state_partitions=state_partitions or self.state_partitions,
            group_id=self._group_id,
            group_instance_id=instance_id,
            limits=self.limits,
            monotonic=self._monotonic,
            started_ms=number,
            own_thread=self._own_thread,
        )
        one = GroupReplica(replica, ownership, listener, link)
        self.replicas.append(one)
        await ownership.start(listener)
        return one

    async def add_all(self, count: int) -> list[GroupReplica]:
        """Start replicas, and wait until they share the shards. Then clear the recorded calls."""
        replicas = [await self.add() for _ in range(count)]
        await self.wait_until(lambda: self.is_shared_by(*replicas))
        for one in replicas:
            one.listener.elections.clear()
            one.listener.resignations.clear()
        return replicas

    def is_shared_by(self, *replicas: GroupReplica) -> bool:
        """Return whether these replicas own all shards, balanced, and have the same assignment."""
        sizes = [len(one.owned) for one in replicas]
        maps = [one.listener.assignment for one in replicas]
        return (
            sum(sizes) == self.state_partitions
            and len(set().union(*(one.owned for one in replicas))) == self.state_partitions
            and max(sizes) - min(sizes) <= 1
            and maps[0] is not None
            and all(assignment == maps[0] for assignment in maps)
            and all(
                owner is not None
                and any(partition in one.owned for one in replicas if one.replica.instance == owner.instance)
                for partition in range(self.state_partitions)
                for owner in [maps[0].owner(partition)]
            )
        )

    async def wait_until(self, condition: Callable[[], bool], seconds: float | None = None) -> float:
        """Wait until a condition is true. Return the seconds that this took. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(self._patience_s if seconds is None else seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return loop.time() - began

    def now(self) -> float:
        """Return the time for measurements in scenarios, in seconds."""
        return asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """Stop all replicas. Check that the listeners of the replicas recorded no contradictions."""
        await asyncio.gather(*(one.ownership.stop() for one in self.replicas))
        assert [one.listener.contradictions for one in self.replicas if one.listener.contradictions] == []


def listener_generation(one: GroupReplica) -> int:
    """Return the generation of the assignment that the listener of a replica received last.

    The metrics of the membership follow later, because the membership runs on its own thread.
    """
    assert one.listener.assignment is not None
    return one.listener.assignment.generation
