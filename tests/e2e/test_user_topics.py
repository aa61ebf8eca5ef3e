"""Test the queries for names, ids and end offsets of user topics at a real broker."""

import pytest

from coordinator.cluster.kafka.user_topics import UserTopics
from protocol.state_records import parse_topic_id
from tests.kafka import BuiltInRig

pytestmark = pytest.mark.broker

RECORDS = 10


async def test_names_ids_and_end_offsets_are_those_of_the_topic(built_in: BuiltInRig) -> None:
    topic_id = parse_topic_id(built_in.client.create_topic("queried", partitions=2))
    built_in.client.produce("queried", RECORDS, partition=1)
    topics = UserTopics(built_in.broker.bootstrap)
    try:
        assert await topics.topic_id("queried") == topic_id
        assert await topics.topic_id("no-such-topic") is None
        assert await topics.topic_names([topic_id, bytes(15) + b"x"]) == {topic_id: "queried"}
        assert await topics.end_offsets([(topic_id, 0), (topic_id, 1), (topic_id, 9)]) == {
            (topic_id, 0): 0,
            (topic_id, 1): RECORDS,
        }
    finally:
        await topics.close()
    assert "no-such-topic" not in built_in.client.topics()
