"""FairQueue runs one unit of work in each iteration of the event loop; client addresses take turns."""

import asyncio
from functools import partial

import pytest

from coordinator.process.fair_queue import FairQueue, address_network


def test_client_addresses_take_turns() -> None:
    async def run_test() -> list[str]:
        queue, done = FairQueue(), list[str]()
        for number in range(3):
            queue.add("hostile", partial(done.append, f"hostile {number}"))
        queue.add("broker", partial(done.append, "broker"))
        for _ in range(4):
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run_test()) == ["hostile 0", "broker", "hostile 1", "hostile 2"]


async def test_one_unit_runs_in_each_event_loop_iteration() -> None:
    queue, done = FairQueue(), list[int]()
    for number in range(5):
        queue.add("a", partial(done.append, number))
    for iteration in range(5):
        assert done == list(range(iteration))
        await asyncio.sleep(0)
    assert done == list(range(5))


def raise_defect() -> None:
    raise ValueError


async def test_failed_unit_does_not_stop_the_fair_queue() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    queue, done = FairQueue(), list[str]()
    queue.add("a", raise_defect)
    queue.add("a", partial(done.append, "next"))
    for _ in range(2):
        await asyncio.sleep(0)
    assert done == ["next"]


async def test_cancelled_turn_does_not_stop_the_queue() -> None:
    queue = FairQueue()
    first, second = (asyncio.create_task(queue.wait_for_turn("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        (("192.0.2.7", 40_000), "192.0.2.7"),
        (("2001:db8:0:1:ffff::7", 40_000, 0, 0), "2001:db8:0:1::"),
        (("fe80::1%eth0", 40_000, 0, 2), "fe80::"),
        (("::ffff:192.0.2.7", 40_000, 0, 0), "192.0.2.7"),
        (None, ""),
    ],
)
def test_address_network_is_an_ipv4_address_or_a_64_bit_prefix(peer: object, network: str) -> None:
    assert address_network(peer) == network
