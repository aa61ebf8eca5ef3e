"""Test the `hand-over` command between two coordinators in a group of a real Kafka, under load."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from coordinator.client import ShareCoordinatorClient, SharePartitionKey, StateBatch
from tests.builders import ACKNOWLEDGED, TOPIC_ID
from tests.kafka import wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.processes import PROGRAM
from tests.kafka.rig import BuiltInRig
from tests.topic.groups import SINGLE_REPLICA, group_settings
from tests.topic.logs import new_topic
from tests.unit.admin.test_tokens import WRITING, write_token_file

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

SHARDS = 4
SHARE_PARTITIONS = 12
HAND_OVERS = 4


class CoordinatorPair:
    """Two coordinators in one group, and commands to one of them."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._token = write_token_file(directory, f"operator write {WRITING}\n")
        topic = new_topic("hand-over")
        self.coordinators = [
            self._start_coordinator(bootstrap, topic, directory / name) for name in ("one", "two")
        ]

    def _start_coordinator(self, bootstrap: str, topic: str, directory: Path) -> CoordinatorProcess:
        settings = {
            **group_settings(bootstrap, topic, SHARDS),
            **SINGLE_REPLICA,
            "http.token.file": str(self._token),
            "http.writes": "true",
        }
        return CoordinatorProcess(directory, log="kafka", settings=settings)

    def run_command(
        self, coordinator: CoordinatorProcess, *arguments: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command against a coordinator, as a user does."""
        url = f"http://127.0.0.1:{coordinator.http_port}"
        command = [PROGRAM, *arguments, "--url", url, "--token-file", str(self._token)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def shards_served_by(self, coordinator: CoordinatorProcess) -> set[int]:
        """Return the shards that a coordinator serves.

        This is polled, and a request needs much less processor time than the command `shards`.
        """
        url = f"http://127.0.0.1:{coordinator.http_port}/api/v1/shards"
        request = Request(url, headers={"Authorization": f"Bearer {WRITING}"})
        with urlopen(request, timeout=60) as response:
            shards: list[dict[str, Any]] = json.load(response)["items"]
        return {shard["state_partition"] for shard in shards if shard["status"] == "ACTIVE"}

    def is_shared_equally(self) -> bool:
        sizes = sorted(len(self.shards_served_by(each)) for each in self.coordinators)
        return sizes == [SHARDS // 2, SHARDS // 2]


@pytest.fixture
def pair(built_in: BuiltInRig, tmp_path: Path) -> Iterator[CoordinatorPair]:
    pair = CoordinatorPair(built_in.broker.bootstrap, tmp_path)
    try:
        for each in pair.coordinators:
            each.start()
        wait_until(pair.is_shared_equally, seconds=120, what="each coordinator has half of the shards")
        yield pair
    finally:
        for each in pair.coordinators:
            each.kill()


class AcknowledgingWriters:
    """A thread whose clients acknowledge consecutive offsets of several share-partitions until stopped."""

    def __init__(self, pair: CoordinatorPair) -> None:
        self._addresses = ",".join(f"127.0.0.1:{each.port}" for each in pair.coordinators)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.acknowledged = [0] * SHARE_PARTITIONS
        self.failures: list[BaseException] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_progress(self) -> bool:
        """Wait until 5 more offsets of each share-partition are acknowledged, or a write failed."""
        goals = [acknowledged + 5 for acknowledged in self.acknowledged]
        return bool(
            wait_until(
                lambda: self.failures or all(map(int.__ge__, self.acknowledged, goals)),
                seconds=120,
                what="writes go on",
            )
        )

    async def _run(self) -> None:
        try:
            async with ShareCoordinatorClient(self._addresses) as client, asyncio.TaskGroup() as writers:
                for number in range(SHARE_PARTITIONS):
                    writers.create_task(self._write_until_stopped(client, number))
        except BaseException as error:
            self.failures.append(error)

    async def _write_until_stopped(self, client: ShareCoordinatorClient, number: int) -> None:
        key = SharePartitionKey(f"group-{number}", TOPIC_ID, number)
        await client.initialize(key, 1, 0)
        while not self._stop.is_set():
            offset = self.acknowledged[number]
            batches = [StateBatch(offset, offset, ACKNOWLEDGED, 1)]
            await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=batches)
            self.acknowledged[number] = offset + 1
        state = await client.read(key, 0)
        assert [(batch.first_offset, batch.last_offset) for batch in state.batches] == [
            (0, self.acknowledged[number] - 1)
        ]


def test_repeated_hand_overs_under_load_lose_nothing(pair: CoordinatorPair) -> None:
    writers = AcknowledgingWriters(pair)
    writers.start()
    try:
        writers.wait_for_progress()
        shard = min(pair.shards_served_by(pair.coordinators[0]))
        for turn in range(HAND_OVERS):
            giver, taker = pair.coordinators[turn % 2], pair.coordinators[1 - turn % 2]
            to = f"127.0.0.1:{taker.port}"
            # A coordinator that does not own the shard names the owner.
            elsewhere = pair.run_command(taker, "hand-over", str(shard), "--execute")
            assert elsewhere.returncode == 1
            assert f"ask http://127.0.0.1:{giver.http_port}" in elsewhere.stderr
            dry = pair.run_command(giver, "hand-over", str(shard), "--to", to)
            assert (dry.returncode, "dry run: nothing was changed" in dry.stderr) == (0, True)
            assert shard in pair.shards_served_by(giver)

            done = pair.run_command(giver, "hand-over", str(shard), "--to", to, "--execute")
            assert done.returncode == 0, done.stderr
            assert f"shard {shard} was released and is owned by {to}" in done.stdout
            wait_until(
                lambda taker=taker: shard in pair.shards_served_by(taker),
                seconds=120,
                what="it is served",
            )
            assert shard not in pair.shards_served_by(giver)
            wait_until(pair.is_shared_equally, seconds=120, what="each has half of the shards")
            writers.wait_for_progress()
    finally:
        writers.stop()
    assert writers.failures == []
    for each in pair.coordinators:
        log = each.process.log.read_text()
        assert "ERROR" not in log, log[-3000:]
        lines = [json.loads(line) for line in log.splitlines() if '"coordinator.audit"' in line]
        assert len([line for line in lines if line["what"] == "hand-over"]) == HAND_OVERS // 2
        assert {(line["who"], line["address"]) for line in lines} == {("token operator", "127.0.0.1")}
