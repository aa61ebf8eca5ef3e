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
from tests.unit.admin.admin_server import SHARDS, AdminTestClient, enable_group_ownership, run_admin
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


def make_snapshot_and_updates(partition: int, count: int) -> list[StateRecord]:
    """Return a snapshot of a share-partition and `count` updates after it."""
    first = make_snapshot(partition=partition)
    return [first, *(StateRecord(first.key, ShareUpdateValue(3, 8, 101 + n, b"", 4)) for n in range(count))]


async def post_write_request(
    coordinator: AdminTestClient, what: str, order: Mapping[str, object], status: int = 200
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


@pytest.mark.parametrize(
    ("order", "status", "said"),
    [
        ({"shard": 0}, 409, "this coordinator owns all shards (ownership=static)"),
        ({"shard": SHARDS}, 404, "there is no shard 4; shards are numbered from 0 to 3"),
        ({"shard": -1}, 422, "shard: Input should be greater than or equal to 0"),
        ({"shard": True}, 422, "shard: Input should be a valid integer, not True"),
        ({"shard": 0, "execute": "yes"}, 422, "execute: Input should be a valid boolean"),
        ({"shard": 0, "exceute": True}, 422, "exceute: Extra inputs are not permitted"),
    ],
)
async def test_invalid_write_request_is_refused(
    write_settings: dict[str, str], order: dict[str, object], status: int, said: str
) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        for execute in ({}, {"execute": True}):
            answer = await post_write_request(coordinator, "hand-overs", {**execute, **order}, status)
            assert answer["message"].startswith(said)


async def test_lone_surrogate_in_a_write_request_is_refused(write_settings: dict[str, str]) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        enable_group_ownership(coordinator)
        coordinator.owners.set_assignment(make_assignment(US, OTHER))
        order = json.dumps({"shard": 0, "to": "\ud800"})
        headers = {**bearer_header(WRITING), "Content-Type": "application/json"}
        answer = await coordinator.post_bytes("/api/v1/hand-overs", order.encode(), headers)
        assert answer.status_code in (404, 422)
        assert "\\ud800" in answer.json()["message"]


async def test_write_request_for_a_shard_elsewhere_names_its_owner(
    write_settings: dict[str, str],
) -> None:
    record = make_snapshot(topic_id=OTHER_TOPIC_ID)
    shard = find_shard(record)
    async with run_admin([record], **write_settings) as coordinator:
        coordinator.runtime.resign(shard)
        owners = tuple(int(number == shard) for number in range(SHARDS))
        coordinator.owners.set_assignment(Assignment(1, (US, OTHER), owners))
        order = {"shard": shard, "execute": True}
        answer = await post_write_request(coordinator, "hand-overs", order, 503)
        assert answer["message"] == f"shard {shard} is CLOSED here"
        assert answer["owner"]["page"] == "https://two:9096"


def make_assignment(*replicas: Replica, generation: int = 1, owner: int = 0) -> Assignment:
    return Assignment(generation, replicas, (owner,) * SHARDS)


async def test_shard_is_handed_over_to_the_named_member(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        enable_group_ownership(coordinator)
        coordinator.owners.set_assignment(make_assignment(US, OTHER))
        dry = await post_write_request(coordinator, "hand-overs", {"shard": 2, "to": "two:9095"})
        assert dry["outcome"] == "would request the hand-over of shard 2 to two:9095"
        assert (dry["previous_owner"]["wire"], dry["new_owner"]) == ("one:9095", None)
        assert coordinator.requested_hand_overs == []

        order = {"shard": 2, "to": "https://two:9096", "execute": True}
        handing = asyncio.ensure_future(post_write_request(coordinator, "hand-overs", order))
        while not coordinator.requested_hand_overs:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert coordinator.requested_hand_overs == [(2, "other")]
        coordinator.runtime.resign(2)
        # The group names the new owner some time after the release.
        await asyncio.sleep(0.5)
        coordinator.owners.set_assignment(Assignment(2, (US, OTHER), (0, 0, 1, 0)))
        done = await handing
        assert (done["previous_owner"]["wire"], done["new_owner"]["wire"]) == ("one:9095", "two:9095")
        assert done["outcome"] == "shard 2 was released and is owned by two:9095"
    assert audit_lines(caplog)[-1][4] == done["outcome"]


async def test_hand_over_refused_by_the_group_leader_returns_409(write_settings: dict[str, str]) -> None:
    async with run_admin([make_snapshot()], **write_settings) as coordinator:
        enable_group_ownership(coordinator)
        coordinator.owners.set_assignment(make_assignment(US, OTHER))
        handing = asyncio.ensure_future(
            post_write_request(coordinator, "hand-overs", {"shard": 1, "execute": True}, 409)
        )
        while not coordinator.requested_hand_overs:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert coordinator.requested_hand_overs == [(1, "")]
        coordinator.owners.set_assignment(make_assignment(US, OTHER, generation=2))
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
            coordinator.owners.set_assignment(assignment)
            answer = await post_write_request(coordinator, "hand-overs", {"shard": 0, "to": to}, status)
            assert answer["message"].startswith(said)
