"""Simulate users of the project's client library, `coordinator.client`.

The library makes one attempt for each call, so that one operation of the history is one request. The library
shares connections between calls, looks up coordinators, and has its own error codes for a missing response.
"""

import asyncio
from random import Random
from typing import Any

from coordinator.client import ONCE, ShareCoordinatorClient
from coordinator.client.rpcs import make_request, results_by_key
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey
from tests.simulation.history import INITIALIZE, READ, SUMMARY, WRITE, Violation
from tests.simulation.rpc_parts import RPCS, InitializePart, ReadPart, SummaryPart, WritePart
from tests.simulation.workloads import SharedClientState


class LibraryUser:
    """A user of the client library with several concurrent calls of one client object."""

    def __init__(self, name: str, cluster: SharedClientState, rng: Random) -> None:
        self.name = name
        self._cluster = cluster
        self._rng = rng
        self._calls = 0
        self._client = ShareCoordinatorClient(
            cluster.clients.bootstrap_servers, retry=ONCE, chance=rng.random
        )

    async def run(self) -> None:
        """Call the library until cancelled."""
        async with asyncio.TaskGroup() as callers:
            for _ in range(self._cluster.load.library_calls):
                callers.create_task(self._call_until_cancelled())

    async def _call_until_cancelled(self) -> None:
        cluster = self._cluster
        while True:
            await cluster.pause_randomly(self._rng, cluster.load.think_s + 0.05)
            await cluster.wait_for_permission(self.name)
            try:
                await self._send_random_call()
            finally:
                cluster.calls_in_progress -= 1

    async def _send_random_call(self) -> None:
        cluster, rng, history = self._cluster, self._rng, self._cluster.clients.history
        group_id = rng.choice(cluster.keys).group_id
        keys = [key for key in cluster.keys if key.group_id == group_id]
        kind = INITIALIZE if rng.random() < 0.03 else rng.choice((READ, READ, WRITE, WRITE, WRITE, SUMMARY))
        units: dict[SharePartitionKey, list[Any]] = {}
        for key in rng.choices(keys, k=rng.choice((1, 1, 2, 3))):
            units.setdefault(key, []).append(self._make_random_part(kind, key))
        self._calls += 1
        # Calls may overtake each other, so each call has its own client name in the history.
        name = f"{self.name}, call {self._calls}"
        now_s = cluster.clients.loop.time()
        # The library connects before it sends a request, so a process that starts later may receive it.
        ops = [history.record_request(now_s, name, kind, key, unit, held=True) for key, unit in units.items()]
        request = make_request(RPCS[kind], group_id, units)
        response = await self._client.send(request)
        results = results_by_key(group_id, response)
        if results.keys() != units.keys():
            raise Violation(f"the library returned {response} for {request}")
        for op in ops:
            history.record_response(cluster.clients.loop.time(), op, results[op.key])
            cluster.count_final_response(self.name, op)

    def _make_random_part(self, kind: str, key: SharePartitionKey) -> Any:
        rng, cluster = self._rng, self._cluster
        leader_epoch = cluster.leader_epochs[key]
        state_epoch = cluster.state_epochs.get(key.group_id, 0)
        if kind == READ:
            return ReadPart(key.partition, leader_epoch + rng.choice((0, 0, 0, 1)))
        if kind == SUMMARY:
            return SummaryPart(key.partition, 0)
        if kind == INITIALIZE:
            return InitializePart(key.partition, max(0, state_epoch - rng.randrange(2)), -1)
        cluster.hostile_count += 1
        first = rng.randrange(60)
        last = first + rng.randrange(8)
        batch = StateBatch(first, last, rng.choice((0, 2, 4)), cluster.hostile_count % 32_000)
        return WritePart(
            key.partition,
            state_epoch,
            max(0, leader_epoch - rng.randrange(2)),
            rng.choice((-1, 0, rng.randrange(20))),
            rng.choice((-1, 0, rng.randrange(20))),
            pack([batch]),
        )
