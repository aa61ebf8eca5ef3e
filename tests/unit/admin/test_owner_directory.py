"""Owners of shards on other replicas, and the security headers of the page."""

import asyncio

import pytest

from coordinator.cluster.ownership import Assignment, Replica
from coordinator.operate.admin import OwnerDirectory
from protocol.routing import state_partition
from protocol.state_records import topic_id_text
from tests.builders import TOPIC_ID
from tests.unit.admin.admin_server import SHARDS, run_admin
from tests.unit.admin.test_state_routes import make_snapshot

TOPIC = topic_id_text(TOPIC_ID)
US = Replica("a", "10.0.0.1:9095", "10.0.0.1:9096", 1)
THEM = Replica("b", "10.0.0.2:9095", "0.0.0.0:9096", 2)


def make_assignment(*places: int) -> Assignment:
    return Assignment(3, (US, THEM), places)


async def test_shards_show_their_owners() -> None:
    async with run_admin([make_snapshot()]) as coordinator:
        coordinator.owners.set_assignment(make_assignment(0, 1, -1, 0))
        shards = (await coordinator.get("/api/v1/shards")).json()["items"]
    assert [shard["owner"] and shard["owner"]["wire"] for shard in shards] == [
        "10.0.0.1:9095",
        "10.0.0.2:9095",
        None,
        "10.0.0.1:9095",
    ]
    assert [shard["here"] for shard in shards] == [True] * 4


@pytest.mark.parametrize(
    ("http", "page"),
    [
        ("10.0.0.1:9096", "http://10.0.0.1:9096"),
        # For a wildcard HTTP address, the page uses the host of the advertised broker address.
        ("0.0.0.0:9096", "http://10.0.0.2:9096"),
        ("[::]:9096", "http://10.0.0.2:9096"),
        # Another machine cannot reach a loopback HTTP address.
        ("127.0.0.1:9096", None),
        ("localhost:9096", None),
        ("https://[::1]:9096", None),
        ("https://10.0.0.1:9096", "https://10.0.0.1:9096"),
        ("https://0.0.0.0:9096", "https://10.0.0.2:9096"),
        ("", None),
        ("javascript://10.0.0.1:9096", None),
        ("javascript:alert(1)", None),
    ],
)
def test_owner_page_is_a_reachable_url_or_none(http: str, page: str | None) -> None:
    directory = OwnerDirectory()
    directory.set_assignment(Assignment(1, (Replica("a", "10.0.0.2:9095", http),), (0,)))
    owner = directory.owner(0)
    assert owner is not None
    assert owner.page == page


def test_loopback_page_url_is_used_if_the_owner_is_on_this_machine() -> None:
    directory = OwnerDirectory()
    directory.set_assignment(Assignment(1, (Replica("a", "localhost:9095", "127.0.0.1:9096"),), (0,)))
    owner = directory.owner(0)
    assert owner is not None
    assert owner.page == "http://127.0.0.1:9096"


async def test_request_for_a_shard_of_another_owner_names_the_owner() -> None:
    record = make_snapshot()
    number = state_partition(record.key, SHARDS)
    async with run_admin([record]) as coordinator:
        coordinator.owners.set_assignment(make_assignment(*(int(shard == number) for shard in range(SHARDS))))
        coordinator.runtime.resign(number)
        while coordinator.runtime.resigning_shards:  # noqa: ASYNC110 (event-loop steps, not time)
            await asyncio.sleep(0)
        answer = await coordinator.get(f"/api/v1/share-partition?group=orders&topic={TOPIC}&partition=0")
        shards = (await coordinator.get("/api/v1/shards")).json()["items"]
        unreachable = Replica("b", "10.0.0.2:9095", "127.0.0.1:9096", 2)
        coordinator.owners.set_assignment(
            Assignment(4, (US, unreachable), make_assignment(*[1] * SHARDS).owners)
        )
        named = await coordinator.get(f"/api/v1/share-partition?group=orders&topic={TOPIC}&partition=0")
        coordinator.owners.set_assignment(None)
        unknown = await coordinator.get(f"/api/v1/share-partition?group=orders&topic={TOPIC}&partition=0")
    assert answer.status_code == 503
    assert answer.json()["owner"] == {"wire": "10.0.0.2:9095", "page": "http://10.0.0.2:9096", "broker_id": 2}
    assert [shard["here"] for shard in shards] == [shard != number for shard in range(SHARDS)]
    assert named.json()["message"].endswith("is CLOSED; 10.0.0.2:9095 owns it")
    assert named.json()["owner"]["page"] is None
    assert set(unknown.json()) == {"status", "message"}


async def test_page_has_a_strict_content_security_policy() -> None:
    assets = [f"/assets/{name}" for name in ("page.js", "api.js", "views.js", "style.css", "icon.svg")]
    async with run_admin() as coordinator:
        for path in ("/", *assets):
            answer = await coordinator.get(path)
            policy = answer.headers["content-security-policy"]
            assert answer.status_code == 200, path
            assert "default-src 'none'" in policy
            assert "trusted-types 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
