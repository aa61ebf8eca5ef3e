"""What the cluster says of users' topics: shared, remembered for a moment, and never waited for long."""

import asyncio

from coordinator.admin.cluster_info import NO_CLUSTER, ClusterInfoCache
from protocol.routing import state_partition
from protocol.state_records import topic_id_text
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, packed
from tests.unit.admin.admin_server import SHARDS, TopicsInMemory, admin, async_test
from tests.unit.admin.test_state_routes import snapshot

TOPIC = topic_id_text(TOPIC_ID)
ONE = f"/api/v1/groups/orders/{TOPIC}/0"
NAMES = {TOPIC_ID: "parcels"}
ENDS = {(TOPIC_ID, 0): 150}


@async_test
async def test_names_and_lag_come_with_every_share_partition() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    async with admin(
        [snapshot(batches=packed((100, 103, 2, 1))), snapshot("other", OTHER_TOPIC_ID)], topics
    ) as it:
        detail = (await it.get(ONE)).json()
        known, unknown = (await it.get("/api/v1/share-partitions")).json()["items"]
    assert (detail["topic"], detail["end_offset"], detail["lag"]) == ("parcels", 150, 46)
    # What is behind the last run is not done with, and the cluster knows that there is something.
    assert detail["oldest_unfinished"] == {"offset": 104, "delivery_state": None, "delivery_count": 0}
    assert (known["topic"], known["end_offset"], known["lag"]) == ("parcels", 150, 46)
    assert (unknown["topic"], unknown["end_offset"], unknown["lag"]) == (None, None, None)


@async_test
async def test_without_a_cluster_it_is_said_why_nothing_is_known() -> None:
    async with admin([snapshot()]) as it:
        assert (await it.get(ONE)).json()["lag"] is None
        assert (await it.get("/healthz")).json()["cluster_trouble"] == NO_CLUSTER


@async_test
async def test_a_cluster_that_is_down_is_said_so_and_left_in_peace() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    topics.is_down = True
    async with admin([snapshot()], topics) as it:
        first, second = [(await it.get(ONE)).json() for _ in range(2)]
        trouble = (await it.get("/healthz")).json()["cluster_trouble"]
        ready = await it.get("/readyz")
    assert first["topic"] is None
    assert second["lag"] is None
    assert trouble == "No broker of kafka:9092 can be reached (refused)."
    # Once for names and once for end offsets; and it is nobody's readiness.
    assert len(topics.asked) == 2
    assert ready.status_code == 200


@async_test
async def test_many_who_look_share_one_question() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    facts = ClusterInfoCache(topics)
    answers = await asyncio.gather(*(facts.lookup([(TOPIC_ID, 0)]) for _ in range(20)))
    assert {(*answer.names.items(), *answer.end_offsets.items()) for answer in answers} == {
        (*NAMES.items(), *ENDS.items())
    }
    assert len(topics.asked) == 2


@async_test
async def test_a_slow_cluster_holds_nobody_up_and_its_answer_is_for_the_next() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    topics.answers.clear()
    facts = ClusterInfoCache(topics)
    assert await facts.lookup([(TOPIC_ID, 0)]) == ({}, {})
    topics.answers.set()
    while True:
        known = await facts.lookup([(TOPIC_ID, 0)])
        if known.end_offsets:
            break
    assert known == (NAMES, ENDS)
    assert len(topics.asked) == 2


@async_test
async def test_a_share_partition_that_went_while_the_cluster_was_asked_is_not_found() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    topics.answers.clear()
    record = snapshot()
    async with admin([record], topics) as it:
        asking = asyncio.create_task(it.get(ONE))
        while not topics.asked:  # noqa: ASYNC110 (a matter of turns, not of time)
            await asyncio.sleep(0)
        it.runtime._runners[state_partition(record.key, SHARDS)].discard_state()
        topics.answers.set()
        assert (await asking).status_code == 404
