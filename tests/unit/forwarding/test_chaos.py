"""Random requests to random coordinators while shards move and the network is faulty.

Each request gets one response in time. An acknowledged write is present at the end. A fenced leader epoch
stays fenced.
"""

import asyncio
from random import Random
from typing import Any

import pytest

from coordinator.serve.service import INITIALIZE, READ, WRITE
from protocol.errors import ErrorCode
from tests.builders import ACKNOWLEDGED, initialize, read, unpack_batches, write
from tests.simulation.pipes import NetFaults
from tests.unit.forwarding.coordinator_group import (
    STATE_PARTITIONS,
    ForwardingGroup,
    run_scene,
    shard_partition,
)
from tests.unit.forwarding.test_limits import LIMITS

SECONDS = 60.0
BROKERS = 8
# Errors that a broker retries.
PASSES = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
ANSWER_WITHIN_S = LIMITS.request_age_max_s + 1.0

BAD_NETWORK = NetFaults(
    jitter_s=0.01, split_rate=0.1, cut_rate=0.3, half_open_rate=0.1, cut_after_bytes=3_000, stall_rate=0.005
)


class Leader:
    """A leader of one share-partition in each shard, which writes increasing offsets."""

    def __init__(self, it: ForwardingGroup, number: int, rng: Random) -> None:
        self.it = it
        self.rng = rng
        self.partitions = [shard_partition(shard, number) for shard in range(STATE_PARTITIONS)]
        self.stored: dict[int, list[int]] = {partition: [] for partition in self.partitions}
        self.answered = 0

    async def ask(self, rpc: Any, *parts: Any) -> list[Any]:
        """Send a request to a random coordinator; assert one result for each part within the time limit."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        results: list[Any] = await asyncio.wait_for(self.it.nodes[self.rng.randrange(3)].ask(rpc, *parts), 60)
        assert [result.partition for result in results] == [part.partition for part in parts]
        assert loop.time() - began_s < ANSWER_WITHIN_S
        assert {result.error_code for result in results} <= {ErrorCode.NONE, *PASSES}
        self.answered += 1
        return results

    async def retry_until_done(self, rpc: Any, parts: list[Any]) -> list[Any]:
        """Retry the parts with retriable errors until each part has succeeded; return the results in
        order."""
        done: dict[int, Any] = {}
        while left := [part for part in parts if part.partition not in done]:
            for result in await self.ask(rpc, *left):
                if result.error_code == ErrorCode.NONE:
                    done[result.partition] = result
            await asyncio.sleep(self.rng.random())
        return [done[part.partition] for part in parts]

    async def write_offsets(self) -> None:
        """Initialize and read the share-partitions, then write until the time is over."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SECONDS
        await self.retry_until_done(
            INITIALIZE, [initialize(1, partition=partition) for partition in self.partitions]
        )
        await self.retry_until_done(READ, [read(1, partition=partition) for partition in self.partitions])
        offset = 0
        while loop.time() < until_s:
            chosen = self.rng.sample(self.partitions, self.rng.randint(1, STATE_PARTITIONS))
            parts = [
                # Use every second offset, so that batches do not merge.
                write((offset, offset, ACKNOWLEDGED, 1), state_epoch=1, leader_epoch=1, partition=partition)
                for partition in chosen
            ]
            for result in await self.ask(WRITE, *parts):
                if result.error_code == ErrorCode.NONE:
                    self.stored[result.partition].append(offset)
            offset += 2
            await asyncio.sleep(self.rng.random() / 2)

    async def check(self) -> None:
        """Read all share-partitions; assert that each acknowledged offset is present."""
        for state in await self.retry_until_done(READ, [read(1, partition=p) for p in self.partitions]):
            found = {first for first, _, _, _ in unpack_batches(state.state_batches)}
            assert set(self.stored[state.partition]) <= found


async def move_shards(it: ForwardingGroup, rng: Random) -> None:
    """Change the assignment at random intervals; coordinators learn of it late, or lose it for some time."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / 4.0))
        assignment = it.assignment(*(rng.randrange(-1, 3) if rng.random() < 0.3 else n % 3 for n in range(6)))
        for one in rng.sample(it.nodes, 3):
            one.apply_assignment(assignment)
            await asyncio.sleep(rng.random())
        if rng.random() < 0.3:
            lost = rng.choice(it.nodes)
            lost.forwarder.set_assignment(None)
        relay = rng.choice(it.nodes).relay
        if rng.random() < 0.3:
            relay.abort_all()
            await asyncio.sleep(2 * rng.random())
            relay.open()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_request_is_answered_and_no_stored_write_is_lost(seed: int) -> None:
    async def scenario(it: ForwardingGroup) -> None:
        rng = Random(seed)
        leaders = [Leader(it, number, Random(rng.random())) for number in range(BROKERS)]
        moving = asyncio.ensure_future(move_shards(it, rng))
        await asyncio.gather(*(leader.write_offsets() for leader in leaders))
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        it.publish_assignment(2, 2, 0, 0, 1, 1)
        await it.wait_until_served()
        await asyncio.gather(*(leader.check() for leader in leaders))
        assert sum(leader.answered for leader in leaders) > 300
        assert sum(len(stored) for leader in leaders for stored in leader.stored.values()) > 1_000
        # The test must have reached forwarding, wrong owners and network errors.
        counted = [one.forwarded("WriteShareGroupState", code) for one in it.nodes for code in ("NONE",)]
        assert min(counted) > 20
        for code in ("NOT_COORDINATOR", "NETWORK_EXCEPTION"):
            assert sum(one.forwarded("WriteShareGroupState", code) for one in it.nodes) > 0
        assert [one.forwarder.held for one in it.nodes] == [0, 0, 0]

    run_scene(scenario, faults=BAD_NETWORK, seed=seed)
