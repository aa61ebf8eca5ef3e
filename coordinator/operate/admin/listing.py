"""List groups and share-partitions in slices, between which the event loop serves brokers.

A slice is limited by share-partitions and by state batches, because one share-partition may have two batches
and another ten thousand.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from heapq import merge, nlargest, nsmallest
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from fastapi import HTTPException, Response
from pydantic import BaseModel

from coordinator.observe.signals import GroupSignals
from coordinator.operate.admin.views import DeliverySums, GroupTotals, unpack_slices
from coordinator.serve.state_view import StateView
from coordinator.shard import ShareState
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey

Entry = TypeVar("Entry")

# The amount of work, in units, after which a task yields to the event loop: about a millisecond. One unit is
# the cost of skipping a share-partition.
SLICE = 1_000

# Maximum number of requests that wait while another request lists state.
WAITING_MAX = 32

# Up to this number of entries (offset + limit), entries after the page are discarded during the selection.
# For more entries, discarding would block the event loop for too long.
_SELECTED_MAX = 5 * SLICE

# Cost of ranking or summing one offset range, relative to skipping a share-partition.
_SORT_WORK = 2
_SUM_WORK = 4


class GroupOrder(StrEnum):
    """The sort order of groups."""

    GROUP = "group"
    SHARE_PARTITIONS = "share-partitions"
    STATE_BATCHES = "state-batches"
    LAG = "lag"
    PROBLEM = "problem"
    LAST_WRITE = "last-write"


class SharePartitionOrder(StrEnum):
    """The sort order of share-partitions; ties are sorted by group, topic id and partition."""

    KEY = "key"
    IN_FLIGHT = "in-flight"
    DELIVERY_COUNT = "delivery-count"
    LAST_WRITE = "last-write"


class ListedSharePartition(NamedTuple):
    """A share-partition in a list, and its sort key."""

    rank: int
    key: SharePartitionKey
    state: ShareState


class YieldTimer:
    """Yields to the event loop after each slice of work."""

    def __init__(self) -> None:
        self._left = SLICE

    async def add_work(self, work: int) -> None:
        """Count `work` units; after each `SLICE` units, let other tasks run."""
        self._left -= work
        if self._left <= 0:
            await asyncio.sleep(0)
            self._left = SLICE


class ListingLimiter:
    """Lets one request at a time list the whole state; a limited number of others wait.

    Twenty concurrent lists of a million groups took 8 GB. In sequence, twenty lists take the memory of one
    list.
    """

    def __init__(self, waiting_max: int | None = None) -> None:
        self._lock = asyncio.Lock()
        self._waiting_max = WAITING_MAX if waiting_max is None else waiting_max
        self._waiting = 0

    @asynccontextmanager
    async def wait_for_turn(self) -> AsyncIterator[None]:
        """Wait until no other list is in progress. Raises HTTPException with status 503."""
        if self._waiting >= self._waiting_max:
            raise HTTPException(503, "Too many such requests; try again.", {"Retry-After": "5"})
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


async def select_groups(
    runtime: StateView,
    contained: str,
    order: GroupOrder,
    signals: Mapping[str, GroupSignals],
    *,
    descending: bool,
    limit: int,
    offset: int,
    after: str | None = None,
) -> tuple[int, list[tuple[str, GroupTotals]]]:
    """Return the number of selected groups, and one page of them with their totals.

    A group is selected if its id contains a text, ignoring case, and is greater than `after`. For each group,
    only its sort value is kept; totals are computed only for the groups of the page.
    """
    update: Callable[[int, ShareState], int] = _GROUP_SORT_VALUES.get(order, lambda before, state: 0)
    values: dict[str, int] = {}
    contained = contained.casefold()
    yield_timer = YieldTimer()
    async for key, state in runtime.share_partitions():
        group_id = key.group_id
        if after is not None and group_id <= after:
            continue
        if group_id in values or contained in group_id.casefold():
            values[group_id] = update(values.get(group_id, 0), state)
            await yield_timer.add_work(1)
    if order in (GroupOrder.LAG, GroupOrder.PROBLEM):
        unknown = GroupSignals(group="")
        for group_id in values:
            known = signals.get(group_id, unknown)
            values[group_id] = known.lag if order is GroupOrder.LAG else known.problem
    sign = -1 if descending else 1
    chosen = await sorted_page(
        values,
        lambda group_id: (sign * values[group_id], group_id),
        limit=limit,
        offset=offset,
        backwards=descending and order is GroupOrder.GROUP,
    )
    totals = {group_id: GroupTotals() for group_id in chosen}
    async for key, state in runtime.share_partitions():
        if (group := totals.get(key.group_id)) is not None:
            group.add(key, state)
            await yield_timer.add_work(1)
    return len(values), list(totals.items())


async def select_share_partitions(
    runtime: StateView,
    wanted: Callable[[SharePartitionKey], bool],
    order: SharePartitionOrder,
    *,
    descending: bool,
    limit: int,
    offset: int,
) -> tuple[int, list[ListedSharePartition]]:
    """Return the number of share-partitions that match, and one page of them.

    At most twice the entries up to the end of the page are kept in memory, unless these are more than
    `_SELECTED_MAX`.
    """
    backwards = descending and order is SharePartitionOrder.KEY
    select = nlargest if backwards else nsmallest
    sign = -1 if descending else 1
    count = offset + limit
    kept_max = max(2 * count, SLICE)
    total = 0
    first: list[ListedSharePartition] = []
    yield_timer = YieldTimer()
    async for key, state in runtime.share_partitions():
        if not wanted(key):
            continue
        total += 1
        value = await _sort_value(state, order, yield_timer)
        first.append(ListedSharePartition(sign * value, key, state))
        if len(first) > kept_max and count <= _SELECTED_MAX:
            first = select(count, first, key=_sort_key)
        await yield_timer.add_work(1)
    return total, await sorted_page(first, _sort_key, limit=limit, offset=offset, backwards=backwards)


def _sort_key(entry: ListedSharePartition) -> tuple[int, SharePartitionKey]:
    return entry.rank, entry.key


async def _sort_value(state: ShareState, order: SharePartitionOrder, yield_timer: YieldTimer) -> int:
    if order is SharePartitionOrder.LAST_WRITE:
        return state.last_write_ms
    value = 0
    if (update := _SORT_VALUES.get(order)) is not None:
        for some in unpack_slices(state.batches):
            value = update(value, some)
            await yield_timer.add_work(_SORT_WORK * len(some))
    return value


async def sum_batches(state: ShareState, yield_timer: YieldTimer) -> DeliverySums:
    sums = DeliverySums(state)
    for some in unpack_slices(state.batches):
        sums.add(some)
        await yield_timer.add_work(_SUM_WORK * len(some))
    return sums


async def sorted_page(
    entries: Iterable[Entry],
    sort_key: Callable[[Entry], Any],
    *,
    limit: int,
    offset: int,
    backwards: bool = False,
) -> list[Entry]:
    """Return `limit` entries from `offset` on, in sorted order.

    Slices are sorted separately and merged up to the end of the page, so that no step takes long.
    """
    yield_timer = YieldTimer()
    runs = []
    left = iter(entries)
    while one := sorted(islice(left, SLICE), key=sort_key, reverse=backwards):
        runs.append(one)
        await yield_timer.add_work(len(one))
    part: list[Entry] = []
    for number, entry in enumerate(islice(merge(*runs, key=sort_key, reverse=backwards), offset + limit)):
        if number >= offset:
            part.append(entry)
        await yield_timer.add_work(1)
    return part


async def render_page(
    answer: BaseModel, items: Iterable[BaseModel], work: int, *, exclude: set[str] | None = None
) -> Response:
    """Encode a response as JSON, item by item; `work` is the cost of an item.

    FastAPI would validate and encode a list of any length in one step.
    """
    yield_timer = YieldTimer()
    texts = []
    for item in items:
        texts.append(item.model_dump_json())
        await yield_timer.add_work(work)
    # No string in the JSON text can contain this marker, because JSON escapes quotes.
    before, empty, behind = answer.model_dump_json(exclude=exclude).partition('"items":[]')
    assert empty
    return Response(f'{before}"items":[{",".join(texts)}]{behind}', media_type="application/json")


def _add_in_flight(before: int, batches: list[StateBatch]) -> int:
    return before + sum(last - first + 1 for first, last, _, _ in batches)


def _max_delivery_count(before: int, batches: list[StateBatch]) -> int:
    return max(before, *(count for _, _, _, count in batches))


# Functions that update the sort value of a group with each of its share-partitions.
_GROUP_SORT_VALUES: dict[GroupOrder, Callable[[int, ShareState], int]] = {
    GroupOrder.SHARE_PARTITIONS: lambda before, state: before + 1,
    GroupOrder.STATE_BATCHES: lambda before, state: before + state.batch_count,
    GroupOrder.LAST_WRITE: lambda before, state: max(before, state.last_write_ms),
}
# Functions that update the sort value of a share-partition with each slice of its offset ranges.
_SORT_VALUES: dict[SharePartitionOrder, Callable[[int, list[StateBatch]], int]] = {
    SharePartitionOrder.IN_FLIGHT: _add_in_flight,
    SharePartitionOrder.DELIVERY_COUNT: _max_delivery_count,
}
