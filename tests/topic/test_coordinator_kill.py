"""Kill a coordinator with state in a topic under load (`kill -9`): no acknowledged write is lost."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coordinator.client import (
    ONCE,
    ConnectionLimits,
    CoordinatorUnavailable,
    ReadState,
    ShareCoordinatorClient,
    SharePartitionKey,
    StateBatch,
)
from tests.builders import ACKNOWLEDGED, TOPIC_ID
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.ports import free_ports
from tests.kafka.rig import BuiltInRig
from tests.topic.logs import new_topic

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SEED = 9
ROUNDS = 6
BOOKS = 20
CLIENTS = 5
WRITES = 600
# A long timeout in seconds, because other tests may slow the broker down.
PATIENCE_S = 60


class ExpectedState:
    """The expected state of a share-partition whose offsets are acknowledged one after another."""

    def __init__(self, number: int) -> None:
        self.key = SharePartitionKey(f"group-{number}", TOPIC_ID, number)
        self.asked = self.acknowledged = 0
        self.initialized = False

    async def send_next_request(self, client: ShareCoordinatorClient) -> None:
        if not self.initialized:
            await client.initialize(self.key, 1, 0)
            self.initialized = True
            return
        offset = self.acknowledged
        self.asked = offset + 1
        batches = [StateBatch(offset, offset, ACKNOWLEDGED, 1)]
        await client.write(self.key, state_epoch=1, leader_epoch=0, start_offset=0, batches=batches)
        self.acknowledged = offset + 1

    def check(self, state: ReadState) -> None:
        """Check that acknowledged offsets form one batch. The offset in flight may be included."""
        assert state.state_epoch == 1
        ends = [batch.last_offset + 1 for batch in state.batches] or [0]
        assert len(ends) == 1
        assert self.acknowledged <= ends[0] <= self.asked
        self.acknowledged = self.asked = ends[0]


class KilledCoordinator:
    """A coordinator that is killed and started repeatedly."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        port, http_port = free_ports(2)
        self.books = [ExpectedState(number) for number in range(BOOKS)]
        self.address = ("127.0.0.1", port)
        self.coordinator = CoordinatorProcess(
            directory,
            port=port,
            http_port=http_port,
            log="kafka",
            settings={
                "bootstrap.servers": bootstrap,
                "share.coordinator.state.topic.name": topic,
                "share.coordinator.write.timeout.ms": str(1000 * PATIENCE_S),
                "request.max.age.ms": str(1000 * PATIENCE_S),
            },
        )
        self._killed = False

    async def kill_and_restart_repeatedly(self, rng: random.Random) -> None:
        for _ in range(ROUNDS):
            await asyncio.to_thread(self.coordinator.start)
            await self._write_until_killed(rng)
        await asyncio.to_thread(self.coordinator.start)
        async with AsyncExitStack() as stack:
            await self._check_states(await self._open_clients(stack))
        await asyncio.to_thread(self.coordinator.stop)

    async def _open_clients(self, stack: AsyncExitStack) -> list[ShareCoordinatorClient]:
        limits = ConnectionLimits(request_s=PATIENCE_S)
        return [
            await stack.enter_async_context(
                ShareCoordinatorClient(self.address, direct=True, retry=ONCE, limits=limits)
            )
            for _ in range(CLIENTS)
        ]

    async def _check_states(self, clients: list[ShareCoordinatorClient]) -> None:
        for number, book in enumerate(self.books):
            if book.initialized:
                book.check(await clients[number % CLIENTS].read(book.key, 0))

    async def _write_until_killed(self, rng: random.Random) -> None:
        self._killed = False
        goal = self.count_written() + rng.randint(1, WRITES)
        async with AsyncExitStack() as stack:
            clients = await self._open_clients(stack)
            await self._check_states(clients)
            async with asyncio.TaskGroup() as writers:
                for number, book in enumerate(self.books):
                    writers.create_task(self._keep_writing(clients[number % CLIENTS], book, goal))

    async def _keep_writing(self, client: ShareCoordinatorClient, book: ExpectedState, goal: int) -> None:
        try:
            while True:
                await book.send_next_request(client)
                if self.count_written() >= goal and not self._killed:
                    self._killed = True
                    self.coordinator.kill()
        except CoordinatorUnavailable:
            # The error is expected only after the kill.
            if not self._killed:
                raise

    def count_written(self) -> int:
        return sum(book.acknowledged for book in self.books)


@pytest.mark.timeout(600)
def test_no_acknowledged_write_is_lost_by_a_kill(built_in: BuiltInRig, tmp_path: Path) -> None:
    lives = KilledCoordinator(built_in.broker.bootstrap, new_topic("kills"), tmp_path)
    try:
        asyncio.run(lives.kill_and_restart_repeatedly(random.Random(SEED)))
    finally:
        lives.coordinator.kill()
    log = lives.coordinator.process.log.read_text()
    assert "ERROR" not in log, log[-3000:]
    assert lives.count_written() > ROUNDS * WRITES / 5
