"""The state of groups, share-partitions and shards over HTTP, in pages and for any group id."""

from urllib.parse import urlencode
from uuid import UUID

import pytest

from coordinator.operate.admin.views import iso_time
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, UnreadableValue, topic_id_text
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import NOW_MS, SHARDS, TopicsInMemory, get_json, run_admin

TOPIC = topic_id_text(TOPIC_ID)
GROUPS = "/api/v1/groups"
LIST = "/api/v1/share-partitions"
ONE = "/api/v1/share-partition"


def state_url(group_id: str = "orders", topic: str = TOPIC, partition: object = 0) -> str:
    return f"{ONE}?{urlencode({'group': group_id, 'topic': topic, 'partition': partition})}"


def make_snapshot(
    group_id: str = "orders", topic_id: bytes = TOPIC_ID, partition: int = 0, batches: bytes = b""
) -> StateRecord:
    value = ShareSnapshotValue(
        snapshot_epoch=3,
        state_epoch=5,
        leader_epoch=7,
        start_offset=100,
        create_timestamp=NOW_MS - 2000,
        write_timestamp=NOW_MS - 1000,
        state_batches=batches,
        delivery_complete_count=4,
        leader_epoch_max=9,
    )
    return StateRecord(SharePartitionKey(group_id, topic_id, partition), value)


async def test_share_partition_shows_its_complete_state() -> None:
    record = make_snapshot(
        batches=pack_batches((100, 109, 0, 2), (110, 110, 4, 5), (112, 119, 2, 1), (120, 120, 3, 1))
    )
    update = ShareUpdateValue(3, 8, 101, b"", 4)
    answer = await get_json(state_url(), [record, StateRecord(record.key, update)])
    assert answer == {
        "group": "orders",
        "topic": None,
        "topic_id": TOPIC,
        "topic_uuid": str(UUID(bytes=TOPIC_ID)),
        "partition": 0,
        "state_partition": state_partition(record.key, SHARDS),
        "start_offset": 101,
        "end_offset": None,
        "lag": None,
        "state_epoch": 5,
        "leader_epoch": 8,
        "leader_epoch_max": 9,
        "snapshot_epoch": 3,
        "in_flight_records": 19,
        "last_in_flight_offset": 120,
        "oldest_incomplete": {"offset": 101, "delivery_state": "AVAILABLE", "delivery_count": 2},
        "most_delivered": [
            expected_offset_range(110, 110, "ARCHIVED", 4, 5),
            expected_offset_range(101, 109, "AVAILABLE", 0, 2),
        ],
        "delivery_count_max": 5,
        "state_batches": 4,
        "delivery_complete_count": 4,
        "last_write": "2023-11-14T22:13:20.123Z",
        "last_write_ms": NOW_MS,
        "snapshot_created_ms": NOW_MS - 2000,
        "snapshot_written_ms": NOW_MS - 1000,
        "updates_since_snapshot": 1,
        "unreadable": None,
        "records_by_state": {"AVAILABLE": 9, "ARCHIVED": 1, "ACKNOWLEDGED": 8, "ARCHIVING": 1},
        "in_flight": {
            "items": [
                expected_offset_range(101, 109, "AVAILABLE", 0, 2),
                expected_offset_range(110, 110, "ARCHIVED", 4, 5),
                expected_offset_range(112, 119, "ACKNOWLEDGED", 2, 1),
                expected_offset_range(120, 120, "ARCHIVING", 3, 1),
            ],
            "total": 4,
            "limit": 1_000,
            "offset": 0,
        },
    }


def expected_offset_range(first: int, last: int, name: str, number: int, count: int) -> dict[str, object]:
    return {
        "first_offset": first,
        "last_offset": last,
        "records": last - first + 1,
        "delivery_state": name,
        "delivery_state_number": number,
        "delivery_count": count,
    }


@pytest.mark.parametrize(
    ("time_ms", "shown"),
    [(NOW_MS, "2023-11-14T22:13:20.123Z"), (0, None), (-1, None), (2**62, None)],
)
def test_iso_time_is_none_for_invalid_timestamps(time_ms: int, shown: str | None) -> None:
    assert iso_time(time_ms) == shown


async def test_in_flight_offset_ranges_are_paged() -> None:
    batches = pack_batches(*((offset, offset, 0, 1) for offset in range(100, 120, 2)))
    answer = await get_json(f"{state_url()}&limit=3&offset=8", [make_snapshot(batches=batches)])
    page = answer["in_flight"]
    assert [item["first_offset"] for item in page["items"]] == [116, 118]
    assert (page["total"], page["limit"], page["offset"]) == (10, 3, 8)
    assert answer["in_flight_records"] == 10


