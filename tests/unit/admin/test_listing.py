"""Lists of groups and share-partitions: sorting, paging, and yielding to other tasks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from coordinator.operate.admin import listing
from coordinator.operate.admin.listing import SharePartitionOrder
from protocol.state_records import topic_id_text
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import run_admin
from tests.unit.admin.test_state_routes import make_snapshot

LIST = "/api/v1/share-partitions"
RECORDS = [
    make_snapshot("a", partition=0, batches=pack_batches((100, 109, 0, 2))),
    make_snapshot("a", partition=1, batches=pack_batches((100, 100, 0, 9))),
    make_snapshot("b", partition=0, batches=pack_batches((100, 119, 2, 1), (130, 139, 0, 1))),
    make_snapshot("b", OTHER_TOPIC_ID, partition=5),
]


def run_and_count_yields(work: Coroutine[Any, None, Any]) -> tuple[Any, int]:
    """Run a coroutine that awaits only `asyncio.sleep(0)`; return its result and the number of yields."""
    count = 0
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value, count
        count += 1


async def test_share_partitions_are_sorted_and_filtered_by_query() -> None:
    cases = [
        ("", ["a0", "a1", "b0", "b5"]),
        ("descending=true", ["b5", "b0", "a1", "a0"]),
        ("sort=in-flight", ["b5", "a1", "a0", "b0"]),
        ("sort=in-flight&descending=true", ["b0", "a0", "a1", "b5"]),
        ("sort=delivery-count&descending=true", ["a1", "a0", "b0", "b5"]),
        ("sort=last-write&descending=true", ["a0", "a1", "b0", "b5"]),
        ("group=b", ["b0", "b5"]),
        (f"topic={topic_id_text(OTHER_TOPIC_ID)}", ["b5"]),
        (f"group=a&topic={topic_id_text(TOPIC_ID)}&sort=in-flight&descending=true&limit=1&offset=1", ["a1"]),
        ("group=nobody", []),
        ("offset=9", []),
    ]
    async with run_admin(RECORDS) as coordinator:
        for query, expected in cases:
            page = (await coordinator.get(f"{LIST}?{query}")).json()
            assert [f"{item['group']}{item['partition']}" for item in page["items"]] == expected, query
            assert page["missing_shards"] == []


async def test_groups_are_filtered_and_sorted() -> None:
    cases = [
        ("", ["Apes", "apples", "pears"]),
        ("descending=true", ["pears", "apples", "Apes"]),
        ("sort=share-partitions&descending=true", ["apples", "Apes", "pears"]),
        ("sort=state-batches&descending=true", ["pears", "Apes", "apples"]),
        ("contains=AP", ["Apes", "apples"]),
        ("contains=%25", []),
    ]
    records = [make_snapshot("apples", partition=number) for number in range(2)]
    records += [make_snapshot("pears", batches=pack_batches((100, 100, 0, 1))), make_snapshot("Apes")]
    async with run_admin(records) as coordinator:
        for query, expected in cases:
            page = (await coordinator.get(f"/api/v1/groups?{query}")).json()
            assert [item["group"] for item in page["items"]] == expected, query
            assert page["total"] == len(expected)


@pytest.mark.parametrize("offset", [0, 1, 999, 1000, 2500, 3499, 3500])
@pytest.mark.parametrize("backwards", [False, True])
def test_sorted_page_equals_slice_of_full_sort(offset: int, backwards: bool) -> None:
    entries = [(number * 7919) % 3500 for number in range(3500)]
    part, turns = run_and_count_yields(
        listing.sorted_page(entries, lambda entry: entry, limit=10, offset=offset, backwards=backwards)
    )
    assert part == sorted(entries, reverse=backwards)[offset : offset + 10]
    assert turns >= 3


@pytest.mark.parametrize(
    ("path", "turns_min"), [(f"{LIST}?limit=1000&sort=in-flight", 15), ("/api/v1/groups", 2)]
)
async def test_long_list_yields_to_other_tasks(path: str, turns_min: int) -> None:
    async with run_admin([make_snapshot(f"g{number}") for number in range(5000)]) as coordinator:
        turns = 0

        async def yield_repeatedly() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(yield_repeatedly())
        # Measure the event-loop steps of a simple request first.
        await coordinator.get("/livez")
        turns_of_any, turns = turns, 0
        assert (await coordinator.get(path)).json()["total"] == 5000
        other.cancel()
    assert turns >= turns_of_any + turns_min


@pytest.mark.parametrize("order", [SharePartitionOrder.KEY, SharePartitionOrder.LAST_WRITE])
@pytest.mark.parametrize("descending", [False, True])
async def test_first_share_partitions_are_selected_with_bounded_memory(
    order: SharePartitionOrder, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    for name in ("nsmallest", "nlargest"):
        select = getattr(listing, name)

        def record_entry_count(count: int, entries: Any, key: Any, select: Any = select) -> Any:
            held.append(len(entries))
            return select(count, entries, key=key)

        monkeypatch.setattr(listing, name, record_entry_count)
    monkeypatch.setattr(listing, "SLICE", 20)
    async with run_admin([make_snapshot("a", partition=number) for number in range(200)]) as coordinator:
        runtime = coordinator.runtime
        total, first = await listing.select_share_partitions(
            runtime, lambda key: True, order, descending=descending, limit=10, offset=0
        )
        whole = [key async for key, _ in runtime.share_partitions()]
    assert total == 200
    assert max(held) == 21
    backwards = descending and order is SharePartitionOrder.KEY
    assert [key for _, key, _ in first] == sorted(whole, reverse=backwards)[:10]


@pytest.mark.slow
async def test_lists_are_built_one_at_a_time_with_bounded_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    running = most = 0
    make = listing.select_groups

    async def count_running(*args: Any, **more: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        try:
            return await make(*args, **more)
        finally:
            running -= 1

    monkeypatch.setattr(listing, "select_groups", count_running)
    monkeypatch.setattr(listing, "WAITING_MAX", 3)
    async with run_admin(RECORDS) as coordinator:
        answers = await asyncio.gather(*(coordinator.get("/api/v1/groups") for _ in range(10)))
        assert most == 1
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 503}
        assert statuses.count(200) >= 4
        assert (await coordinator.get("/api/v1/groups")).status_code == 200


async def test_cross_site_request_for_a_list_is_refused() -> None:
    async with run_admin(RECORDS) as coordinator:
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            answer = await coordinator.get("/api/v1/groups", headers={"Sec-Fetch-Site": site})
            assert answer.status_code == status, site
            assert (await coordinator.get("/livez", headers={"Sec-Fetch-Site": site})).status_code == 200
