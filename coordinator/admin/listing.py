"""Lists over the whole state, made in slices: brokers' requests run in between, however long a list is.

What a slice may take is counted in share-partitions and in state batches, as one may have two of them and the
next ten thousand.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from enum import StrEnum
from heapq import merge, nlargest, nsmallest
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from fastapi import HTTPException, Response
from pydantic import BaseModel

from coordinator.admin.offset_ranges import DeliverySums, WindowHistogram, unpack_slices
from coordinator.admin.views import GroupTotals
from coordinator.shard import ShareState
from coordinator.state_view import StateView
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")

# About a millisecond of work.
SLICE = 1_000

# Requests that wait until the list of another one is made.
WAITING_MAX = 32

# So many are selected without holding all: above it one selection would take too long at a time.
_SELECTED_MAX = 5 * SLICE

# What it takes to rank by a run, and to sum it up, where to pass a share-partition by is 1.
_SORT_WORK = 2
_SUM_WORK = 4


class GroupOrder(StrEnum):
    """What a list of groups is sorted by."""

    GROUP = "group"
    SHARE_PARTITIONS = "share-partitions"
    STATE_BATCHES = "state-batches"
    LAST_WRITE = "last-write"


class SharePartitionOrder(StrEnum):
    """What a list of share-partitions is sorted by; equal ones by group, topic id and partition."""

    KEY = "key"
    IN_FLIGHT = "in-flight"
    DELIVERY_COUNT = "delivery-count"
    LAST_WRITE = "last-write"


class ListedSharePartition(NamedTuple):
    """A share-partition that belongs in a list, and its place there."""

    rank: int
    key: SharePartitionKey
    state: ShareState


class YieldTimer:
    """Says when others on the event loop should have their turn."""

    def __init__(self) -> None:
        self._left = SLICE

    async def spend(self, work: int) -> None:
        """Note work that was done; after a slice of it let others run."""
        self._left -= work
        if self._left <= 0:
            await asyncio.sleep(0)
            self._left = SLICE


class ListingTurns:
    """Lets one request walk the whole state at a time; a few others wait.

    Twenty lists of a million groups at once took 8 GB. One after the other, they take the memory of one.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn, and have it until the end of the block. Raises HTTPException with status 503."""
        if self._waiting >= WAITING_MAX:
            raise HTTPException(503, "Too many lists are being made; try again.", {"Retry-After": "5"})
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


class GroupSelection(NamedTuple):
    """How many groups there are, and those of one page with their totals."""

    total: int
    page: list[tuple[str, GroupTotals]]


async def groups(
    runtime: StateView, contained: str, order: GroupOrder, *, descending: bool, limit: int, offset: int
) -> GroupSelection:
    """Select a page of the groups whose id contains a text, whatever its case.

    One number is kept for each group; only those of the page are summed up.
    """
    figure_after = _GROUP_SORT_VALUES[order]
    figures: dict[str, int] = {}
    contained = contained.casefold()
    yield_timer = YieldTimer()
    async for key, state in runtime.share_partitions():
        group_id = key.group_id
        if group_id in figures or contained in group_id.casefold():
            figures[group_id] = figure_after(figures.get(group_id, 0), state)
            await yield_timer.spend(1)
    sign = -1 if descending else 1
    chosen = await sorted_page(
        figures,
        lambda group_id: (sign * figures[group_id], group_id),
        limit=limit,
        offset=offset,
        backwards=descending and order is GroupOrder.GROUP,
    )
    totals = {group_id: GroupTotals() for group_id in chosen}
    async for key, state in runtime.share_partitions():
        if (group := totals.get(key.group_id)) is not None:
            group.add(key, state)
            await yield_timer.spend(1)
    return GroupSelection(len(figures), list(totals.items()))


class Selection(NamedTuple):
    """How many share-partitions there are, and those that come first in their order, unsorted."""

    total: int
    first: list[ListedSharePartition]


async def first_share_partitions(
    runtime: StateView,
    wanted: Callable[[SharePartitionKey], bool],
    order: SharePartitionOrder,
    *,
    descending: bool,
    count: int,
    seen: Callable[[SharePartitionKey, ShareState], None] = lambda key, state: None,
) -> Selection:
    """Select the first `count` share-partitions in an order; `seen` is told each one that is wanted.

    No more than twice as many are held at a time, unless the page is far behind the beginning.
    """
    backwards = descending and order is SharePartitionOrder.KEY
    select = nlargest if backwards else nsmallest
    total = 0
    first: list[ListedSharePartition] = []
    held_max = max(2 * count, SLICE)
    async for found in _share_partitions(runtime, wanted, order, descending=descending):
        total += 1
        seen(found.key, found.state)
        first.append(found)
        if len(first) > held_max and count <= _SELECTED_MAX:
            first = select(count, first, key=lambda entry: entry[:2])
    return Selection(total, first)


async def share_partitions(
    runtime: StateView,
    wanted: Callable[[SharePartitionKey], bool],
    order: SharePartitionOrder,
    *,
    descending: bool,
) -> list[ListedSharePartition]:
    """Find share-partitions, in the order in which the shards have them; each with its rank in `order`."""
    return [found async for found in _share_partitions(runtime, wanted, order, descending=descending)]


async def _share_partitions(
    runtime: StateView,
    wanted: Callable[[SharePartitionKey], bool],
    order: SharePartitionOrder,
    *,
    descending: bool,
) -> AsyncIterator[ListedSharePartition]:
    rank = _SORT_VALUES.get(order)
    sign = -1 if descending else 1
    yield_timer = YieldTimer()
    async for key, state in runtime.share_partitions():
        if wanted(key):
            place = state.last_write_ms if order is SharePartitionOrder.LAST_WRITE else 0
            if rank is not None:
                for some in unpack_slices(state.batches):
                    place = rank(place, some)
                    await yield_timer.spend(_SORT_WORK * len(some))
            yield ListedSharePartition(sign * place, key, state)
            await yield_timer.spend(1)


async def sum_batches(
    state: ShareState, yield_timer: YieldTimer, window: WindowHistogram | None = None
) -> DeliverySums:
    """Sum up the runs of a share-partition, and draw them into the map of its window."""
    sums = DeliverySums(state)
    for some in unpack_slices(state.batches):
        sums.add(some)
        await yield_timer.spend(_SUM_WORK * len(some))
        if window is not None:
            for batch in some:
                await yield_timer.spend(window.add(batch))
    return sums


async def sorted_page(
    entries: Collection[Entry],
    place: Callable[[Entry], Any],
    *,
    limit: int,
    offset: int,
    backwards: bool = False,
) -> list[Entry]:
    """Return `limit` entries from the `offset`th on, of all in the order of their places.

    Slices are sorted and then merged up to where the part ends, so that no step takes long.
    """
    yield_timer = YieldTimer()
    runs = []
    for one in _slices(entries):
        runs.append(sorted(one, key=place, reverse=backwards))
        await yield_timer.spend(len(one))
    part: list[Entry] = []
    for number, entry in enumerate(merge(*runs, key=place, reverse=backwards)):
        if number == offset + limit:
            break
        if number >= offset:
            part.append(entry)
        await yield_timer.spend(1)
    return part


async def build_responses(
    entries: Iterable[Entry], make: Callable[[Entry], Answer], work: Callable[[Entry], int]
) -> list[Answer]:
    """Make an answer of each entry; `work` says how much that is, in share-partitions that are passed by."""
    yield_timer = YieldTimer()
    answers = []
    for entry in entries:
        answers.append(make(entry))
        await yield_timer.spend(work(entry))
    return answers


async def render_page(
    answer: BaseModel, items: Iterable[BaseModel], work: int, *, exclude: set[str] | None = None
) -> Response:
    """Write an answer whose one page is empty yet as JSON, item by item; `work` says how much an item is.

    FastAPI would check and write a list of any length in one go.
    """
    texts = await build_responses(items, lambda item: item.model_dump_json(), lambda _: work)
    # No text within has this: there its quotes are written with backslashes.
    before, empty, behind = answer.model_dump_json(exclude=exclude).partition('"items":[]')
    assert empty
    return Response(f'{before}"items":[{",".join(texts)}]{behind}', media_type="application/json")


def _slices(entries: Collection[Entry]) -> Iterator[list[Entry]]:
    left = iter(entries)
    while one := list(islice(left, SLICE)):
        yield one


def _in_flight(before: int, batches: list[StateBatch]) -> int:
    return before + sum(last - first + 1 for first, last, _, _ in batches)


def _delivery_count(before: int, batches: list[StateBatch]) -> int:
    return max(before, *(count for _, _, _, count in batches))


# What a group is ordered by, after another of its share-partitions.
_GROUP_SORT_VALUES: dict[GroupOrder, Callable[[int, ShareState], int]] = {
    GroupOrder.GROUP: lambda before, state: 0,
    GroupOrder.SHARE_PARTITIONS: lambda before, state: before + 1,
    GroupOrder.STATE_BATCHES: lambda before, state: before + state.batch_count,
    GroupOrder.LAST_WRITE: lambda before, state: max(before, state.last_write_ms),
}
# The ranks that come of the runs: of those that were looked at, and of some more.
_SORT_VALUES: dict[SharePartitionOrder, Callable[[int, list[StateBatch]], int]] = {
    SharePartitionOrder.IN_FLIGHT: _in_flight,
    SharePartitionOrder.DELIVERY_COUNT: _delivery_count,
}
