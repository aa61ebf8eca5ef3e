"""Kill the coordinator repeatedly under concurrent writers, and check that no acknowledged write is lost.

Two coordinators run in parallel, one with each value of `journal.sync`. The page cache survives the death of
a process, so both values must keep the same guarantee. Some kills happen during a start.
"""

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
from coordinator.log.journal.inspect import verify_journal
from tests.builders import ACKNOWLEDGED, AVAILABLE, TOPIC_ID
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.ports import free_ports

pytestmark = pytest.mark.e2e

SEED = 4242
ROUNDS = 8
SHARE_PARTITIONS = 24
CLIENTS = 6
# The coordinator is killed some milliseconds after at most this number of acknowledged writes.
WRITES_MAX = 1_500
LEADER_EPOCH = 3
# Long timeouts, because a busy disk slows the coordinator down and this test does not check timeouts.
PATIENCE_S = 60
PATIENT = {
    "share.coordinator.write.timeout.ms": str(1000 * PATIENCE_S),
    "request.max.age.ms": str(1000 * PATIENCE_S),
}
# The segments are small, so that the journal creates new segments all the time.
SEGMENT_BYTES = 1 << 20

# Delivery count and delivery state of an offset; the greatest value wins.
Progress = tuple[int, int]


class ExpectedState:
    """The requested and the acknowledged writes of one share-partition."""

    def __init__(self, number: int) -> None:
        self.key = SharePartitionKey(f"group-{number}", TOPIC_ID, number)
        self.acknowledged = 0
        self.state_epoch = self.asked_state_epoch = 0
        self._reset_expectation(0)

    def _reset_expectation(self, start_offset: int) -> None:
        self.start_offset = self.asked_start_offset = start_offset
        self.next_offset = start_offset
        self.kept: dict[int, Progress] = {}
        self.asked: dict[int, Progress] = {}

    async def send_next_request(self, client: ShareCoordinatorClient, rng: random.Random) -> None:
        """Send one request, and record it when it is acknowledged."""
        if self.state_epoch == 0 or rng.random() < 0.005:
            self.asked_state_epoch = self.state_epoch + 1
            await client.initialize(self.key, self.asked_state_epoch, self.next_offset)
            self._record_initialization()
        else:
            await self._send_write(client, rng)
        self.acknowledged += 1

    async def _send_write(self, client: ShareCoordinatorClient, rng: random.Random) -> None:
        first_offset = self.next_offset
        if rng.random() < 0.3:
            first_offset = rng.randint(self.asked_start_offset, self.next_offset)
        offsets = range(first_offset, first_offset + rng.randint(1, 5))
        progress = (rng.randint(1, 5), rng.choice((AVAILABLE, ACKNOWLEDGED)))
        if rng.random() < 0.2:
            self.asked_start_offset = max(self.asked_start_offset, self.next_offset - 30)
        self.next_offset = max(self.next_offset, offsets.stop)
        for offset in offsets:
            self.asked[offset] = max(self.asked.get(offset, progress), progress)
        start_offset = self.asked_start_offset
        await client.write(
            self.key,
            state_epoch=self.state_epoch,
            leader_epoch=LEADER_EPOCH,
            start_offset=start_offset,
            batches=[StateBatch(offsets[0], offsets[-1], progress[1], progress[0])],
        )
        self.start_offset = start_offset
        for offset in offsets:
            self.kept[offset] = max(self.kept.get(offset, progress), progress)

    def _record_initialization(self) -> None:
        self.state_epoch = self.asked_state_epoch
        self._reset_expectation(self.next_offset)

    def check(self, state: ReadState) -> None:
        """Check that the coordinator's state contains all acknowledged writes, and only requested writes."""
        if self.asked_state_epoch != self.state_epoch and state.state_epoch == self.asked_state_epoch:
            self._record_initialization()
        self.asked_state_epoch = self.state_epoch
        assert state.state_epoch == self.state_epoch
        assert self.start_offset <= state.start_offset <= self.asked_start_offset
        there = {
            offset: (batch.delivery_count, batch.delivery_state)
            for batch in state.batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for offset, progress in self.kept.items():
            if offset >= state.start_offset:
                assert there.get(offset, (0, 0)) >= progress, (
                    f"{self.key}: an acknowledged write of offset {offset} was lost"
                )
        for offset, progress in there.items():
            assert self.asked.get(offset, (0, 0)) >= progress, (
                f"{self.key}: no write requested this of {offset}"
            )
        self.start_offset = self.asked_start_offset = state.start_offset
        self.kept = {offset: there[offset] for offset in there}


class KilledCoordinator:
    """A coordinator that is killed and restarted, and its writers."""

    def __init__(self, directory: Path, sync: str, rng: random.Random) -> None:
        directory.mkdir()
        port, http_port = free_ports(2)
        self.rng = rng
        self.expected_states = [ExpectedState(number) for number in range(SHARE_PARTITIONS)]
        self.coordinator = CoordinatorProcess(
            directory,
            port=port,
            http_port=http_port,
            settings={"journal.sync": sync, "journal.segment.bytes": str(SEGMENT_BYTES), **PATIENT},
        )
        self._enough = asyncio.Event()
        self._acknowledged_max = 0

    async def kill_and_restart_repeatedly(self, rounds: int) -> None:
        """Kill and restart the coordinator `rounds` times, then check its state."""
        for _ in range(rounds):
            if self.rng.random() < 0.15:
                await self._kill_in_the_middle_of_a_start()
            await asyncio.to_thread(self.coordinator.start)
            await self._write_until_killed()
        await asyncio.to_thread(self.coordinator.start)
        async with AsyncExitStack() as stack:
            await self._check_states(await self._open_clients(stack))
        await asyncio.to_thread(self.coordinator.stop)

    async def _kill_in_the_middle_of_a_start(self) -> None:
        process = self.coordinator.process
        process.start()
        await asyncio.sleep(self.rng.uniform(0, 1.5))
        process.kill()

    async def _open_clients(self, stack: AsyncExitStack) -> list[ShareCoordinatorClient]:
        address = ("127.0.0.1", self.coordinator.port)
        return [
            await stack.enter_async_context(
                ShareCoordinatorClient(
                    address, direct=True, retry=ONCE, limits=ConnectionLimits(request_s=PATIENCE_S)
                )
            )
            for _ in range(CLIENTS)
        ]

    async def _check_states(self, clients: list[ShareCoordinatorClient]) -> None:
        for number, expected in enumerate(self.expected_states):
            if expected.acknowledged:
                expected.check(await clients[number % CLIENTS].read(expected.key, LEADER_EPOCH))

    async def _write_until_killed(self) -> None:
        async with AsyncExitStack() as stack:
            clients = await self._open_clients(stack)
            await self._check_states(clients)
            self._enough.clear()
            self._acknowledged_max = self._count_acknowledged() + self.rng.randint(1, WRITES_MAX)
            async with asyncio.TaskGroup() as writers:
                for number, expected in enumerate(self.expected_states):
                    writers.create_task(self._keep_writing(clients[number % CLIENTS], expected))
                await self._enough.wait()
                # Delay the kill, so that it does not always follow a response.
                await asyncio.sleep(self.rng.uniform(0, 0.01))
                self.coordinator.kill()

    async def _keep_writing(self, client: ShareCoordinatorClient, expected: ExpectedState) -> None:
        try:
            while True:
                await expected.send_next_request(client, self.rng)
                if self._count_acknowledged() >= self._acknowledged_max:
                    self._enough.set()
        except CoordinatorUnavailable:
            # The coordinator must not fail before the kill.
            if not self._enough.is_set():
                raise

    def _count_acknowledged(self) -> int:
        return sum(state.acknowledged for state in self.expected_states)


async def run_concurrently(runs: list[KilledCoordinator]) -> None:
    """Kill and restart each coordinator ROUNDS times."""
    try:
        async with asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(run.kill_and_restart_repeatedly(ROUNDS))
    finally:
        for run in runs:
            run.coordinator.kill()


@pytest.mark.timeout(1800)
def test_kill_loses_no_acknowledged_write(tmp_path: Path) -> None:
    runs = [
        KilledCoordinator(tmp_path / sync, sync, random.Random(SEED + number))
        for number, sync in enumerate(("always", "os"))
    ]
    asyncio.run(run_concurrently(runs))
    for run in runs:
        assert "ERROR" not in run.coordinator.process.log.read_text()
        report = verify_journal(run.coordinator.data)
        assert report.damage is None
        assert sum(state.acknowledged for state in run.expected_states) > ROUNDS * WRITES_MAX / 5
