"""Test how long shards are unavailable when a coordinator is killed and restarted.

The test runs with and without group.instance.id.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

from coordinator.client import (
    ONCE,
    ShareCoordinatorClient,
    ShareCoordinatorError,
    SharePartitionKey,
    StateBatch,
)
from tests.builders import ACKNOWLEDGED, TOPIC_ID
from tests.kafka import wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.ports import free_ports
from tests.kafka.rig import BuiltInRig
from tests.topic.logs import new_topic

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEYS = [SharePartitionKey(f"group-{number}", TOPIC_ID, number) for number in range(20)]
# With group.instance.id, no step waits for the session timeout. So the timeout is long, and a restart within
# half of the timeout proves that no step waited, even on a busy machine.
SESSION_S = {True: 120.0, False: 30.0}


class CoordinatorPair:
    """Two coordinators that share the shards of a topic."""

    def __init__(self, bootstrap: str, directory: Path, stack: ExitStack, *, named: bool) -> None:
        topic = new_topic("in-place")
        self.coordinators = []
        for place in ("first", "second"):
            (directory / place).mkdir()
            port, http_port = free_ports(2)
            coordinator = CoordinatorProcess(
                directory / place,
                port=port,
                http_port=http_port,
                log="kafka",
                settings={
                    "bootstrap.servers": bootstrap,
                    "share.coordinator.state.topic.name": topic,
                    "share.coordinator.state.topic.replication.factor": "1",
                    "ownership": "group",
                    "group.id": topic,
                    "group.instance.id": place if named else "",
                    "session.timeout.ms": str(int(1000 * SESSION_S[named])),
                },
            )
            stack.callback(coordinator.kill)
            coordinator.start()
            self.coordinators.append(coordinator)

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{coordinator.port}" for coordinator in self.coordinators)


@pytest.fixture(params=[True, False], ids=["named", "nameless"])
def coordinator_pair(
    request: pytest.FixtureRequest, built_in: BuiltInRig, tmp_path: Path
) -> Iterator[CoordinatorPair]:
    with ExitStack() as stack:
        yield CoordinatorPair(built_in.broker.bootstrap, tmp_path, stack, named=request.param)


async def write_all_share_partitions(client: ShareCoordinatorClient, user_offset: int) -> None:
    """Write to every share-partition. Retry until each write succeeds."""

    async def is_written(key: SharePartitionKey) -> bool:
        batches = [StateBatch(user_offset, user_offset, ACKNOWLEDGED, 1)]
        try:
            if user_offset == 0:
                await client.initialize(key, 1, 0)
            await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=batches)
        except ShareCoordinatorError:
            return False
        return True

    async def write(key: SharePartitionKey) -> None:
        while not await is_written(key):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async with asyncio.timeout(240), asyncio.TaskGroup() as group:
        for key in KEYS:
            group.create_task(write(key))


@pytest.mark.timeout(600)
async def test_shards_are_available_again_after_a_restart_in_place(
    coordinator_pair: CoordinatorPair, request: pytest.FixtureRequest
) -> None:
    named = "nameless" not in request.node.name
    restarted = coordinator_pair.coordinators[0]
    async with ShareCoordinatorClient(coordinator_pair.addresses, retry=ONCE) as client:
        await write_all_share_partitions(client, 0)
        await asyncio.to_thread(restarted.kill)
        began_s = monotonic()
        await asyncio.to_thread(restarted.process.start)
        writing = asyncio.create_task(write_all_share_partitions(client, 1))
        await asyncio.to_thread(
            wait_until,
            lambda: restarted.process.count_logged("share coordinator on"),
            seconds=120,
            what="it listens again",
        )
        started_s = monotonic() - began_s
        await writing
        took_s = monotonic() - began_s
        print(f"named={named}: unavailable for {took_s:.2f} s, of which its start took {started_s:.2f} s")
        if named:
            assert took_s - started_s < SESSION_S[named] / 2
    # Shards may still move, so this client retries.
    async with ShareCoordinatorClient(coordinator_pair.addresses) as patient:
        for key in KEYS:
            state = await patient.read(key, 0)
            assert [(batch.first_offset, batch.last_offset) for batch in state.batches] == [(0, 1)]
