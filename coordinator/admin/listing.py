"""Lists over the whole state, made in slices: brokers' requests run in between, however long a list is.

What a slice may take is counted in share-partitions and in state batches, as one may have two of them and the
next ten thousand.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from fastapi import Response
from pydantic import BaseModel

from coordinator.admin.runs import RunSums, WindowMap, pieces
from coordinator.admin.views import GroupTotals
from coordinator.runtime import Runtime
from coordinator.shard import ShareState
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")

# About a millisecond of work.
SLICE = 1_000

# What it takes to rank by a run, and to sum it up, where to pass a share-partition by is 1.
_RANK_WORK = 2
_SUM_WORK = 4


class GroupOrder(StrEnum):
    """What a list of groups is sorted by."""

    GROUP = "group"
    SHARE_PARTITIONS = "share-partitions"
    STATE_BATCHES = "state-batches"
    LAST_WRITE = "last-write"


class Order(StrEnum):
    """What a list of share-partitions is sorted by; equal ones by group, topic id and partition."""

    KEY = "key"
    IN_FLIGHT = "in-flight"
    DELIVERY_COUNT = "delivery-count"
    LAST_WRITE = "last-write"


class Found(NamedTuple):
    """A share-partition that belongs in a list, and its place there."""

    rank: int
    key: SharePartitionKey
    state: ShareState


class Pace:
    """Says when others on the event loop should have their turn."""

    def __init__(self) -> None:
        self._left = SLICE

    async def spend(self, work: int) -> None:
        """Note work that was done; after a slice of it let others run."""
        self._left -= work
        if self._left <= 0:
            await asyncio.sleep(0)
            self._left = SLICE


async def groups(runtime: Runtime, contained: str) -> dict[str, GroupTotals]:
    """Sum up the groups whose id contains a text, whatever its case."""
    found: dict[str, GroupTotals] = {}
    contained = contained.casefold()
    pace = Pace()
    async for key, state in runtime.share_partitions():
        if contained in key.group_id.casefold():
            found.setdefault(key.group_id, GroupTotals()).add(key, state)
            await pace.spend(1)
    return found


def place_of_group(
    order: GroupOrder, *, descending: bool
) -> Callable[[tuple[str, GroupTotals]], tuple[int, str]]:
    """Return the function that gives the place of a group; equal ones are sorted by group id."""
    figure = _FIGURES[order]
    sign = -1 if descending else 1
    return lambda entry: (sign * figure(entry[1]), entry[0])


async def share_partitions(
    runtime: Runtime, wanted: Callable[[SharePartitionKey], bool], order: Order, *, descending: bool
) -> list[Found]:
    """Find share-partitions, in the order in which the shards have them; each with its rank in `order`."""
    rank = _RANKS.get(order)
    sign = -1 if descending else 1
    pace = Pace()
    found: list[Found] = []
    async for key, state in runtime.share_partitions():
        if wanted(key):
            place = state.last_write_ms if order is Order.LAST_WRITE else 0
            if rank is not None:
                for some in pieces(state.batches):
                    place = rank(place, some)
                    await pace.spend(_RANK_WORK * len(some))
            found.append(Found(sign * place, key, state))
            await pace.spend(1)
    return found


async def summed(state: ShareState, pace: Pace, window: WindowMap | None = None) -> RunSums:
    """Sum up the runs of a share-partition, and draw them into the map of its window."""
    sums = RunSums(state)
    for some in pieces(state.batches):
        sums.add(some)
        await pace.spend(_SUM_WORK * len(some))
        if window is not None:
            for batch in some:
                await pace.spend(window.add(batch))
    return sums


async def part_of(
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
    pace = Pace()
    runs = []
    for one in _slices(entries):
        runs.append(sorted(one, key=place, reverse=backwards))
        await pace.spend(len(one))
    part: list[Entry] = []
    for number, entry in enumerate(merge(*runs, key=place, reverse=backwards)):
        if number == offset + limit:
            break
        if number >= offset:
            part.append(entry)
        await pace.spend(1)
    return part


async def made(
    entries: Iterable[Entry], make: Callable[[Entry], Answer], work: Callable[[Entry], int]
) -> list[Answer]:
    """Make an answer of each entry; `work` says how much that is, in share-partitions that are passed by."""
    pace = Pace()
    answers = []
    for entry in entries:
        answers.append(make(entry))
        await pace.spend(work(entry))
    return answers


async def written(
    answer: BaseModel, items: Iterable[BaseModel], work: int, *, exclude: set[str] | None = None
) -> Response:
    """Write an answer whose one page is empty yet as JSON, item by item; `work` says how much an item is.

    FastAPI would check and write a list of any length in one go.
    """
    texts = await made(items, lambda item: item.model_dump_json(), lambda _: work)
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


_FIGURES: dict[GroupOrder, Callable[[GroupTotals], int]] = {
    GroupOrder.GROUP: lambda totals: 0,
    GroupOrder.SHARE_PARTITIONS: lambda totals: totals.share_partitions,
    GroupOrder.STATE_BATCHES: lambda totals: totals.state_batches,
    GroupOrder.LAST_WRITE: lambda totals: totals.last_write_ms,
}
# The ranks that come of the runs: of those that were looked at, and of some more.
_RANKS: dict[Order, Callable[[int, list[StateBatch]], int]] = {
    Order.IN_FLIGHT: _in_flight,
    Order.DELIVERY_COUNT: _delivery_count,
}
