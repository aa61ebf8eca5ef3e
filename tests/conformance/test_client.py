"""Test the Python client with Kafka's share coordinator: accepted requests, and classes of errors."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coordinator.client import (
    ShareCoordinatorClient,
    SharePartitionKey,
    UnknownTopicOrPartition,
)
from protocol.messages import read_share_group_state_summary as summary_api
from tests.kafka.built_in import BuiltInCoordinator
from tests.unit.client.test_contract import check_states_and_errors

pytestmark = pytest.mark.broker

GROUP = "client:of:ours"


def run_on_kafka(
    kafka: BuiltInCoordinator, scenario: Callable[[ShareCoordinatorClient], Awaitable[None]]
) -> list[float]:
    """Run a scenario, and return the pauses before retries in seconds. The client does not really pause."""
    waits: list[float] = []

    async def record_pause(wait_s: float) -> None:
        waits.append(wait_s)

    async def run_client() -> None:
        async with ShareCoordinatorClient((kafka.host, kafka.port), sleep=record_pause) as client:
            await scenario(client)

    asyncio.run(run_client())
    return waits


def test_client_initializes_reads_writes_and_deletes_state(built_in_coordinator: BuiltInCoordinator) -> None:
    key = SharePartitionKey(GROUP, built_in_coordinator.topic_id, 0)
    assert run_on_kafka(built_in_coordinator, lambda client: check_states_and_errors(client, key)) == []


def test_results_of_a_request_for_many_partitions_are_in_request_order(
    built_in_coordinator: BuiltInCoordinator,
) -> None:
    topic_id, partitions = built_in_coordinator.topic_id, [3, 0, 2, 1]
    keys = [SharePartitionKey(f"{GROUP}:many", topic_id, partition) for partition in partitions]
    request = summary_api.ReadShareGroupStateSummaryRequest(
        f"{GROUP}:many",
        [
            summary_api.ReadStateSummaryData(
                topic_id, [summary_api.PartitionData(partition, 0) for partition in partitions]
            )
        ],
    )

    async def run_test(client: ShareCoordinatorClient) -> None:
        await asyncio.gather(*(client.initialize(key, 1, key.partition) for key in keys))
        response = await client.send(request)
        (topic,) = response.results
        assert [(result.partition, result.start_offset) for result in topic.partitions] == [
            (partition, partition) for partition in partitions
        ]

    assert run_on_kafka(built_in_coordinator, run_test) == []


def test_unknown_topic_raises_after_retries(built_in_coordinator: BuiltInCoordinator) -> None:
    key = SharePartitionKey(GROUP, bytes(range(100, 116)), 0)

    async def run_test(client: ShareCoordinatorClient) -> None:
        with pytest.raises(UnknownTopicOrPartition) as caught:
            await client.initialize(key, 1, 0)
        assert caught.value.key == key

    assert len(run_on_kafka(built_in_coordinator, run_test)) == 4
