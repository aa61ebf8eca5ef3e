"""The state that Kafka hides: shards, share groups, and each share-partition with its in-flight records."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from coordinator.admin import listing
from coordinator.admin.answers import (
    DeliveryRun,
    Drawing,
    DrawnSharePartition,
    Elsewhere,
    GroupDetail,
    GroupPage,
    Page,
    Problem,
    Responses,
    Shard,
    SharePartition,
    SharePartitionDetail,
    SharePartitionPage,
)
from coordinator.admin.listing import Found, GroupOrder, ListingTurns, Order
from coordinator.admin.owners import Owner
from coordinator.admin.paths import (
    GROUPS_PATH,
    MALFORMED,
    AskedPartition,
    AskedTopicId,
    Columns,
    Contains,
    Descending,
    FromOffset,
    GroupId,
    Limit,
    Offset,
    Partition,
    ShortLimit,
    TopicId,
    parsed_topic,
)
from coordinator.admin.runs import WindowMap, first_from, pieces, run_of
from coordinator.admin.views import GroupTotals, group_of, share_partition_detail, share_partition_of
from coordinator.admin.watched import Watched
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_NOT_FOUND: Responses = {
    404: {"model": Problem, "description": "There is no such state."},
    503: {"model": Elsewhere, "description": "The shard that would know is not loaded, or not here."},
}

# What it takes to make the answer for a share-partition, and to write it or one for a group or a run of
# offsets, where to pass a share-partition by is 1.
_ANSWER_WORK = 10
_WRITE_WORK = 8

# Runs that are given for a picture of single offsets.
_NEAR = 256


class NotHere(HTTPException):
    """Status 503 of what another coordinator may know."""

    def __init__(self, message: str, owner: Owner | None) -> None:
        super().__init__(503, message)
        self.owner = owner


def state_routes(watched: Watched) -> APIRouter:
    """Make the routes that show state."""
    routes = APIRouter(tags=["state"], responses=MALFORMED)
    _add_shards(routes, watched)
    turns = ListingTurns()
    _add_groups(routes, watched, turns)
    _add_share_partitions(routes, watched, turns)
    return routes


def _add_shards(routes: APIRouter, watched: Watched) -> None:
    @routes.get("/api/v1/shards", response_model=Page[Shard])
    async def list_shards(limit: Limit = 1000, offset: Offset = 0) -> Response:
        """List the shards, those that other coordinators own too."""
        shards = watched.shards()
        page = Page[Shard](items=[], total=len(shards), limit=limit, offset=offset)
        return await listing.written(page, shards[offset : offset + limit], _WRITE_WORK)


def _add_groups(routes: APIRouter, watched: Watched, turns: ListingTurns) -> None:
    @routes.get(GROUPS_PATH, response_model=GroupPage)
    async def list_groups(
        limit: Limit = 100,
        offset: Offset = 0,
        contains: Contains = "",
        sort: GroupOrder = GroupOrder.GROUP,
        descending: Descending = False,
    ) -> Response:
        """List the groups that have state."""
        async with turns.turn():
            selected = await listing.groups(
                watched.runtime, contains, sort, descending=descending, limit=limit, offset=offset
            )
            page = GroupPage(
                items=[],
                total=selected.total,
                limit=limit,
                offset=offset,
                missing_shards=watched.missing_shards(),
            )
            return await listing.written(page, (group_of(*entry) for entry in selected.page), _WRITE_WORK)

    @routes.get(GROUPS_PATH + "/{group}", responses=_NOT_FOUND, response_model=GroupDetail)
    async def show_group(group: GroupId, limit: ShortLimit = 100, offset: Offset = 0) -> Response:
        """Show a group and its share-partitions, by topic id and partition."""
        totals = GroupTotals()
        async with turns.turn():
            found = await listing.first_share_partitions(
                watched.runtime,
                lambda key: key.group_id == group,
                Order.KEY,
                descending=False,
                count=offset + limit,
                seen=totals.add,
            )
            items = await _part(watched, found.first, limit=limit, offset=offset)
        missing = watched.missing_shards()
        if not found.total and missing:
            raise _group_may_be_elsewhere(watched, group, missing)
        if not found.total:
            raise HTTPException(404, f"group {group!r} has no state here")
        page = Page[SharePartition](items=[], total=found.total, limit=limit, offset=offset)
        shown = GroupDetail(**dict(group_of(group, totals)), partitions=page, missing_shards=missing)
        return await listing.written(shown, items, _WRITE_WORK)


def _group_may_be_elsewhere(watched: Watched, group: str, missing: list[int]) -> NotHere:
    """Say who else may have state of a group; as a link, if there is one coordinator to ask."""
    owners = {owner.wire: owner for number in missing if (owner := watched.owners.owner(number)) is not None}
    where = ", ".join(owner.page or wire for wire, owner in sorted(owners.items()))
    message = f"group {group!r} is not found here, but {len(missing)} shards are not loaded here"
    return NotHere(
        f"{message}; they are with {where}" if where else message,
        next(iter(owners.values())) if len(owners) == 1 else None,
    )


def _add_share_partitions(routes: APIRouter, watched: Watched, turns: ListingTurns) -> None:
    @routes.get("/api/v1/share-partitions", response_model=SharePartitionPage)
    async def list_share_partitions(
        group: Annotated[str | None, Query(description="Only those of this group.")] = None,
        topic: Annotated[str | None, Query(description="Only those of this topic id.")] = None,
        limit: ShortLimit = 100,
        offset: Offset = 0,
        sort: Order = Order.KEY,
        descending: Descending = False,
    ) -> Response:
        """List share-partitions, of all groups or of one."""
        topic_id = None if topic is None else parsed_topic(topic)

        def wanted(key: SharePartitionKey) -> bool:
            return (group is None or key.group_id == group) and (topic_id is None or key.topic_id == topic_id)

        async with turns.turn():
            found = await listing.first_share_partitions(
                watched.runtime, wanted, sort, descending=descending, count=offset + limit
            )
            backwards = descending and sort is Order.KEY
            items = await _part(watched, found.first, limit=limit, offset=offset, backwards=backwards)
        page = SharePartitionPage(
            items=[], total=found.total, limit=limit, offset=offset, missing_shards=watched.missing_shards()
        )
        return await listing.written(page, items, _WRITE_WORK)

    @routes.get("/api/v1/share-partition", responses=_NOT_FOUND, response_model=DrawnSharePartition)
    async def ask_for_share_partition(
        group: Annotated[str, Query(description="The group id.")],
        topic: AskedTopicId,
        partition: AskedPartition,
        limit: Limit = 1_000,
        offset: Offset = 0,
        columns: Columns = 0,
        from_offset: FromOffset = 0,
    ) -> Response:
        """Show the whole state of a share-partition, of groups called `.` and `..` too.

        A browser takes these two out of a path.
        """
        key = SharePartitionKey(group, topic, partition)
        return await _detail(watched, key, limit, offset, columns, from_offset)

    @routes.get(
        GROUPS_PATH + "/{group}/{topic}/{partition}",
        responses=_NOT_FOUND,
        response_model=SharePartitionDetail,
    )
    async def show_share_partition(
        group: GroupId, topic: TopicId, partition: Partition, limit: Limit = 10_000, offset: Offset = 0
    ) -> Response:
        """Show the whole state of a share-partition; limit and offset page its in-flight runs."""
        return await _detail(watched, SharePartitionKey(group, topic, partition), limit, offset)


async def _detail(
    watched: Watched, key: SharePartitionKey, limit: int, offset: int, columns: int = 0, from_offset: int = 0
) -> Response:
    """Show one share-partition, a page of its runs, and in so many columns what a picture is made of."""
    number = state_partition(key, watched.runtime.state_partitions)
    shard = watched.runtime.shard_views()[number]
    if shard.status != "ACTIVE":
        owner = watched.owners.owner(number)
        # A page is a link that whoever shows this makes of the owner.
        where = f"; it is with {owner.wire}" if owner is not None and owner.page is None else ""
        raise NotHere(f"shard {number} of {key} is {shard.status}{where}", owner)
    if watched.runtime.share_partition(key) is None:
        raise HTTPException(404, f"share-partition {key} has no state here")
    facts = await watched.cluster.of([(key.topic_id, key.partition)])
    # Asked again: the cluster took its time.
    state = watched.runtime.share_partition(key)
    if state is None:
        raise HTTPException(404, f"share-partition {key} has no state here")
    window = WindowMap(state, columns) if columns else None
    sums = await listing.summed(state, listing.Pace(), window)
    shown = DrawnSharePartition(
        **share_partition_detail(key, state, sums, watched.runtime.state_partitions, facts),
        in_flight=Page[DeliveryRun](items=[], total=state.batch_count, limit=limit, offset=offset),
        drawing=None if window is None else _drawing(state, window, from_offset),
    )
    runs = (run_of(batch) for some in pieces(state.batches, offset, limit) for batch in some)
    return await listing.written(shown, runs, _WRITE_WORK, exclude=None if columns else {"drawing"})


def _drawing(state: ShareState, window: WindowMap, from_offset: int) -> Drawing:
    near = pieces(state.batches, first_from(state.batches, max(from_offset, state.start_offset)), _NEAR)
    return Drawing(near=[run_of(batch) for some in near for batch in some], columns=window.columns)


async def _part(
    watched: Watched, found: list[Found], *, limit: int, offset: int, backwards: bool = False
) -> list[SharePartition]:
    """Make the answers for a part of a list of share-partitions."""
    part = await listing.part_of(
        found, lambda entry: entry[:2], limit=limit, offset=offset, backwards=backwards
    )
    facts = await watched.cluster.of([(entry.key.topic_id, entry.key.partition) for entry in part])
    state_partitions = watched.runtime.state_partitions
    items = []
    pace = listing.Pace()
    for entry in part:
        sums = await listing.summed(entry.state, pace)
        items.append(share_partition_of(entry.key, entry.state, sums, state_partitions, facts))
        await pace.spend(_ANSWER_WORK)
    return items