async def test_unknown_delivery_state_is_shown_with_its_number() -> None:
    record = make_snapshot(batches=pack_batches((100, 100, 9, 1)))
    shown = await get_json(state_url(), [record])
    assert shown["in_flight"]["items"] == [expected_offset_range(100, 100, "UNKNOWN", 9, 1)]


async def test_unreadable_state_shows_the_reason() -> None:
    record = make_snapshot()
    async with run_admin([record]) as coordinator:
        shard = coordinator.runtime._runners[state_partition(record.key, SHARDS)].shard
        shard.replay(StateRecord(record.key, UnreadableValue(b"", "value version 9")), 1, NOW_MS)
        shown = (await coordinator.get(state_url())).json()
    assert shown["unreadable"] == "value version 9"


@pytest.mark.parametrize("topic", [TOPIC, str(UUID(bytes=TOPIC_ID)), str(UUID(bytes=TOPIC_ID)).upper()])
async def test_topic_id_is_accepted_in_base64_and_uuid_form(topic: str) -> None:
    assert (await get_json(state_url(topic=topic), [make_snapshot()]))["topic_id"] == TOPIC


async def test_group_id_may_contain_any_character() -> None:
    group_ids = [
        "a/b",
        f"a/{TOPIC}/0",
        "..",
        ".",
        "a:b",
        "é/日本",
        "%2F",
        "%",
        "a b+c?d#e&f",
        "../x",
        "a\\b",
        '"',
        "\x01",
        " ",
    ]
    async with run_admin([*map(make_snapshot, group_ids), make_snapshot("a")]) as coordinator:
        for group_id in group_ids:
            shown = await coordinator.get(state_url(group_id))
            assert (shown.status_code, shown.json()["group"]) == (200, group_id)
            listed = await coordinator.get(f"{LIST}?{urlencode({'group': group_id})}")
            assert [item["group"] for item in listed.json()["items"]] == [group_id]


async def test_groups_are_listed_in_order_and_in_pages() -> None:
    records = [make_snapshot(f"g{number}", partition=number) for number in (3, 1, 4, 2)]
    records += [make_snapshot("g3", OTHER_TOPIC_ID, 8, pack_batches((100, 100, 0, 1), (102, 102, 0, 1)))]
    page = await get_json(f"{GROUPS}?limit=2&offset=1", records)
    assert [item["group"] for item in page["items"]] == ["g2", "g3"]
    assert (page["total"], page["limit"], page["offset"], page["missing_shards"]) == (4, 2, 1, [])
    assert page["items"][1] == {
        "group": "g3",
        "topics": 2,
        "share_partitions": 2,
        "state_batches": 2,
        "lag": None,
        "in_flight_records": None,
        "problem": "none",
        "last_write": "2023-11-14T22:13:20.123Z",
        "last_write_ms": NOW_MS,
    }


async def test_share_partitions_of_a_group_are_listed_in_pages() -> None:
    records = [make_snapshot(partition=partition) for partition in (2, 10, 1)]
    records += [make_snapshot(topic_id=OTHER_TOPIC_ID), make_snapshot("another")]
    page = await get_json(f"{LIST}?group=orders&limit=2&offset=2", records)
    assert [(item["topic_id"], item["partition"]) for item in page["items"]] == [
        (TOPIC, 10),
        (topic_id_text(OTHER_TOPIC_ID), 0),
    ]
    assert page["total"] == 4


async def test_next_page_of_groups_neither_repeats_nor_omits_groups_of_a_changing_list() -> None:
    async with run_admin([make_snapshot(f"g{number}") for number in range(1, 6)]) as coordinator:
        first = (await coordinator.get(f"{GROUPS}?limit=2")).json()
        assert ([item["group"] for item in first["items"]], first["next"]) == (["g1", "g2"], "g2")
        # g1 is deleted and g0 appears: an offset of 2 would now repeat or omit a group.
        deleted, added = make_snapshot("g1"), make_snapshot("g0")
        for record in (deleted._replace(value=None), added):
            shard = coordinator.runtime._runners[state_partition(record.key, SHARDS)].shard
            shard.replay(record, 99, NOW_MS)
        second = (await coordinator.get(f"{GROUPS}?limit=2&after=g2")).json()
        assert [item["group"] for item in second["items"]] == ["g3", "g4"]
        last = (await coordinator.get(f"{GROUPS}?limit=2&after={second['next']}")).json()
        assert ([item["group"] for item in last["items"]], last["next"]) == (["g5"], None)


