"""Inject faults into coordinators, brokers, and the network between them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

from tests.simulation.kafka.plan import PAUSE_FACTOR_MAX
from tests.simulation.kafka.world import KafkaWorld

FaultFactory = Callable[[KafkaWorld, Random], Coroutine[Any, Any, None]]


def _choose_place(world: KafkaWorld, rng: Random) -> int | None:
    """Return the place (index) of a running process that no other fault uses, or None."""
    places = [
        place
        for place, process in enumerate(world.processes)
        if process is not None and not world.lives[place].locked()
    ]
    return rng.choice(places) if places and world.faulty else None


async def _crash_coordinator(world: KafkaWorld, rng: Random) -> None:
    place = _choose_place(world, rng)
    if place is not None:
        async with world.lives[place]:
            await world.crash(place)
            await asyncio.sleep(rng.expovariate(1 / world.plan.nemesis.down_s))
            await world.start(place)


async def _stop_coordinator(world: KafkaWorld, rng: Random) -> None:
    place = _choose_place(world, rng)
    if place is not None:
        async with world.lives[place]:
            await world.stop(place)
            await asyncio.sleep(rng.expovariate(1 / world.plan.nemesis.down_s))
            await world.start(place)


async def _pause_coordinator(world: KafkaWorld, rng: Random) -> None:
    place = _choose_place(world, rng)
    if place is not None:
        async with world.lives[place]:
            process = world.processes[place]
            assert process is not None
            process.pause()
            world.pauses += 1
            mean_s = world.plan.nemesis.paused_s
            until_s = world.loop.time() + min(rng.expovariate(1 / mean_s), PAUSE_FACTOR_MAX * mean_s)
            while process.paused and world.loop.time() < until_s:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            process.resume()


async def _disconnect_coordinator(world: KafkaWorld, rng: Random) -> None:
    """Disconnect a coordinator from some brokers, from the membership, or from both."""
    place = _choose_place(world, rng)
    if place is None:
        return
    process = world.processes[place]
    assert process is not None
    nodes = list(world.brokers.nodes)
    lost = {(process.name, node) for node in rng.sample(nodes, rng.randrange(len(nodes) + 1))}
    alone = {process.name} if not lost or rng.random() < 0.5 else set()
    await _block_connections(world, lost, alone, rng.expovariate(1 / world.plan.nemesis.parted_s))


async def _block_connections(
    world: KafkaWorld, lost: set[tuple[str, int]], alone: set[str], seconds: float
) -> None:
    world.brokers.blocked |= lost
    world.membership.blocked |= alone
    await _sleep_while_faulty(world, seconds)
    world.brokers.blocked -= lost
    world.membership.blocked -= alone


async def _sleep_while_faulty(world: KafkaWorld, seconds: float) -> None:
    until_s = world.loop.time() + seconds
    while world.faulty and world.loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def _disconnect_broker(world: KafkaWorld, rng: Random) -> None:
    """Disconnect a broker from the others. Usually an owner of one of its partitions reaches only this
    broker.
    """
    brokers = world.brokers
    able = [node for node in brokers.nodes if node not in brokers.down and node not in brokers.views]
    number = rng.randrange(len(brokers.partitions))
    node = brokers.partitions[number].leader
    if len(able) < 2 or node not in able:
        return
    world.disconnect_broker(node)
    place = world.owner_place(number)
    if place is None or world.processes[place] is None:
        place = _choose_place(world, rng)
    lost: set[tuple[str, int]] = set()
    alone: set[str] = set()
    if place is not None and rng.random() < 0.8:
        process = world.processes[place]
        assert process is not None
        lost = {(process.name, other) for other in brokers.nodes if other != node}
        # Usually the owner cannot reach the membership either, so it learns late that it is no longer the
        # owner.
        alone = {process.name} if rng.random() < 0.7 else set()
        # If only readers can connect, the owner appends nothing. So it detects its replacement late.
        world.apart |= {place} if rng.random() < world.plan.nemesis.apart_rate else set()
    await _block_connections(world, lost, alone, rng.expovariate(1 / world.plan.nemesis.cut_off_for_s))
    world.apart.clear()
    world.reconnect_broker(node)


async def _isolate_broker_and_owner(world: KafkaWorld, rng: Random) -> None:
    """Isolate a broker together with one coordinator: they reach only each other.

    Usually this broker coordinates the group, and the coordinator is its only member at first.
    """
    brokers = world.brokers
    places = [place for place, life in enumerate(world.lives) if world.processes[place] and not life.locked()]
    if not places:
        return
    place = rng.choice(places)
    async with AsyncExitStack() as alone, world.lives[place]:
        run_in_process = world.processes[place]
        assert run_in_process is not None
        if rng.random() < 0.7:
            for other in set(places) - {place}:
                await alone.enter_async_context(_keep_crashed(world, other))
            await _sleep_while_faulty(world, 3 * world.plan.membership.session_s)
        number = rng.randrange(len(brokers.partitions))
        node = brokers.partitions[number].leader
        if node not in brokers.nodes or node in brokers.down or node in brokers.views or not world.faulty:
            return
        if rng.random() < 0.9:
            world.membership.move_group_to(node)
        world.disconnect_broker(node)
        world.apart |= {place} if rng.random() < world.plan.nemesis.apart_rate else set()
        await alone.aclose()
        cut: set[tuple[str, int]] = set()
        until_s = world.loop.time() + rng.expovariate(1 / world.plan.nemesis.island_for_s)
        while world.faulty and world.loop.time() < until_s:
            # Other processes may start in the meantime.
            cut |= {
                (process.name, other)
                for process in world.alive()
                for other in brokers.nodes
                if (process is run_in_process) != (other == node)
            }
            brokers.blocked |= cut
            await asyncio.sleep(0.05)
        brokers.blocked -= cut
        world.apart.clear()
        world.reconnect_broker(node)


@asynccontextmanager
async def _keep_crashed(world: KafkaWorld, place: int) -> AsyncIterator[None]:
    """Keep a coordinator down while the context is open."""
    async with world.lives[place]:
        await world.crash(place)
        try:
            yield
        finally:
            await world.start(place)


async def _delay_appends(world: KafkaWorld, rng: Random) -> None:
    """Delay the appends of a coordinator. Usually it is also disconnected from the membership."""
    place = _choose_place(world, rng)
    if place is None:
        return
    process = world.processes[place]
    assert process is not None
    plan = world.plan
    seconds = min(rng.expovariate(1 / plan.nemesis.held_s), plan.broker_faults.late_max_s)
    world.brokers.held[process.name] = world.loop.time() + seconds
    alone = {process.name} if rng.random() < plan.nemesis.held_alone_rate else set()
    await _block_connections(world, set(), alone, seconds)


async def _kill_broker(world: KafkaWorld, rng: Random) -> None:
    brokers = world.brokers
    node = rng.choice(brokers.nodes)
    if node not in brokers.down:
        brokers.kill(node)
        await _sleep_while_faulty(world, rng.expovariate(1 / world.plan.nemesis.broker_down_s))
        brokers.restart_node(node)


async def _move_leader(world: KafkaWorld, rng: Random) -> None:
    world.brokers.elect_another_leader(rng.randrange(len(world.brokers.partitions)))


async def _shuffle_members(world: KafkaWorld, rng: Random) -> None:
    world.membership.expel_member_or_move_group()


async def _shift_clock(world: KafkaWorld, rng: Random) -> None:
    most = world.plan.nemesis.clock_jump_max_ms
    rng.choice(world.clocks).ahead_ms += rng.randrange(-most, most + 1)


async def _expire_producers(world: KafkaWorld, rng: Random) -> None:
    """Expire the producers whose last append is so old that all their late requests have arrived."""
    limits = world.plan.log_limits
    late_s = limits.append_timeout_s + 2 * limits.request_timeout_s + world.plan.broker_faults.late_max_s
    world.brokers.expire_producers(world.loop.time() - late_s)


async def _disconnect_for_rest(world: KafkaWorld, rng: Random) -> None:
    """Disconnect a broker for the rest of the run, unless one is disconnected already."""
    brokers = world.brokers
    leaders = [node for node in brokers.leaders() if node in brokers.nodes and node not in brokers.down]
    if world.stale_node is None and leaders:
        world.make_stale(rng.choice(leaders))


async def _load_groups(world: KafkaWorld, rng: Random) -> None:
    """For a while, group coordinators answer that they still load their share groups."""
    world.share_groups.loading = True
    await _sleep_while_faulty(world, rng.expovariate(1 / world.plan.nemesis.groups_load_for_s))
    world.share_groups.loading = False


async def _write_over_http(world: KafkaWorld, rng: Random) -> None:
    place = _choose_place(world, rng)
    if place is not None:
        process = world.processes[place]
        assert process is not None
        shard = {"shard": rng.randrange(len(world.brokers.partitions))}
        process.send_http("hand-overs", shard)


async def _elect_uncleanly(world: KafkaWorld, rng: Random) -> None:
    """Lose the newest records of a partition."""
    world.truncations.lose_newest_records(rng.randrange(len(world.brokers.partitions)), rng)


def make_faults(world: KafkaWorld, rng: Random) -> list[Coroutine[Any, Any, None]]:
    """Return an endless coroutine for each kind of fault in the plan."""
    plan = world.plan.nemesis
    kinds: tuple[tuple[float | None, FaultFactory], ...] = (
        (plan.crash_s, _crash_coordinator),
        (plan.stop_s, _stop_coordinator),
        (plan.pause_s, _pause_coordinator),
        (plan.part_s, _disconnect_coordinator),
        (plan.cut_off_s, _disconnect_broker),
        (plan.broker_dies_s, _kill_broker),
        (plan.leader_moves_s, _move_leader),
        (plan.shuffle_s, _shuffle_members),
        (plan.clock_jump_s, _shift_clock),
        (plan.producers_expire_s, _expire_producers),
        (plan.unclean_s, _elect_uncleanly),
        (plan.hold_s, _delay_appends),
        (plan.island_s, _isolate_broker_and_owner),
        (plan.stale_s, _disconnect_for_rest),
        (plan.groups_load_s, _load_groups),
        (plan.http_writes_s, _write_over_http),
    )
    return [
        _repeat_fault(world, mean_s, strike, Random(rng.getrandbits(64)))
        for mean_s, strike in kinds
        if mean_s is not None
    ]


async def _repeat_fault(world: KafkaWorld, mean_s: float, strike: FaultFactory, rng: Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / mean_s))
        if world.faulty:
            await strike(world, rng)
