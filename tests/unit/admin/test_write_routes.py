"""Write requests over HTTP: dry run, execution on the owner of the shard, and audit."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.ownership import Assignment, Replica
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition
from protocol.state_records import StateRecord, topic_id_text
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID
from tests.unit.admin.admin_server import SHARDS, AdminTester, run_admin
from tests.unit.admin.test_access_control import bearer_header
from tests.unit.admin.test_state_routes import make_snapshot
from tests.unit.admin.test_tokens import WRITING, write_token_file

TOPIC = topic_id_text(TOPIC_ID)
US, OTHER = Replica("us", "one:9095", "one:9096"), Replica("other", "two:9095", "https://two:9096")


@pytest.fixture
def write_settings(tmp_path: Path) -> dict[str, str]:
    return {
        "http_token_file": str(write_token_file(tmp_path, f"alice write {WRITING}")),
        "http_writes": "true",
    }


def find_shard(record: StateRecord) -> int:
    return state_partition(record.key, SHARDS)


def make_updates(partition: int, count: int) -> list[StateRecord]:
    """Return a snapshot of a share-partition and `count` updates after it."""
    first = make_snapshot(partition=partition)
    return [first, *(StateRecord(first.key, ShareUpdateValue(3, 8, 101 + n, b"", 4)) for n in range(count))]


async def post_write_request(
    coordinator: AdminTester, what: str, order: Mapping[str, object], status: int = 200
) -> dict[str, Any]:
    answer = await coordinator.post(f"/api/v1/{what}", order, bearer_header(WRITING))
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str, str, str]]:
    lines = [vars(record) for record in caplog.records if record.name == "coordinator.audit"]
    return [
        (line["levelname"], line["who"], line["what"], str(line["order"]), line["outcome"]) for line in lines
    ]


async def test_snapshot_is_written_only_with_execute(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    records = [*make_updates(0, 3), *make_updates(1, 2)]
    async with run_admin(records, **write_settings) as coordinator:
        before = coordinator.runtime.share_partition(records[0].key)
        assert before is not None
        one = {"group": "orders", "topic": TOPIC, "partition": 0}
        dry = await post_write_request(coordinator, "snapshots", one)
        assert (dry["executed"], dry["share_partitions"], dry["updates"]) == (False, 1, 3)
        assert dry["bytes"] == before.snapshot_bytes
        assert coordinator.runtime.share_partition(records[0].key) == before
        assert audit_lines(caplog) == []

        done = await post_write_request(coordinator, "snapshots", {**one, "execute": True})
        assert done == {**dry, "executed": True}
        after = coordinator.runtime.share_partition(records[0].key)
        assert after is not None
        assert (after.updates, after.snapshot_epoch) == (0, before.snapshot_epoch + 1)
        assert (after.start_offset, after.batches) == (before.start_offset, before.batches)
        line = ("INFO", "token alice", "snapshot", str(one), "1 snapshots")
        assert audit_lines(caplog) == [line]
        # Snapshot the rest of the group. The first share-partition is included, though it has no updates.
        group = await post_write_request(coordinator, "snapshots", {"group": "orders", "execute": True})
        assert (group["share_partitions"], group["updates"]) == (2, 2)


async def test_snapshot_request_covers_a_whole_shard(write_settings: dict[str, str]) -> None:
    records = [record for partition in range(20) for record in make_updates(partition, 1)]
    of_each = [sum(find_shard(record) == number for record in records) // 2 for number in range(SHARDS)]
    async with run_admin(records, **write_settings) as coordinator:
        for number in range(SHARDS):
            order = {"shard": number, "execute": True}
            assert (await post_write_request(coordinator, "snapshots", order))["share_partitions"] == of_each[
                number
            ]
        assert (await post_write_request(coordinator, "snapshots", {"group": "orders"}))["updates"] == 0


async def test_prune_removes_redundant_records(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    records = make_updates(0, 5)
    shard = find_shard(records[0])
    async with run_admin(records, **write_settings) as coordinator:
        await post_write_request(coordinator, "snapshots", {"shard": shard, "execute": True})
        dry = await post_write_request(coordinator, "prunes", {"shard": shard})
        needless = {"state_partition": shard, "start_log_offset": 0, "redundant_offset": 6, "records": 6}
        assert dry == {"executed": False, "shards": [needless]}
        assert coordinator.runtime.shard_views()[shard].start_log_offset == 0
        done = await post_write_request(coordinator, "prunes", {"execute": True})
        assert [each["records"] for each in done["shards"]] == [
            6 if number == shard else 0 for number in range(SHARDS)
        ]
        assert coordinator.runtime.shard_views()[shard].start_log_offset == 6
    assert audit_lines(caplog)[-1] == ("INFO", "token alice", "prune", "{}", "6 records are redundant")


@pytest.mark.parametrize(
    ("what", "order", "status", "said"),
    [
        ("snapshots", {}, 422, "specify a shard, a group, or a group with a topic and a partition"),
        ("snapshots", {"shard": 0, "group": "orders"}, 422, "specify a shard, a group"),
        ("snapshots", {"group": "orders", "topic": TOPIC}, 422, "specify a shard, a group"),
        ("snapshots", {"shard": 0, "topic": TOPIC, "partition": 0}, 422, "specify a shard, a group"),
        ("snapshots", {"group": "nobody"}, 404, "group 'nobody' has no state here"),
        ("snapshots", {"group": "orders", "topic": TOPIC, "partition": 7}, 404, "share-partition orders:"),
        ("snapshots", {"group": "orders", "topic": "x", "partition": 0}, 422, "topic: 'x' is not a topic id"),
        (
            "snapshots",
            {"group": "orders", "topic": TOPIC, "partition": 2**31},
            422,
            "partition: Input should",
        ),
        ("snapshots", {"shard": True}, 422, "shard: Input should be a valid integer, not True"),
        ("snapshots", {"shard": 0, "execute": "yes"}, 422, "execute: Input should be a valid boolean"),
        ("snapshots", {"shard": SHARDS}, 404, "there is no shard 4; shards are numbered from 0 to 3"),
        ("snapshots", {"shard": -1}, 422, "shard: Input should be greater than or equal to 0"),
        ("snapshots", {"shard": 0, "exceute": True}, 422, "exceute: Extra inputs are not permitted"),
        ("prunes", {"shard": SHARDS}, 404, "there is no shard 4"),
        ("hand-overs", {"shard": 0}, 409, "this coordinator owns all shards (ownership=static)"),
    ],
)
async def test_invalid_write_request_is_refused(
    write_settings: dict[str, str], what: str, order: dict[str, object], status: int, said: str
) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        for execute in ({}, {"execute": True}):
            answer = await post_write_request(coordinator, what, {**execute, **order}, status)
            assert answer["message"].startswith(said)


@pytest.mark.parametrize("part", ["group", "topic"])
async def test_lone_surrogate_in_a_write_request_is_refused(
    write_settings: dict[str, str], part: str
) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        order = json.dumps({"group": "orders", "topic": TOPIC, "partition": 0} | {part: "\ud800"})
        headers = {**bearer_header(WRITING), "Content-Type": "application/json"}
        answer = await coordinator.post_bytes("/api/v1/snapshots", order.encode(), headers)
        assert answer.status_code in (404, 422)
        assert "\\ud800" in answer.json()["message"]


async def test_write_request_for_a_shard_elsewhere_names_its_owner(write_settings: dict[str, str]) -> None:
    record = make_snapshot(topic_id=OTHER_TOPIC_ID)
    shard = find_shard(record)
    async with run_admin([record], **write_settings) as coordinator:
        coordinator.runtime.resign(shard)
        owners = tuple(int(number == shard) for number in range(SHARDS))
        coordinator.owners.follow(Assignment(1, (US, OTHER), owners))
        for what in ("snapshots", "prunes", "hand-overs"):
            answer = await post_write_request(coordinator, what, {"shard": shard, "execute": True}, 503)
            assert answer["message"] == f"shard {shard} is CLOSED here"
            assert answer["owner"]["page"] == "https://two:9096"


async def test_snapshot_request_fails_with_409_if_the_log_takes_no_writes(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_snapshot()
    async with run_admin([record], **write_settings) as coordinator:
        monkeypatch.setattr(coordinator.runtime._log, "health", lambda: "The disk is full.")
        answer = await post_write_request(coordinator, "snapshots", {"group": "orders", "execute": True}, 409)
        said = "0 of 1 snapshots were written: The log takes no writes: The disk is full."
        assert answer["message"] == said
    assert audit_lines(caplog) == [("WARNING", "token alice", "snapshot", "{'group': 'orders'}", said)]


def make_assignment(*replicas: Replica, generation: int = 1, owner: int = 0) -> Assignment:
    return Assignment(generation, replicas, (owner,) * SHARDS)


def enable_group_ownership(coordinator: AdminTester) -> None:
    # Config refuses ownership=group with log=memory. The HTTP routes check only the setting `ownership`.
    object.__setattr__(coordinator.config, "ownership", "group")


async def test_shard_is_handed_over_to_the_named_member(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        enable_group_ownership(coordinator)
        coordinator.owners.follow(make_assignment(US, OTHER))
        dry = await post_write_request(coordinator, "hand-overs", {"shard": 2, "to": "two:9095"})
        assert dry["outcome"] == "would request the hand-over of shard 2 to two:9095"
        assert (dry["previous_owner"]["wire"], dry["new_owner"], coordinator.wishes) == ("one:9095", None, [])

        order = {"shard": 2, "to": "https://two:9096", "execute": True}
        handing = asyncio.ensure_future(post_write_request(coordinator, "hand-overs", order))
        while not coordinator.wishes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert coordinator.wishes == [(2, "other")]
        coordinator.runtime.resign(2)
        coordinator.owners.follow(Assignment(2, (US, OTHER), (0, 0, 1, 0)))
        done = await handing
        assert (done["previous_owner"]["wire"], done["new_owner"]["wire"]) == ("one:9095", "two:9095")
        assert done["outcome"] == "shard 2 was released and is owned by two:9095"
    assert audit_lines(caplog)[-1][4] == done["outcome"]


async def test_hand_over_refused_by_the_group_leader_returns_409(write_settings: dict[str, str]) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        enable_group_ownership(coordinator)
        coordinator.owners.follow(make_assignment(US, OTHER))
        handing = asyncio.ensure_future(
            post_write_request(coordinator, "hand-overs", {"shard": 1, "execute": True}, 409)
        )
        while not coordinator.wishes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert coordinator.wishes == [(1, "")]
        coordinator.owners.follow(make_assignment(US, OTHER, generation=2))
        assert (await handing)["message"].startswith("the group's leader left shard 1 here")


async def test_hand_over_requires_another_member(write_settings: dict[str, str]) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        enable_group_ownership(coordinator)
        for assignment, to, status, said in (
            (None, None, 409, "the owners are not known"),
            (make_assignment(US), None, 409, "this coordinator is the only member of its group"),
            (make_assignment(US, OTHER), "one:9095", 409, "one:9095 owns shard 0 already"),
            (
                make_assignment(US, OTHER),
                "three:9095",
                404,
                "there is no coordinator three:9095 in the group; its members are two",
            ),
        ):
            coordinator.owners.follow(assignment)
            answer = await post_write_request(coordinator, "hand-overs", {"shard": 0, "to": to}, status)
            assert answer["message"].startswith(said)
