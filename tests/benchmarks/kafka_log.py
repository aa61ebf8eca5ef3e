"""Run this coordinator with its state in a topic, and Kafka's own, for `make bench` with `--log kafka`.

Both coordinators store state on the same cluster, with one replica on each broker. Broker 1 leads all
partitions of `__share_group_state`, so it is the only built-in coordinator. Broker 1 also leads all
partitions of this project's topic, so that appends to both topics cost the same.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from coordinator.log.kafka.topic import TopicConfig, required_configs
from tests.benchmarks.system_under_test import SystemUnderTest
from tests.kafka.broker import new_cluster
from tests.kafka.built_in import STATE_PARTITIONS, STATE_TOPIC, BuiltInCoordinator, prepare_coordinator
from tests.kafka.client import KafkaClient
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import RELEASES, REPOSITORY, SHIPPED_BROKER_JVM, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.processes import wait_until
from tests.kafka.rig import BuiltInRig, start_brokers
from tests.kafka.share_group_tool import ShareGroupTool

NEWEST = RELEASES[-1]
PARTITIONS = 50
# No record is pruned during a measurement, so that a restart loads all written records.
_NEVER_MS = str(24 * 3_600_000)


class LoadingTime(NamedTuple):
    """The number of loaded records, and the seconds in which all shards were claimed and loaded."""

    name: str
    records: int
    seconds: float


class SystemsOnCluster:
    """A cluster, and two coordinators that store state on it."""

    def __init__(
        self, rig: BuiltInRig, ready: BuiltInCoordinator, ours: CoordinatorProcess, name: str
    ) -> None:
        self._ours = ours
        self._name = name
        self.sides = [
            SystemUnderTest(
                f"ours, {name}",
                "127.0.0.1",
                ours.port,
                [ready.topic_id],
                pid=ours.process.pid,
                cluster=name,
                log="topic",
                package=REPOSITORY / "coordinator",
            ),
            SystemUnderTest(
                f"Kafka {rig.broker.jars.release}, {name}",
                ready.host,
                ready.port,
                [ready.topic_id],
                pid=rig.broker.process.pid,
                cluster=name,
            ),
        ]

    def restart_and_load(self) -> LoadingTime:
        """Restart this project's coordinator; return how long it loads its state."""
        self._ours.stop()
        self._ours.start()
        # The coordinator becomes ready a moment before it logs the duration.
        wait_until(
            lambda: self._ours.process.count_logged("Loaded shards."),
            seconds=60,
            what="the log line about the loaded shards",
        )
        lines = [json.loads(line) for line in self._ours.process.log.read_text().splitlines()]
        line = [line for line in lines if line.get("event") == "Loaded shards."][-1]
        return LoadingTime(self._name, line["records"], line["seconds"])


@contextmanager
def systems_on_cluster(folder: Path, brokers: int) -> Iterator[SystemsOnCluster]:
    """Run a cluster of `brokers`, with their built-in coordinators and one coordinator of this project."""
    with ExitStack() as stack:
        folder.mkdir()
        rig = _start_cluster(stack, folder, brokers)
        asyncio.run(_create_topics(rig.broker.bootstrap, brokers))
        ready = prepare_coordinator(rig, topic="bench", partitions=PARTITIONS)
        port, http_port = free_ports(2)
        ours = CoordinatorProcess(
            folder,
            port=port,
            http_port=http_port,
            log="kafka",
            settings={
                "bootstrap.servers": rig.broker.bootstrap,
                "share.coordinator.state.topic.replication.factor": str(brokers),
                "share.coordinator.state.topic.prune.interval.ms": _NEVER_MS,
            },
        )
        stack.callback(ours.kill)
        ours.start()
        yield SystemsOnCluster(rig, ready, ours, f"{brokers} broker{'s' if brokers > 1 else ''}")


def _start_cluster(stack: ExitStack, folder: Path, count: int) -> BuiltInRig:
    jars = fetch_jars(NEWEST)
    cluster = new_cluster(brokers=count)
    brokers = start_brokers(stack, jars, folder, cluster, jvm=SHIPPED_BROKER_JVM)
    client = KafkaClient(jars, cluster.bootstrap, folder)
    stack.callback(client.close)
    return BuiltInRig(brokers[0], client, ShareGroupTool(jars, cluster.bootstrap))


async def _create_topics(bootstrap: str, brokers: int) -> None:
    """Create `__share_group_state` and this project's topic with their usual settings, led by broker 1."""
    min_isr = min(2, brokers)
    configs = {
        STATE_TOPIC: {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "min.insync.replicas": str(min_isr),
        },
        TopicConfig().name: required_configs(min_isr),
    }
    replicas = {partition: list(range(1, brokers + 1)) for partition in range(STATE_PARTITIONS)}
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics(
            [
                NewTopic(
                    name,
                    num_partitions=-1,
                    replication_factor=-1,
                    replica_assignments=replicas,
                    topic_configs=topic_configs,
                )
                for name, topic_configs in configs.items()
            ]
        )
    finally:
        await admin.close()
