"""The state topic: how it is created, and the warnings and errors for an unsuitable topic."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import nullcontext

import pytest

from coordinator.cluster.kafka.broker_results import TopicDescription
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import ConfigError, LogUnavailable
from coordinator.log.kafka.topic import (
    BATCH_BYTES_MAX,
    INTERNAL_TOPICS,
    TopicConfig,
    check_topic_name,
    config_problems,
    ensure_topic,
    required_configs,
)
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.unit.log.kafka_logs import run_simulated

SIMULATED = pytest.mark.run_with(function=run_simulated)
CONFIG = TopicConfig("state", partitions=50)
DESCRIPTION = TopicDescription(partitions=50, replicas=3, ready=True)


def test_topic_with_the_wanted_configs_has_no_problems() -> None:
    assert config_problems(CONFIG, DESCRIPTION, required_configs(2)) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retention.ms", "604800000", "retention.ms=604800000, not -1: records are dropped"),
        ("retention.bytes", "1000", "retention.bytes=1000, not -1"),
        ("unclean.leader.election.enable", "true", "acknowledged records can be lost"),
        ("message.timestamp.type", "LogAppendTime", "message.timestamp.type=LogAppendTime"),
        ("message.timestamp.after.max.ms", "3600000", "while this host's clock is ahead by more"),
        ("max.message.bytes", "1048588", "max.message.bytes=1048588, not 16777216"),
        ("segment.bytes", "1048576", "segment.bytes=1048576, not 16777216"),
        ("min.insync.replicas", "1", "min.insync.replicas=1, not 2"),
        ("min.insync.replicas", "4", "min.insync.replicas=4 with 3 replicas: nothing can be written"),
    ],
)
def test_each_wrong_config_is_reported_as_one_problem(name: str, value: str, said: str) -> None:
    (found,) = config_problems(CONFIG, DESCRIPTION, {**required_configs(2), name: value})
    assert said in found


def test_too_few_replicas_and_hidden_configs_are_reported() -> None:
    few, hidden = config_problems(CONFIG, DESCRIPTION._replace(replicas=1), None)
    assert "1 replicas, not 3" in few
    assert "cannot be checked" in hidden
    # With one replica, min.insync.replicas=1 is the highest possible value.
    assert len(config_problems(CONFIG, DESCRIPTION._replace(replicas=1), required_configs(1))) == 1


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_is_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match="compaction keeps one update of many"):
        config_problems(CONFIG, DESCRIPTION, {**required_configs(2), "cleanup.policy": policy})


def test_kafkas_internal_topics_are_refused() -> None:
    for name in INTERNAL_TOPICS:
        with pytest.raises(ConfigError, match="an ordinary topic"):
            check_topic_name(name)


async def connect_and_ensure_topic(
    kafka: KafkaInMemory, cluster: Brokers | None = None, *, few: bool = True
) -> None:
    """Connect to the cluster, and create the topic if it does not exist."""
    cluster = cluster or kafka.new_client("state")
    await cluster.connect()
    try:
        await ensure_topic(cluster, CONFIG, timeout_s=1, allow_few_brokers=few)
    finally:
        await cluster.close()


@SIMULATED
async def test_topic_is_created_with_at_most_one_replica_per_broker(caplog: pytest.LogCaptureFixture) -> None:
    kafka = KafkaInMemory(nodes=2)
    await connect_and_ensure_topic(kafka)
    assert len(kafka.topics["state"]) == 50
    assert kafka.brokers("state").configs == required_configs(2)
    assert "there are 2 brokers" in caplog.text


@SIMULATED
async def test_topic_is_not_created_while_more_brokers_may_still_start() -> None:
    kafka = KafkaInMemory(nodes=1)
    with pytest.raises(LogUnavailable, match="3 replicas, and there are 1 brokers until now"):
        await connect_and_ensure_topic(kafka, few=False)
    assert kafka.topics == {}
    kafka = KafkaInMemory(nodes=3)
    await connect_and_ensure_topic(kafka, few=False)
    assert len(kafka.topics["state"]) == 50


@SIMULATED
@pytest.mark.parametrize(
    ("described", "problem", "seconds"),
    [
        ([None, None, DESCRIPTION], None, 0.4),
        ([None, DESCRIPTION._replace(ready=False), DESCRIPTION], None, 0.4),
        # The partitions with a leader can be served.
        ([None, DESCRIPTION._replace(ready=False)], None, 1.0),
        ([None], LogUnavailable, 1.0),
        ([None, DESCRIPTION._replace(partitions=49)], ConfigError, 0.2),
    ],
)
async def test_leaders_of_a_new_topic_are_awaited(
    described: list[TopicDescription | None], problem: type[Exception] | None, seconds: float
) -> None:
    cluster = KafkaInMemory().new_client("state")
    descriptions = [*described]

    async def describe_topic() -> TopicDescription | None:
        return descriptions.pop(0) if len(descriptions) > 1 else descriptions[0]

    await cluster.connect()
    cluster.describe_topic = describe_topic  # type: ignore[method-assign]
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(problem) if problem else nullcontext():
        assert await ensure_topic(cluster, CONFIG, timeout_s=1.0) == (BATCH_BYTES_MAX, BATCH_BYTES_MAX)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(seconds, abs=0.1)
    await cluster.close()


@SIMULATED
@pytest.mark.parametrize("is_first", [True, False])
async def test_topic_that_another_process_creates_at_the_same_time_is_checked(
    is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kafka = KafkaInMemory()
    cluster = kafka.new_client("state")
    create_topic = cluster.create_topic

    async def create_after_another_process(
        partitions: int, replicas: int, configs: Mapping[str, str]
    ) -> bool:
        kafka.create_topic("state", partitions, {**configs, "retention.ms": "1"})
        return await create_topic(partitions, replicas, configs)

    if not is_first:
        cluster.create_topic = create_after_another_process  # type: ignore[method-assign]
    await connect_and_ensure_topic(kafka, cluster)
    assert caplog.text.count("created topic state") == is_first
    assert caplog.text.count("records are dropped after that time") == (not is_first)


@SIMULATED
async def test_topic_with_another_number_of_partitions_is_refused() -> None:
    kafka = KafkaInMemory()
    kafka.create_topic("state", 1)
    with pytest.raises(ConfigError, match=r"num\.partitions=50 .* it must be 1, as topic state has"):
        await connect_and_ensure_topic(kafka)
