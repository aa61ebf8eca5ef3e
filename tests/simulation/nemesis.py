"""Inject the faults that all kinds of simulation have: crashes, stops, and steps of the wall clock."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from tests.simulation.world import World

AnyWorld = World[Any, Any]
Fault = Callable[[Any, Random], Coroutine[Any, Any, None]]
# The mean interval of a fault in seconds (None: never), and the function that injects the fault once.
FaultKind = tuple[float | None, Fault]


def choose_free_place(world: AnyWorld, rng: Random) -> int | None:
    """Return the index of a running coordinator that no other fault starts or ends, or None."""
    places = [
        place
        for place, process in enumerate(world.processes)
        if process is not None and not world.process_locks[place].locked()
    ]
    return rng.choice(places) if places and world.faulty else None


async def crash_coordinator(world: AnyWorld, rng: Random) -> None:
    """Crash a coordinator and start it again; sometimes crash it again soon after its start."""
    place, nemesis = choose_free_place(world, rng), world.plan.nemesis
    if place is None:
        return
    async with world.process_locks[place]:
        again = True
        while again and world.faulty:
            await world.crash(place)
            await asyncio.sleep(rng.expovariate(1 / nemesis.down_s))
            await world.start(place)
            again = nemesis.crash_again_rate > 0 and rng.random() < nemesis.crash_again_rate
            if again:
                await asyncio.sleep(rng.expovariate(2.0))


async def stop_coordinator(world: AnyWorld, rng: Random) -> None:
    """Stop a coordinator and start it again."""
    place = choose_free_place(world, rng)
    if place is not None:
        async with world.process_locks[place]:
            await world.stop(place)
            await asyncio.sleep(rng.expovariate(1 / world.plan.nemesis.down_s))
            await world.start(place)


async def shift_clock(world: AnyWorld, rng: Random) -> None:
    """Move the wall clock of a coordinator forward or back."""
    most = world.plan.nemesis.clock_jump_max_ms
    rng.choice(world.clocks).ahead_ms += rng.randrange(-most, most + 1)


def make_fault_coroutines(
    world: AnyWorld, rng: Random, kinds: Sequence[FaultKind]
) -> list[Coroutine[Any, Any, None]]:
    """Return a coroutine for each enabled kind of fault, which repeats the fault until cancelled."""
    # Each kind of fault has its own random generator, so that a new kind does not change the other faults.
    return [
        _repeat_fault(world, mean_s, inject, Random(rng.getrandbits(64)))
        for mean_s, inject in kinds
        if mean_s is not None
    ]


async def _repeat_fault(world: AnyWorld, mean_s: float, inject: Fault, rng: Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / mean_s))
        if world.faulty:
            await inject(world, rng)
