"""Simulate a group membership whose assignments are late, wrong or lost.

Members send heartbeats. If no heartbeat of a member arrives for a session timeout, the member is removed, and
its shards move to other members. The removed member learns this with its next heartbeat. Shards also move at
random.

The membership guarantees two things, unless it is *hasty*. The next owner is informed only after the previous
owner has released the shard, or after its session timeout. A lease starts when an answered heartbeat is sent,
and is shorter than a session. Therefore no other owner exists while a lease is fresh.

Reads depend on this guarantee if a disconnected broker confirms the renewal of the owner's lease. The
coordinator assumes nothing else about a membership. A hasty membership informs the next owner at once, so two
owners may have fresh leases. Then only the log ensures consistency.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random

from coordinator.cluster.ownership import NOBODY, Assignment, Ownership, OwnershipListener, Replica
from tests.simulation.loop import SimLoop


@dataclass(frozen=True)
class MembershipFaults:
    """Times are in seconds. `hasty_rate` is the rate of moves that do not wait for the previous owner."""

    heartbeat_s: float = 1.0
    session_s: float = 6.0
    lease_s: float = 4.0
    travel_s: float = 0.005
    lost_rate: float = 0.0
    hasty_rate: float = 0.0


@dataclass
class _Member:
    replica: Replica
    heard_s: float
    owns: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _HeartbeatAnswer:
    """The response to a heartbeat. `shards` is None if the sender is not a member."""

    shards: frozenset[int] | None
    released: frozenset[int]
    assignment: Assignment


class SimMembership:
    """The membership service."""

    def __init__(self, loop: SimLoop, rng: Random, faults: MembershipFaults, shards: int) -> None:
        self.loop = loop
        self.rng = rng
        self.faults = faults
        # Members that cannot reach the service.
        self.blocked: set[str] = set()
        self._members: dict[str, _Member] = {}
        # By shard: the member that shall own it, and the member that owns it until it releases the shard.
        self._wanted: list[str | None] = [None] * shards
        self._holders: list[str | None] = [None] * shards
        self._released: set[int] = set()
        self._generation = 0

    async def run(self) -> None:
        """Remove members without recent heartbeats, in an endless loop."""
        while True:
            await asyncio.sleep(0.25)
            silent_s = self.loop.time() - self.faults.session_s
            for name in [name for name, member in self._members.items() if member.heard_s < silent_s]:
                self._remove_member(name)

    def ownership(self, replica: Replica, bootstrap_servers: str, world: Context) -> Ownership:
        """Return the ownership of a process."""
        return SimOwnership(self, replica, world)

    def owner(self, shard: int) -> str | None:
        """Return the intended owner of a shard."""
        return self._wanted[shard]

    def is_settled(self, names: set[str]) -> bool:
        """Return whether the members are `names`, and the intended member owns each shard."""
        return self._members.keys() == names and None not in self._wanted and self._wanted == self._holders

    def disconnect_broker(self, node: int) -> None:
        """Do nothing: this membership does not depend on brokers."""

    def move_group_to(self, node: int) -> None:
        """Do nothing: this membership does not depend on brokers."""

    def reconnect_broker(self, node: int) -> None:
        """Do nothing: this membership does not depend on brokers."""

    def disturb_assignment(self) -> None:
        """Move a random shard to another member."""
        if len(self._members) > 1:
            shard = self.rng.randrange(len(self._wanted))
            self._set_intended_owner(
                shard, self.rng.choice([name for name in self._members if name != self._wanted[shard]])
            )

    async def release_connections(self, name: str) -> None:
        """Do nothing: a process that has ended has no connections to release."""

    # Requests of members.

    def heartbeat(self, replica: Replica, holds: frozenset[int] | None) -> _HeartbeatAnswer:
        """Process a heartbeat of a member that owns the shards `holds`, which is None for a new member."""
        name = replica.instance
        if holds is None and name not in self._members:
            self._members[name] = _Member(replica, self.loop.time())
            self._balance_shards()
        member = self._members.get(name)
        if member is None or holds is None:
            return _HeartbeatAnswer(
                None if member is None else frozenset(), frozenset(), self._current_assignment()
            )
        member.heard_s = self.loop.time()
        for shard, holder in enumerate(self._holders):
            if holder == name and self._wanted[shard] != name and shard not in holds:
                self._holders[shard] = None
                self._released.add(shard)
        shards = frozenset(shard for shard, wanted in enumerate(self._wanted) if wanted == name)
        given = {shard for shard in sorted(shards) if self._may_release_shard(shard, name)}
        released = frozenset(shard for shard in given & self._released if self._holders[shard] != name)
        for shard in given:
            self._holders[shard] = name
        self._released -= given
        return _HeartbeatAnswer(frozenset(given), released, self._current_assignment())

    def _may_release_shard(self, shard: int, name: str) -> bool:
        holder = self._holders[shard]
        if holder in (None, name):
            return True
        if self.rng.random() < self.faults.hasty_rate:
            self._released.add(shard)
            return True
        return False

    def leave(self, name: str) -> None:
        """Remove a member that owns no shards."""
        if name in self._members:
            self._remove_member(name)

    def _remove_member(self, name: str) -> None:
        del self._members[name]
        for shard, holder in enumerate(self._holders):
            if holder == name:
                self._holders[shard] = None
                self._released.discard(shard)
        self._balance_shards()

    def hand_over(self, shard: int, name: str) -> None:
        """Assign a shard to a member, or to any other member if the name is empty."""
        others = (
            [name]
            if name in self._members
            else [each for each in self._members if each != self._wanted[shard]]
        )
        if others:
            self._set_intended_owner(shard, self.rng.choice(others))

    def resign_all(self, name: str) -> None:
        """Assign the shards of a leaving member to others."""
        others = [other for other in self._members if other != name]
        for shard, wanted in enumerate(self._wanted):
            if wanted == name:
                self._set_intended_owner(shard, self.rng.choice(others) if others else None)

    def _set_intended_owner(self, shard: int, name: str | None) -> None:
        self._wanted[shard] = name
        self._generation += 1

    def _balance_shards(self) -> None:
        """Balance the shards with as few moves as possible."""
        if not self._members:
            self._wanted = [None] * len(self._wanted)
            return
        load = dict.fromkeys(self._members, 0)
        for wanted in self._wanted:
            if wanted in load:
                load[wanted] += 1
        most = -(-len(self._wanted) // len(load))
        for shard, wanted in enumerate(self._wanted):
            if wanted not in load or load[wanted] > most:
                least = min(load, key=lambda name: load[name])
                if wanted in load:
                    load[wanted] -= 1
                load[least] += 1
                self._set_intended_owner(shard, least)

    def _current_assignment(self) -> Assignment:
        names = list(self._members)
        owners = tuple(NOBODY if name is None else names.index(name) for name in self._wanted)
        replicas = tuple(member.replica for member in self._members.values())
        return Assignment(self._generation, replicas, owners)


class SimOwnership:
    """An `Ownership` of one process."""

    def __init__(self, membership: SimMembership, replica: Replica, world: Context) -> None:
        self._membership = membership
        self._replica = replica
        self._world = world
        self._loop = membership.loop
        self._listener: OwnershipListener
        self._beating: asyncio.Task[None] | None = None
        self._holds: set[int] | None = None
        # Shards that the log fenced. If one is still assigned to this process, it is elected again.
        self._fenced: set[int] = set()
        self._heard_s = float("-inf")

    async def start(self, listener: OwnershipListener) -> None:
        """Start to send heartbeats."""
        self._listener = listener
        self._beating = self._loop.create_task(self._send_heartbeat())

    async def drain(self, timeout_s: float) -> None:
        """Resign all shards, and wait at most `timeout_s` for their release."""
        self._send_over_network(lambda: self._membership.resign_all(self._replica.instance))
        until_s = self._loop.time() + timeout_s
        while (self._holds or self._listener.is_resigning()) and self._loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Stop, and send a request to leave, which may be lost."""
        if self._beating is not None:
            self._beating.cancel()
        if not self._holds:
            self._send_over_network(lambda: self._membership.leave(self._replica.instance))

    def lease_is_fresh(self) -> bool:
        """Return whether the last answered heartbeat was sent less than a lease ago."""
        return self._loop.time() - self._heard_s < self._membership.faults.lease_s

    def on_fenced(self, state_partition: int) -> None:
        """Mark a shard as not owned. If the shard is still assigned, this process is elected again."""
        if self._holds is not None:
            self._holds.discard(state_partition)
        self._fenced.add(state_partition)

    def hand_over(self, state_partition: int, instance: str) -> None:
        """Send a request to hand a shard over, which may be lost."""
        self._send_over_network(lambda: self._membership.hand_over(state_partition, instance))

    def health(self) -> list[str]:
        """Return no problems."""
        return []

    # Heartbeats.

    async def _send_heartbeat(self) -> None:
        faults = self._membership.faults
        while True:
            sent_s = self._loop.time()
            try:
                async with asyncio.timeout(faults.session_s):
                    told = await self._request_heartbeat()
            except TimeoutError:
                continue
            if told.shards is None:
                self._apply_shards(frozenset(), frozenset())
                self._holds = None
            elif self._holds is None:
                self._holds = set()
            else:
                self._heard_s = sent_s
                self._apply_shards(told.shards, told.released)
            self._listener.assignment_changed(told.assignment)
            await asyncio.sleep(faults.heartbeat_s)

    def _apply_shards(self, shards: frozenset[int], released: frozenset[int]) -> None:
        holds = set() if self._holds is None else self._holds
        for shard in sorted((holds | self._fenced) - shards):
            holds.discard(shard)
            self._listener.on_resigned(shard)
        for shard in sorted(shards - holds):
            holds.add(shard)
            self._listener.on_elected(shard, release_expected=shard in released)
        self._fenced.clear()

    async def _request_heartbeat(self) -> _HeartbeatAnswer:
        answered: asyncio.Future[_HeartbeatAnswer] = self._loop.create_future()
        holds = self._holds
        if holds is not None and self._listener.is_resigning():
            # A shard counts as owned until its release has ended.
            holds = set(range(len(self._membership._wanted)))
        report = None if holds is None else frozenset(holds)

        def return_response(told: _HeartbeatAnswer) -> None:
            if not answered.done():
                answered.set_result(told)

        def deliver_request() -> None:
            told = self._membership.heartbeat(self._replica, report)
            self._send_over_network(lambda: return_response(told))

        self._send_over_network(deliver_request)
        return await answered

    def _send_over_network(self, what: Callable[[], None]) -> None:
        """Call a function after the network delay, unless the message is lost."""
        membership = self._membership
        name, faults = self._replica.instance, membership.faults
        if name not in membership.blocked and membership.rng.random() >= faults.lost_rate:
            way_s = membership.rng.expovariate(1 / faults.travel_s)
            self._loop.call_later(way_s, what, context=self._world)
