"""Topic names and end offsets from the cluster: shared lookups, caching and bounded waits."""

import asyncio

from coordinator.operate.admin.cluster_info import NO_CLUSTER, ClusterInfoCache
from protocol.routing import state_partition
from protocol.state_records import topic_id_text
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import SHARDS, TopicsInMemory, run_admin
from tests.unit.admin.test_state_routes import make_snapshot

TOPIC = topic_id_text(TOPIC_ID)
ONE = f"/api/v1/share-partition?group=orders&topic={TOPIC}&partition=0"
NAMES = {TOPIC_ID: "parcels"}
ENDS = {(TOPIC_ID, 0): 150}


async def test_share_partitions_show_topic_name_and_lag() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    async with run_admin(
        [make_snapshot(batches=pack_batches((100, 103, 2, 1))), make_snapshot("other", OTHER_TOPIC_ID)],
        topics,
    ) as coordinator:
        detail = (await coordinator.get(ONE)).json()
        known, unknown = (await coordinator.get("/api/v1/share-partitions")).json()["items"]
    assert (detail["topic"], detail["end_offset"], detail["lag"]) == ("parcels", 150, 46)
    # Offset 104 follows the last state batch and is below the end offset, so it is incomplete.
    assert detail["oldest_incomplete"] == {"offset": 104, "delivery_state": None, "delivery_count": 0}
    assert (known["topic"], known["end_offset"], known["lag"]) == ("parcels", 150, 46)
    assert (unknown["topic"], unknown["end_offset"], unknown["lag"]) == (None, None, None)


async def test_health_reports_that_no_cluster_is_configured() -> None:
    async with run_admin([make_snapshot()]) as coordinator:
        assert (await coordinator.get(ONE)).json()["lag"] is None
        assert (await coordinator.get("/healthz")).json()["cluster_error"] == NO_CLUSTER


async def test_unreachable_cluster_is_reported_and_not_retried_at_once() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    topics.is_down = True
    async with run_admin([make_snapshot()], topics) as coordinator:
        first, second = [(await coordinator.get(ONE)).json() for _ in range(2)]
        trouble = (await coordinator.get("/healthz")).json()["cluster_error"]
        ready = await coordinator.get("/readyz")
    assert first["topic"] is None
    assert second["lag"] is None
    assert trouble == "No broker of kafka:9092 can be reached (refused)."
    # The first lookup sent two requests (names, end offsets). The second lookup used the cached error.
    assert len(topics.requests) == 2
    assert ready.status_code == 200


async def test_concurrent_lookups_share_one_request() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    cache = ClusterInfoCache(topics)
    answers = await asyncio.gather(*(cache.look_up_partitions([(TOPIC_ID, 0)]) for _ in range(20)))
    assert {(*answer.names.items(), *answer.end_offsets.items()) for answer in answers} == {
        (*NAMES.items(), *ENDS.items())
    }
    assert len(topics.requests) == 2


async def test_lookup_does_not_wait_for_a_slow_cluster() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    topics.may_answer.clear()
    cache = ClusterInfoCache(topics)
    assert await cache.look_up_partitions([(TOPIC_ID, 0)]) == ({}, {})
    topics.may_answer.set()
    while True:
        known = await cache.look_up_partitions([(TOPIC_ID, 0)])
        if known.end_offsets:
            break
    assert known == (NAMES, ENDS)
    assert len(topics.requests) == 2


async def test_share_partition_deleted_during_lookup_returns_404() -> None:
    topics = TopicsInMemory(NAMES, ENDS)
    topics.may_answer.clear()
    record = make_snapshot()
    async with run_admin([record], topics) as coordinator:
        asking = asyncio.create_task(coordinator.get(ONE))
        while not topics.requests:  #  noqa: ASYNC110 (event-loop steps, not time)
            await asyncio.sleep(0)
        coordinator.runtime._runners[state_partition(record.key, SHARDS)].discard_state()
        topics.may_answer.set()
        assert (await asking).status_code == 404
