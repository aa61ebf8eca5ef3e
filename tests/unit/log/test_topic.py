"""The state topic: how it is created, and the warnings and errors for an unsuitable topic."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from coordinator.cluster.kafka.cluster import TopicDescription
from coordinator.errors import ConfigError, LogUnavailable
from coordinator.log.kafka.topic import (
    INTERNAL_TOPICS,
    TopicConfig,
    check_topic_name,
    config_problems,
    ensure_topic,
    find_topic,
    wanted_configs,
)
from tests.unit.log.fake_kafka import FakeCluster, FakeKafka, FakePartition

CONFIG = TopicConfig("state", partitions=50)
DESCRIPTION = TopicDescription(partitions=50, replicas=3, ready=True)


def test_topic_with_the_wanted_configs_has_no_problems() -> None:
    assert config_problems(CONFIG, DESCRIPTION, wanted_configs(2)) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retention.ms", "604800000", "retention.ms=604800000, not -1: records are dropped"),
        ("retention.bytes", "1000", "retention.bytes=1000, not -1"),
        ("unclean.leader.election.enable", "true", "acknowledged records can be lost"),
        ("message.timestamp.type", "LogAppendTime", "message.timestamp.type=LogAppendTime"),
        ("max.message.bytes", "1048588", "max.message.bytes=1048588, not 16777216"),
        ("min.insync.replicas", "1", "min.insync.replicas=1, not 2"),
        ("min.insync.replicas", "4", "min.insync.replicas=4 with 3 replicas: nothing can be written"),
    ],
)
def test_each_wrong_config_is_reported_as_one_problem(name: str, value: str, said: str) -> None:
    (found,) = config_problems(CONFIG, DESCRIPTION, {**wanted_configs(2), name: value})
    assert said in found


def test_too_few_replicas_and_hidden_configs_are_reported() -> None:
    few, hidden = config_problems(CONFIG, DESCRIPTION._replace(replicas=1), None)
    assert "1 replicas, not 3" in few
    assert "cannot be checked" in hidden
    # With one replica, min.insync.replicas=1 is the highest possible value.
    assert len(config_problems(CONFIG, DESCRIPTION._replace(replicas=1), wanted_configs(1))) == 1


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_is_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match="compaction keeps one update of many"):
        config_problems(CONFIG, DESCRIPTION, {**wanted_configs(2), "cleanup.policy": policy})


def test_kafkas_internal_topics_are_refused() -> None:
    for name in INTERNAL_TOPICS:
        with pytest.raises(ConfigError, match="an ordinary topic"):
            check_topic_name(name)


def test_topic_is_created_with_at_most_one_replica_per_broker(caplog: pytest.LogCaptureFixture) -> None:
    kafka = FakeKafka(nodes=2)
    asyncio.run(ensure_topic(kafka.cluster("state"), CONFIG, timeout_s=1))
    assert len(kafka.topics["state"]) == 50
    assert kafka.configs["state"] == wanted_configs(2)
    assert "there are 2 brokers" in caplog.text


def test_topic_is_not_created_while_more_brokers_may_still_start() -> None:
    kafka = FakeKafka(nodes=1)
    with pytest.raises(LogUnavailable, match="3 replicas, and there are 1 brokers until now"):
        asyncio.run(ensure_topic(kafka.cluster("state"), CONFIG, timeout_s=1, allow_few_brokers=False))
    assert kafka.topics == {}
    kafka.nodes = 3
    asyncio.run(ensure_topic(kafka.cluster("state"), CONFIG, timeout_s=1, allow_few_brokers=False))
    assert len(kafka.topics["state"]) == 50


class RacingCluster(FakeCluster):
    """A cluster in which another process creates the topic first."""

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        await FakeCluster(self.fake, self.topic).create_topic(partitions, replicas, configs)
        return await super().create_topic(partitions, replicas, configs)


@pytest.mark.parametrize(("cluster", "times"), [(FakeCluster, 1), (RacingCluster, 0)])
def test_only_the_creator_of_the_topic_logs_its_creation(
    cluster: type[FakeCluster], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asyncio.run(ensure_topic(cluster(FakeKafka(), "state"), CONFIG, timeout_s=1))
    assert caplog.text.count("created topic state") == times


def test_topic_with_another_number_of_partitions_is_refused() -> None:
    kafka = FakeKafka()
    kafka.topics["state"] = [FakePartition()]
    with pytest.raises(ConfigError, match=r"num\.partitions=50 .* it must be 1, as topic state has"):
        asyncio.run(ensure_topic(kafka.cluster("state"), CONFIG, timeout_s=1))


def test_read_only_use_does_not_create_the_topic() -> None:
    kafka = FakeKafka()
    with pytest.raises(LogUnavailable, match="there is no topic state"):
        asyncio.run(find_topic(kafka.cluster("state"), CONFIG))
    assert kafka.topics == {}
