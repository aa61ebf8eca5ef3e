"""Inject faults into the coordinator's process: crashes, stops, blocked networks, full disks."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tests.simulation.world import World

FaultFactory = Callable[[World, Random], Coroutine[Any, Any, None]]


async def _crash_coordinator(world: World, rng: Random) -> None:
    async with world.life:
        again = True
        while again and world.process is not None and world.faulty:
            await world.crash()
            await asyncio.sleep(rng.expovariate(1 / world.plan.nemesis.down_s))
            await world.start()
            again = rng.random() < world.plan.nemesis.crash_again_rate
            await asyncio.sleep(again * rng.expovariate(2.0))


async def _stop_coordinator(world: World, rng: Random) -> None:
    async with world.life:
        if world.process is not None and world.faulty:
            await world.stop()
            await asyncio.sleep(rng.expovariate(1 / world.plan.nemesis.down_s))
            await world.start()


async def _block_network(world: World, rng: Random) -> None:
    mean_s = world.plan.nemesis.clogged_s
    world.network.block_traffic(min(rng.expovariate(1 / mean_s), 8 * mean_s))


async def _suspend_machine(world: World, rng: Random) -> None:
    mean_s = world.plan.nemesis.suspended_s
    world.loop.skip(min(rng.expovariate(1 / mean_s), 8 * mean_s))


async def _shift_clock(world: World, rng: Random) -> None:
    most = world.plan.nemesis.clock_jump_max_ms
    world.clock.ahead_ms += rng.randrange(-most, most + 1)


async def _fill_storage(world: World, rng: Random) -> None:
    world.storage.set_full(True)
    await asyncio.sleep(rng.expovariate(1 / world.plan.nemesis.full_s))
    world.storage.set_full(False)


def make_faults(world: World, rng: Random) -> list[Coroutine[Any, Any, None]]:
    """Return a coroutine for each kind of fault in the plan; they run until cancelled."""
    plan = world.plan.nemesis
    kinds: tuple[tuple[float | None, FaultFactory], ...] = (
        (plan.crash_s, _crash_coordinator),
        (plan.stop_s, _stop_coordinator),
        (plan.clog_s, _block_network),
        (plan.suspend_s, _suspend_machine),
        (plan.clock_jump_s, _shift_clock),
        (plan.fill_s, _fill_storage),
    )
    # Each kind of fault has its own random generator, so that a new kind does not change the other kinds.
    return [
        _repeat_fault(world, mean_s, strike, Random(rng.getrandbits(64)))
        for mean_s, strike in kinds
        if mean_s is not None
    ]


async def _repeat_fault(world: World, mean_s: float, strike: FaultFactory, rng: Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / mean_s))
        if world.faulty:
            await strike(world, rng)
