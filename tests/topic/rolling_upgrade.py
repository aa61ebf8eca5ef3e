"""Run two releases in one group: `python -m tests.topic.rolling_upgrade COMMIT`.

Three coordinators of an earlier commit own the shards of one topic. The build of this working tree replaces
the coordinators one after another. Then the earlier commit replaces them again. Meanwhile, clients read
and write at each coordinator; the history must be linearizable. The coordinators must not log an error.
"""

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.benchmarks.commits import built_commit
from tests.kafka.broker import Broker
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import RELEASES, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.served_process import INSTALLED, ProgramBuild
from tests.topic.groups import group_settings
from tests.topic.partitioned_cluster import SHARDS, keys_of_each_shard
from tests.topic.recorded_clients import HistoryRecordingClients

PLACES = 3
TOPIC = "rolling-upgrade"
# The number of seconds for which clients run between two replacements.
SETTLED_S = 3.0


class MixedGroup:
    """Coordinators of one group, each of which can be replaced by another build at the same address."""

    def __init__(self, broker: Broker, directory: Path, stack: ExitStack) -> None:
        """Prepare a group without coordinators. Coordinators of the group are killed when `stack` closes."""
        self._settings = {
            **group_settings(broker.bootstrap, TOPIC, SHARDS),
            "share.coordinator.state.topic.replication.factor": "1",
            "forwarding": "always",
        }
        self._directory = directory
        self._stack = stack
        self.ports = free_ports(2 * PLACES)
        self._running: dict[int, CoordinatorProcess] = {}

    def replace(self, place: int, build: ProgramBuild, name: str) -> None:
        """Stop the coordinator with this number, and start another build at its address."""
        replaced = self._running.pop(place, None)
        if replaced is not None:
            replaced.stop()
            self._check_log(replaced)
        directory = self._directory / f"{place}-{name}"
        directory.mkdir()
        coordinator = CoordinatorProcess(
            directory,
            port=self.ports[place],
            http_port=self.ports[PLACES + place],
            settings=self._settings,
            log="kafka",
            build=build,
        )
        self._stack.callback(coordinator.kill)
        coordinator.start()
        self._running[place] = coordinator

    def stop(self) -> None:
        """Stop all coordinators."""
        for coordinator in self._running.values():
            coordinator.stop()
            self._check_log(coordinator)

    @staticmethod
    def _check_log(coordinator: CoordinatorProcess) -> None:
        errors = [line for line in coordinator.process.log.read_text().splitlines() if "ERROR" in line]
        assert errors == [], "\n".join(errors)


async def _replace_coordinators(
    group: MixedGroup, clients: HistoryRecordingClients, earlier: ProgramBuild
) -> None:
    """Replace each coordinator by this working tree, and then by the earlier commit, under load."""
    await clients.initialize_all_keys()
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(clients.send_random_requests(place)) for place in range(PLACES)]
        working += [tasks.create_task(clients.send_random_reads(place)) for place in range(PLACES)]
        for name, build in (("forward", INSTALLED), ("back", earlier)):
            for place in range(PLACES):
                await asyncio.sleep(SETTLED_S)
                await asyncio.to_thread(group.replace, place, build, name)
                await clients.write_and_read_all_keys()
                print(f"{name}: coordinator {place} is replaced; all states are read at each", flush=True)
        for task in working:
            task.cancel()


def main() -> int:
    """Roll forward and back; return 1 with the reason if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.topic.rolling_upgrade", description=__doc__)
    parser.add_argument("commit", help="the earlier release")
    commit = parser.parse_args().commit
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="share-coordinator-")))
        earlier = stack.enter_context(built_commit(commit, directory / "earlier")).build
        broker = Broker(fetch_jars(RELEASES[-1]), directory)
        stack.callback(broker.kill)
        broker.start()
        group = MixedGroup(broker, directory, stack)
        for place in range(PLACES):
            group.replace(place, earlier, "earlier")
        clients = HistoryRecordingClients(keys_of_each_shard("rolling"), group.ports[:PLACES], Random())
        asyncio.run(_replace_coordinators(group, clients, earlier))
        group.stop()
        clients.check_linearizability()
        print(f"{len(clients.history.ops)} operations, no acknowledged write lost, no stale read")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
