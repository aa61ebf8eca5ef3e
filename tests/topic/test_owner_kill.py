"""Kill the only coordinator of a state topic (ownership=static), and start it again."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client import FencedLeaderEpoch, ShareCoordinatorClient, StateBatch
from tests.builders import ACKNOWLEDGED, KEY
from tests.kafka import BuiltInRig
from tests.kafka.coordinator import CoordinatorProcess
from tests.topic.logs import new_topic

pytestmark = pytest.mark.broker

KEYS = [KEY._replace(partition=number) for number in range(12)]


async def write_states(port: int, turn: int) -> None:
    """Write as a new leader. The acknowledged writes and the leader epochs of earlier turns must be there."""
    leader_epoch = turn + 1
    async with ShareCoordinatorClient(f"127.0.0.1:{port}") as client:
        for key in KEYS:
            if turn == 0:
                await client.initialize(key, state_epoch=1, start_offset=0)
            else:
                with pytest.raises(FencedLeaderEpoch):
                    await client.read(key, leader_epoch - 2)
            before = await client.read(key, leader_epoch)
            assert before.batches == ([StateBatch(0, turn - 1, ACKNOWLEDGED, 1)] if turn else [])
            batches = [StateBatch(turn, turn, ACKNOWLEDGED, 1)]
            await client.write(key, state_epoch=1, leader_epoch=leader_epoch, start_offset=0, batches=batches)


def test_killed_owner_has_all_acknowledged_writes_after_its_restart(
    built_in: BuiltInRig, tmp_path: Path
) -> None:
    settings = {
        "bootstrap.servers": built_in.broker.bootstrap,
        "share.coordinator.state.topic.name": new_topic("killed"),
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
    with CoordinatorProcess(tmp_path, log="kafka", settings=settings) as coordinator:
        asyncio.run(write_states(coordinator.port, turn=0))
        coordinator.kill()
        coordinator.start()
        asyncio.run(write_states(coordinator.port, turn=1))
