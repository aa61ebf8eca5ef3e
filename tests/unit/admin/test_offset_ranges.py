"""Share-partitions with many state batches: pages, and no long step of the event loop."""

import asyncio
import json
import sys
from types import FrameType

import pytest

from coordinator.operate.admin import listing
from coordinator.operate.admin.api_models import OffsetRange, Page
from coordinator.operate.admin.views import make_offset_range, unpack_slices
from coordinator.shard.batches import first_batch_index
from protocol.state_batches import unpack
from protocol.state_records import topic_id_text
from tests.builders import TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import get_json, run_admin
from tests.unit.admin.test_listing import run_and_count_yields
from tests.unit.admin.test_state_routes import expected_offset_range, make_snapshot

ONE = f"/api/v1/share-partition?group=orders&topic={topic_id_text(TOPIC_ID)}&partition=0"
# A state batch for every second offset from 100, with delivery states 0 and 2 in turn.
MANY = pack_batches(*((offset, offset, offset % 4, 1) for offset in range(100, 20_100, 2)))
# The largest number of function calls in one step of the event loop.
CALLS_MAX = 5_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        ONE,
        f"{ONE}&limit=10000",
        "/api/v1/share-partitions",
        "/api/v1/share-partitions?sort=in-flight",
        "/api/v1/share-partitions?sort=delivery-count",
    ],
)
async def test_no_event_loop_step_visits_all_state_batches(path: str) -> None:
    calls = longest = 0

    def count_call(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def yield_repeatedly() -> None:
        nonlocal calls, longest
        while True:
            longest, calls = max(longest, calls), 0
            await asyncio.sleep(0)

    async with run_admin([make_snapshot(batches=MANY)]) as coordinator:
        other = asyncio.create_task(yield_repeatedly())
        # The first request fills caches.
        await coordinator.get(path)
        before = sys.getprofile()
        sys.setprofile(count_call)
        calls = longest = 0
        try:
            answer = await coordinator.get(path)
        finally:
            sys.setprofile(before)
        other.cancel()
    assert answer.status_code == 200
    assert longest < CALLS_MAX


def test_page_is_rendered_in_slices() -> None:
    items = [make_offset_range(batch) for batch in unpack(MANY)]
    whole = Page[OffsetRange](items=items, total=10_000, limit=10_000, offset=0)
    empty = whole.model_copy(update={"items": []})
    response, turns = run_and_count_yields(listing.render_page(empty, items, 5))
    assert json.loads(response.body) == whole.model_dump()
    assert turns >= 10_000 * 5 // listing.SLICE


@pytest.mark.parametrize(("offset", "limit"), [(0, None), (0, 1), (3, 600), (9_990, 100), (10_000, 5)])
def test_unpack_slices_returns_the_requested_part(offset: int, limit: int | None) -> None:
    part = unpack(MANY)[offset : None if limit is None else offset + limit]
    assert [batch for some in unpack_slices(MANY, offset, limit) for batch in some] == part


@pytest.mark.parametrize(
    ("offset", "number"), [(0, 0), (100, 0), (101, 1), (20_098, 9_999), (20_099, 10_000)]
)
def test_first_batch_index_counts_the_batches_below_an_offset(offset: int, number: int) -> None:
    assert first_batch_index(MANY, offset) == number


async def test_offset_ranges_near_an_offset_are_added_on_request() -> None:
    batches = pack_batches((100, 109, 0, 2), (110, 110, 4, 5), (112, 118, 2, 1))
    async with run_admin([make_snapshot(batches=batches)]) as coordinator:
        detail = (await coordinator.get(f"{ONE}&from_offset=110&limit=1")).json()
        plain = (await coordinator.get(ONE)).json()
    assert detail["near"] == [
        expected_offset_range(110, 110, "ARCHIVED", 4, 5),
        expected_offset_range(112, 118, "ACKNOWLEDGED", 2, 1),
    ]
    assert [item["first_offset"] for item in detail["in_flight"]["items"]] == [100]
    assert "near" not in plain


async def test_at_most_256_offset_ranges_near_an_offset_are_returned() -> None:
    detail = await get_json(f"{ONE}&from_offset=10240", [make_snapshot(batches=MANY)])
    assert [item["first_offset"] for item in detail["near"]] == list(range(10_240, 10_752, 2))
