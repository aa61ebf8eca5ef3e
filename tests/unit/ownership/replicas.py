"""Replicas of a group as tests drive them: each an ownership, and a listener that remembers what it hears."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from coordinator.kafka.group import GroupLink
from coordinator.ownership.base import OwnerMap, Replica
from coordinator.ownership.group import GroupOwnership
from coordinator.ownership.limits import GroupLimits
from tests.unit.ownership.fake_group import FakeGroup

_starts = itertools.count(1)


@dataclass
class Heard:
    """An `OwnershipListener` that remembers what it hears, and what of it makes no sense."""

    owned: set[int] = field(default_factory=set)
    owner_map: OwnerMap | None = None
    maps: list[OwnerMap | None] = field(default_factory=list)
    resignations: list[int] = field(default_factory=list)
    elections: list[tuple[int, bool]] = field(default_factory=list)
    is_ready: bool = True
    # Shards that were resigned and take their time to be released.
    releasing: set[int] = field(default_factory=set)
    slow: bool = False
    # Shards that the log took away, until they are elected again.
    fenced: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def owners_changed(self, owner_map: OwnerMap | None) -> None:
        self.owner_map = owner_map
        self.maps.append(owner_map)

    def elected(self, state_partition: int, *, release_expected: bool) -> None:
        if state_partition in self.owned:
            self.wrong.append(f"elected again for {state_partition}")
        self.owned.add(state_partition)
        self.fenced.discard(state_partition)
        self.elections.append((state_partition, release_expected))

    def resigned(self, state_partition: int) -> None:
        # What the log took away may be resigned too: that news crosses this one.
        if state_partition not in self.owned | self.fenced:
            self.wrong.append(f"resigned {state_partition}, which it does not own")
        self.owned.discard(state_partition)
        self.resignations.append(state_partition)
        if self.slow:
            self.releasing.add(state_partition)

    def ready(self) -> bool:
        return self.is_ready

    def resigning(self) -> bool:
        return bool(self.releasing)


@dataclass
class One:
    """A replica: its ownership and what it heard."""

    replica: Replica
    ownership: GroupOwnership
    heard: Heard
    link: GroupLink

    @property
    def owned(self) -> set[int]:
        return self.heard.owned

    def take_away(self, state_partition: int) -> None:
        """Be told by the log that somebody else owns a shard, as the runtime is."""
        self.heard.owned.remove(state_partition)
        self.heard.fenced.add(state_partition)
        self.ownership.fenced(state_partition)


class Fleet:
    """Replicas that share the shards of one topic. `link` gives each its way to the group."""

    def __init__(
        self,
        link: Callable[[], GroupLink],
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
        self.ones: list[One] = []
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
    ) -> One:
        """Start a replica more, later than all others."""
        number = next(_starts)
        address = wire or f"replica-{number}:9095"
        # As long as a process makes it: a UUID.
        instance = f"instance-{number:023}"
        replica = Replica(instance, address, http=address.replace("9095", "9096"), broker_id=broker_id)
        link = self._link()
        heard = Heard(is_ready=ready)
        ownership = GroupOwnership(
            lambda: link,
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
        one = One(replica, ownership, heard, link)
        self.ones.append(one)
        await ownership.start(heard)
        return one

    async def add_all(self, count: int) -> list[One]:
        """Start replicas and wait until they share the shards; what they heard on the way is forgotten."""
        ones = [await self.add() for _ in range(count)]
        await self.until(lambda: self.shared_by(*ones))
        for one in ones:
            one.heard.elections.clear()
            one.heard.resignations.clear()
        return ones

    def shared_by(self, *ones: One) -> bool:
        """True if these own all shards between them, balanced, and agree on who owns which."""
        sizes = [len(one.owned) for one in ones]
        maps = [one.heard.owner_map for one in ones]
        return (
            sum(sizes) == self.state_partitions
            and len(set().union(*(one.owned for one in ones))) == self.state_partitions
            and max(sizes) - min(sizes) <= 1
            and maps[0] is not None
            and all(owner_map == maps[0] for owner_map in maps)
            and all(
                owner is not None
                and any(partition in one.owned for one in ones if one.replica.instance == owner.instance)
                for partition in range(self.state_partitions)
                for owner in [maps[0].owner(partition)]
            )
        )

    async def until(self, condition: Callable[[], bool], seconds: float | None = None) -> float:
        """Wait until something is true; return how long that took. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(self._patience_s if seconds is None else seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return loop.time() - began

    def now(self) -> float:
        """Return the time that scenarios measure with, in seconds."""
        return asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """Stop all replicas; see that what they heard made sense."""
        await asyncio.gather(*(one.ownership.stop() for one in self.ones))
        assert [one.heard.wrong for one in self.ones if one.heard.wrong] == []


def heard_generation(one: One) -> int:
    """Return the generation of the map that a replica goes by, as its listener heard it.

    The figures of the membership follow a moment later: it runs on a thread of its own.
    """
    assert one.heard.owner_map is not None
    return one.heard.owner_map.generation


# Plays a scene: a coroutine function of a group in memory and a fleet without replicas.
Play = Callable[[Callable[[FakeGroup, Fleet], Awaitable[object]]], None]
