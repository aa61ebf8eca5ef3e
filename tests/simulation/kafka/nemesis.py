"""Inject faults into coordinators, brokers, and the network between them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from tests.simulation.kafka.plan import PAUSE_FACTOR_MAX, KafkaNemesis
from tests.simulation.kafka.world import KafkaWorld
from tests.simulation.nemesis import (
    FaultKind,
    choose_free_place,
    crash_coordinator,
    shift_clock,
    stop_coordinator,
)


async def _pause_coordinator(world: KafkaWorld, rng: Random) -> None:
    """Pause a coordinator, as SIGSTOP does, and continue it later."""
    place = choose_free_place(world, rng)
    if place is not None:
        async with world.process_locks[place]:
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
    """Disconnect a coordinator from some brokers, from the group coordinator, or from both."""
    place = choose_free_place(world, rng)
    if place is None:
        return
    process = world.processes[place]
    assert process is not None
    nodes = list(world.brokers.nodes)
    links = {(process.name, node) for node in rng.sample(nodes, rng.randrange(len(nodes) + 1))}
    members = {process.name} if not links or rng.random() < 0.5 else set()
    await _block_connections(world, links, members, rng.expovariate(1 / world.plan.nemesis.disconnected_s))


async def _block_connections(
    world: KafkaWorld, links: set[tuple[str, int]], members: set[str], seconds: float
) -> None:
    world.brokers.blocked |= links
    world.membership.blocked |= members
    await _sleep_while_faulty(world, seconds)
    world.brokers.blocked -= links
    world.membership.blocked -= members


async def _sleep_while_faulty(world: KafkaWorld, seconds: float) -> None:
    until_s = world.loop.time() + seconds
    while world.faulty and world.loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def _disconnect_broker(world: KafkaWorld, rng: Random) -> None:
    """Disconnect a broker from the other brokers.

    In most cases, the owner of a shard can reach only this broker.
    """
    brokers = world.brokers
    connected = [node for node in brokers.nodes if node not in brokers.down and node not in brokers.views]
    number = rng.randrange(len(brokers.partitions))
    node = brokers.partitions[number].leader
    if len(connected) < 2 or node not in connected:
        return
    world.disconnect_broker(node)
    place = world.owner_place(number)
    if place is None or world.processes[place] is None:
        place = choose_free_place(world, rng)
    links: set[tuple[str, int]] = set()
    members: set[str] = set()
    if place is not None and rng.random() < 0.8:
        process = world.processes[place]
        assert process is not None
        links = {(process.name, other) for other in brokers.nodes if other != node}
        # Usually the owner cannot reach the group coordinator either, so it detects late that another
        # process owns the shard.
        members = {process.name} if rng.random() < 0.7 else set()
        # If writers cannot connect, the owner appends nothing, so it detects late that it is fenced.
        world.unreachable_places |= {place} if rng.random() < world.plan.nemesis.unreachable_rate else set()
    await _block_connections(world, links, members, rng.expovariate(1 / world.plan.nemesis.broker_isolated_s))
    world.unreachable_places.clear()
    world.reconnect_broker(node)


async def _isolate_broker_and_owner(world: KafkaWorld, rng: Random) -> None:
    """Isolate a broker together with one coordinator, so that they can reach only each other.

    In most cases, this broker is the group coordinator, and the isolated coordinator is at first the only
    member of the group.
    """
    brokers = world.brokers
    places = [
        place
        for place, lock in enumerate(world.process_locks)
        if world.processes[place] and not lock.locked()
    ]
    if not places:
        return
    place = rng.choice(places)
    async with AsyncExitStack() as members, world.process_locks[place]:
        isolated = world.processes[place]
        assert isolated is not None
        if rng.random() < 0.7:
            for other in set(places) - {place}:
                await members.enter_async_context(_keep_stopped(world, other))
            await _sleep_while_faulty(world, 3 * world.plan.membership.session_s)
        number = rng.randrange(len(brokers.partitions))
        node = brokers.partitions[number].leader
        if node not in brokers.nodes or node in brokers.down or node in brokers.views or not world.faulty:
            return
        if rng.random() < 0.9:
            world.membership.move_group_to(node)
        world.disconnect_broker(node)
        world.unreachable_places |= {place} if rng.random() < world.plan.nemesis.unreachable_rate else set()
        await members.aclose()
        links: set[tuple[str, int]] = set()
        until_s = world.loop.time() + rng.expovariate(1 / world.plan.nemesis.owner_isolated_s)
        while world.faulty and world.loop.time() < until_s:
            # Repeat this, because other processes may start in the meantime.
            links |= {
                (process.name, other)
                for process in world.alive()
                for other in brokers.nodes
                if (process is isolated) != (other == node)
            }
            brokers.blocked |= links
            await asyncio.sleep(0.05)
        brokers.blocked -= links
        world.unreachable_places.clear()
        world.reconnect_broker(node)


@asynccontextmanager
async def _keep_stopped(world: KafkaWorld, place: int) -> AsyncIterator[None]:
    """Keep a coordinator down while the context is open."""
    async with world.process_locks[place]:
        await world.crash(place)
        try:
            yield
        finally:
            await world.start(place)


async def _delay_appends(world: KafkaWorld, rng: Random) -> None:
    """Delay the appends of a coordinator, and sometimes disconnect it from the group coordinator."""
    place = choose_free_place(world, rng)
    if place is None:
        return
    process = world.processes[place]
    assert process is not None
    plan = world.plan
    seconds = min(rng.expovariate(1 / plan.nemesis.appends_delayed_s), plan.broker_faults.late_max_s)
    world.brokers.held[process.name] = world.loop.time() + seconds
    members = {process.name} if rng.random() < plan.nemesis.delayed_without_group_rate else set()
    await _block_connections(world, set(), members, seconds)


async def _kill_broker(world: KafkaWorld, rng: Random) -> None:
    brokers = world.brokers
    node = rng.choice(brokers.nodes)
    if node not in brokers.down:
        brokers.kill(node)
        await _sleep_while_faulty(world, rng.expovariate(1 / world.plan.nemesis.broker_down_s))
        brokers.restart_node(node)


async def _elect_another_leader(world: KafkaWorld, rng: Random) -> None:
    world.brokers.elect_another_leader(rng.randrange(len(world.brokers.partitions)))


async def _expel_member_or_move_group(world: KafkaWorld, rng: Random) -> None:
    world.membership.expel_member_or_move_group()


async def _expire_producers(world: KafkaWorld, rng: Random) -> None:
    """Expire the state of producers that are idle for longer than any request can be delayed."""
    limits = world.plan.log_limits
    late_s = limits.append_timeout_s + 2 * limits.request_timeout_s + world.plan.broker_faults.late_max_s
    world.brokers.expire_producers(world.loop.time() - late_s)


async def _disconnect_broker_until_the_end(world: KafkaWorld, rng: Random) -> None:
    """Disconnect a broker for the rest of the simulation, unless a broker is disconnected already."""
    brokers = world.brokers
    leaders = [node for node in brokers.leaders() if node in brokers.nodes and node not in brokers.down]
    if world.stale_node is None and leaders:
        world.make_stale(rng.choice(leaders))


async def _simulate_loading_groups(world: KafkaWorld, rng: Random) -> None:
    """For a while, let group coordinators answer that they are loading their share groups."""
    world.share_groups.loading = True
    await _sleep_while_faulty(world, rng.expovariate(1 / world.plan.nemesis.groups_loaded_after_s))
    world.share_groups.loading = False


async def _hand_over_shard(world: KafkaWorld, rng: Random) -> None:
    """Send a request to hand a shard over to the HTTP API of a coordinator."""
    place = choose_free_place(world, rng)
    if place is not None:
        process = world.processes[place]
        assert process is not None
        shard = {"shard": rng.randrange(len(world.brokers.partitions))}
        process.send_http("hand-overs", shard)


async def _elect_uncleanly(world: KafkaWorld, rng: Random) -> None:
    """Elect a leader that lacks the newest records of a state partition."""
    world.truncations.lose_newest_records(rng.randrange(len(world.brokers.partitions)), rng)


def list_faults(plan: KafkaNemesis) -> Sequence[FaultKind]:
    return (
        (plan.crash_s, crash_coordinator),
        (plan.stop_s, stop_coordinator),
        (plan.pause_s, _pause_coordinator),
        (plan.disconnect_s, _disconnect_coordinator),
        (plan.isolate_broker_s, _disconnect_broker),
        (plan.broker_dies_s, _kill_broker),
        (plan.leader_moves_s, _elect_another_leader),
        (plan.shuffle_s, _expel_member_or_move_group),
        (plan.clock_jump_s, shift_clock),
        (plan.producers_expire_s, _expire_producers),
        (plan.unclean_s, _elect_uncleanly),
        (plan.delay_appends_s, _delay_appends),
        (plan.isolate_owner_s, _isolate_broker_and_owner),
        (plan.isolate_for_rest_s, _disconnect_broker_until_the_end),
        (plan.groups_load_s, _simulate_loading_groups),
        (plan.hand_over_s, _hand_over_shard),
    )