async def test_share_partitions_are_listed_in_pages_by_the_after_parameter() -> None:
    records = [make_snapshot(partition=partition) for partition in (2, 10, 1)]
    records += [make_snapshot("a:b"), make_snapshot("z", OTHER_TOPIC_ID)]
    listed = []
    async with run_admin(records) as coordinator:
        after = ""
        while True:
            page = (await coordinator.get(f"{LIST}?limit=1{after}")).json()
            listed += [(item["group"], item["partition"]) for item in page["items"]]
            if page["next"] is None:
                break
            after = f"&{urlencode({'after': page['next']})}"
        sorted_page = (await coordinator.get(f"{LIST}?limit=1&sort=in-flight")).json()
    assert listed == [("a:b", 0), ("orders", 1), ("orders", 2), ("orders", 10), ("z", 0)]
    assert sorted_page["next"] is None


async def test_topic_is_accepted_by_name_if_the_cluster_is_known() -> None:
    topics = TopicsInMemory({TOPIC_ID: "parcels"})
    async with run_admin([make_snapshot()], topics) as coordinator:
        assert (await coordinator.get(state_url(topic="parcels"))).json()["topic_id"] == TOPIC
        listed = (await coordinator.get(f"{LIST}?topic=parcels")).json()
        assert listed["total"] == 1
        unknown = await coordinator.get(state_url(topic="letters"))
        assert (unknown.status_code, unknown.json()["message"]) == (404, "there is no topic 'letters'")


async def test_shards_are_listed_in_pages() -> None:
    record = make_snapshot()
    async with run_admin([record]) as coordinator:
        whole = (await coordinator.get("/api/v1/shards")).json()
        part = (await coordinator.get("/api/v1/shards?limit=1&offset=2")).json()
    assert [item["state_partition"] for item in whole["items"]] == [0, 1, 2, 3]
    assert part["items"] == whole["items"][2:3]
    shard = whole["items"][state_partition(record.key, SHARDS)]
    assert (shard["status"], shard["share_partitions"], shard["loaded_records"]) == ("ACTIVE", 1, 1)
    assert (shard["start_log_offset"], shard["end_log_offset"]) == (0, 1)


async def test_invalid_paths_and_parameters_return_the_same_json_error() -> None:
    cases = [
        (state_url(partition=1), 404, f"share-partition orders:{TOPIC}:1 has no state here"),
        (state_url(topic="short"), 422, "topic: 'short' is not a topic id, and names are unknown: "),
        (state_url(topic="x" * 36), 422, f"topic: '{'x' * 36}' is not a topic id"),
        (state_url(topic="x" * 250), 422, "topic: String should have at most 249 characters"),
        (state_url(partition="-1"), 422, "partition: Input should be greater than or equal to 0"),
        (state_url(partition="x"), 422, "partition: Input should be a valid integer"),
        (state_url(partition="2147483648"), 422, "partition: Input should be less than or equal to"),
        (f"{GROUPS}?limit=0", 422, "limit: Input should be greater than or equal to 1, not '0'"),
        (f"{GROUPS}?limit=10001", 422, "limit: Input should be less than or equal to 10000"),
        (f"{GROUPS}?offset={2**63}", 422, "offset: Input should be less than or equal to 2147483647"),
        (f"{GROUPS}?offset=-1", 422, "offset: Input should be greater than or equal to 0"),
        (f"{GROUPS}?after=a&offset=1", 422, "after: it can be used only in the default order"),
        (f"{GROUPS}?after=a&sort=last-write", 422, "after: it can be used only in the default order"),
        (f"{LIST}?limit=1001", 422, "limit: Input should be less than or equal to 1000"),
        (
            f"{LIST}?sort=size",
            422,
            "sort: Input should be 'key', 'in-flight', 'delivery-count'",
        ),
        (f"{LIST}?topic=short", 422, "topic: 'short' is not a topic id"),
        (f"{LIST}?after=a", 422, "after: 'a' is not of the form group:topicId:partition"),
        ("/nowhere", 404, "there is no such path"),
        ("/docs", 404, "there is no such path"),
    ]
    async with run_admin([make_snapshot()]) as coordinator:
        for path, status, message in cases:
            answer = await coordinator.get(path)
            assert answer.status_code == status, path
            assert set(answer.json()) == {"status", "message"}
            assert answer.json()["status"] == status
            assert answer.json()["message"].startswith(message)


async def test_state_of_an_unloaded_shard_returns_503() -> None:
    """A 404 would wrongly mean that no state exists."""
    record = make_snapshot()
    number = state_partition(record.key, SHARDS)
    async with run_admin([record]) as coordinator:
        coordinator.runtime._runners[number].close()
        share_partition = await coordinator.get(state_url())
        groups = await coordinator.get(GROUPS)
    assert share_partition.status_code == 503
    assert f"shard {number} of orders:{TOPIC}:0 is CLOSED" in share_partition.json()["message"]
    assert groups.json()["missing_shards"] == [number]
