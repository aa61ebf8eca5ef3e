"""Test the `hand-over` command between two coordinators in a group of a real Kafka, under load."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.kafka import wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.processes import PROGRAM
from tests.kafka.rig import BuiltInRig
from tests.topic.groups import SINGLE_REPLICA, group_settings
from tests.topic.logs import new_topic
from tests.topic.partitioned_cluster import keys_of_each_shard
from tests.topic.recorded_clients import HistoryRecordingClients
from tests.unit.admin.test_tokens import WRITING, write_token_file

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

SHARDS = 4
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
            # The clients send requests to both coordinators.
            "forwarding": "always",
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


def check_hand_over(pair: CoordinatorPair, shard: int, turn: int) -> None:
    """Hand a shard over to the other coordinator, and wait until the shards are shared equally again."""
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
    wait_until(lambda: shard in pair.shards_served_by(taker), seconds=120, what="it is served")
    assert shard not in pair.shards_served_by(giver)
    wait_until(pair.is_shared_equally, seconds=120, what="each has half of the shards")


async def test_repeated_hand_overs_under_load_lose_nothing(pair: CoordinatorPair) -> None:
    shard = min(pair.shards_served_by(pair.coordinators[0]))
    ports = [each.port for each in pair.coordinators]
    clients = HistoryRecordingClients(keys_of_each_shard("hand-over", SHARDS), ports, Random(1))
    await clients.initialize_all_keys()
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(clients.send_random_requests(place)) for place in range(len(ports))]
        for turn in range(HAND_OVERS):
            await asyncio.to_thread(check_hand_over, pair, shard, turn)
            await clients.write_and_read_all_keys()
        for task in working:
            task.cancel()
    clients.check_linearizability()
    for each in pair.coordinators:
        log = each.process.log.read_text()
        assert "ERROR" not in log, log[-3000:]
        lines = [json.loads(line) for line in log.splitlines() if '"coordinator.audit"' in line]
        assert len([line for line in lines if line["what"] == "hand-over"]) == HAND_OVERS // 2
        assert {(line["who"], line["address"]) for line in lines} == {("token operator", "127.0.0.1")}
