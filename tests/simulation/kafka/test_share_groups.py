"""Test that the share groups in memory answer like a real broker (`tests/topic/test_share_groups.py`)."""

from random import Random

from coordinator.cluster.kafka.share_groups import ChangeResult
from coordinator.cluster.kafka.share_groups import ShareGroups as ShareGroupClient
from protocol.errors import ErrorCode
from tests.kafka_in_memory.share_groups import ShareGroups
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.connections import connect_to_brokers
from tests.simulation.loop import SimLoop

SERVERS = "broker-1:9092"
TOPIC_ID = bytes(range(16))
DONE = ChangeResult(0)


def test_groups_are_described_and_changed_as_by_a_broker() -> None:
    loop, deleted = SimLoop(), []

    async def delete_state(group: str, topic: str) -> int:
        deleted.append((group, topic))
        return ErrorCode.NONE

    groups = ShareGroups(delete_state)

    async def run_test() -> None:
        brokers = SimBrokers(loop, Random(3), BrokerFaults(), nodes=3, partitions=1)
        connect_to_brokers(brokers, 2.0, groups)
        client = ShareGroupClient(SERVERS)
        topic = TOPIC_ID.hex()
        assert (await client.resolve_topic_ids([TOPIC_ID])).names == {TOPIC_ID: topic}
        used = (await client.describe_groups(["group"]))["group"]
        assert (used.is_empty, used.members, used.subscribed) == (False, 1, {topic})
        refused = await client.delete_offsets("group", [topic])
        assert refused[topic].error_code == ErrorCode.NON_EMPTY_GROUP
        groups.empty.add("group")
        empty = (await client.describe_groups(["group"]))["group"]
        assert empty.is_empty
        assert empty.group_epoch > used.group_epoch
        assert await client.delete_offsets("group", [topic]) == {topic: DONE}
        groups.loading = True
        loading = (await client.describe_groups(["group"]))["group"]
        assert loading.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        groups.loading = False
        groups.deleted.add("group")
        missing = (await client.describe_groups(["group", "other"]))["group"]
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        unknown = await client.delete_offsets("group", [topic])
        assert unknown[topic].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await client.close()

    loop.run_until_complete(run_test())
    loop.close()
    assert deleted == [("group", TOPIC_ID.hex())]
    assert not loop.failures
