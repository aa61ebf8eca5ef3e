"""API routes of shards, share groups, and share-partitions with their in-flight records."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from coordinator.operate.admin import listing
from coordinator.operate.admin.api_models import (
    ErrorResponse,
    ErrorWithOwner,
    GroupDetail,
    GroupPage,
    OffsetRange,
    Page,
    Responses,
    Shard,
    SharePartition,
    SharePartitionPage,
    SharePartitionWithChart,
    WindowChart,
)
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.listing import (
    GroupOrder,
    ListedSharePartition,
    ListingLimiter,
    SharePartitionOrder,
)
from coordinator.operate.admin.offset_ranges import (
    WindowHistogram,
    make_offset_range,
    unpack_slices,
)
from coordinator.operate.admin.owner_directory import Owner
from coordinator.operate.admin.paths import (
    GROUPS_PATH,
    MALFORMED,
    After,
    Columns,
    Contains,
    Descending,
    FromOffset,
    GroupId,
    Limit,
    Offset,
    PartitionQuery,
    ShortLimit,
    Topic,
    resolve_topic,
)
from coordinator.operate.admin.views import (
    GroupTotals,
    make_group,
    make_share_partition,
    make_share_partition_detail,
)
from coordinator.shard import ShareState
from coordinator.shard.batches import first_batch_index
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

NOT_FOUND: Responses = {
    404: {"model": ErrorResponse, "description": "The state does not exist."},
    503: {"model": ErrorWithOwner, "description": "The shard is not loaded, or another coordinator owns it."},
}

# Cost of creating and of encoding the response for a share-partition, a group or an offset range, relative
# to skipping a share-partition.
_ANSWER_WORK = 10
_WRITE_WORK = 8

# Number of offset ranges in a chart of single offsets.
_NEAR = 256


class OwnedElsewhereError(HTTPException):
    """An error with status 503: the state is not loaded here, and another coordinator may have it."""

    def __init__(self, message: str, owner: Owner | None) -> None:
        super().__init__(503, message)
        self.owner = owner


def state_routes(view: CoordinatorView) -> APIRouter:
    """Create the routes that return state."""
    routes = APIRouter(tags=["state"], responses=MALFORMED)
    _add_shard_routes(routes, view)
    turns = ListingLimiter()
    _add_group_routes(routes, view, turns)
    _add_share_partition_routes(routes, view, turns)
    return routes


def _add_shard_routes(routes: APIRouter, view: CoordinatorView) -> None:
    @routes.get("/api/v1/shards", response_model=Page[Shard])
    async def list_shards(limit: Limit = 1000, offset: Offset = 0) -> Response:
        """List all shards, including those of other coordinators."""
        shards = view.shards()
        page = Page[Shard](items=[], total=len(shards), limit=limit, offset=offset)
        return await listing.render_page(page, shards[offset : offset + limit], _WRITE_WORK)


def _add_group_routes(routes: APIRouter, view: CoordinatorView, turns: ListingLimiter) -> None:
    @routes.get(GROUPS_PATH, response_model=GroupPage)
    async def list_groups(
        limit: Limit = 100,
        offset: Offset = 0,
        contains: Contains = "",
        sort: GroupOrder = GroupOrder.GROUP,
        descending: Descending = False,
        after: After = None,
    ) -> Response:
        """List the groups that have state. `total` does not count groups up to `after`."""
        in_order = sort is GroupOrder.GROUP and not descending
        _check_after_parameter(after, in_order=in_order, offset=offset)
        async with turns.wait_for_turn():
            selected = await listing.select_groups(
                view.runtime,
                contains,
                sort,
                view.group_signals,
                descending=descending,
                limit=limit,
                offset=offset,
                after=after,
            )
            more = in_order and offset + limit < selected.total
            page = GroupPage(
                items=[],
                next=selected.page[-1][0] if more else None,
                total=selected.total,
                limit=limit,
                offset=offset,
                missing_shards=view.missing_shards(),
            )
            return await listing.render_page(
                page, (make_group(*entry, view.group_signals) for entry in selected.page), _WRITE_WORK
            )

    @routes.get(GROUPS_PATH + "/{group}", responses=NOT_FOUND, response_model=GroupDetail)
    async def get_group(group: GroupId, limit: ShortLimit = 100, offset: Offset = 0) -> Response:
        """Return a group and its share-partitions, ordered by topic id and partition."""
        totals = GroupTotals()
        async with turns.wait_for_turn():
            found = await listing.select_share_partitions(
                view.runtime,
                lambda key: key.group_id == group,
                SharePartitionOrder.KEY,
                descending=False,
                count=offset + limit,
                seen=totals.add,
            )
            items = await _make_page(view, found.first, limit=limit, offset=offset)
        missing = view.missing_shards()
        if not found.total and missing:
            raise _group_elsewhere_error(view, group, missing)
        if not found.total:
            raise HTTPException(404, f"group {group!r} has no state here")
        described = dict(make_group(group, totals, view.group_signals))
        page = Page[SharePartition](items=[], total=found.total, limit=limit, offset=offset)
        shown = GroupDetail(**described, partitions=page, missing_shards=missing)
        return await listing.render_page(shown, items, _WRITE_WORK)


def _group_elsewhere_error(view: CoordinatorView, group: str, missing: list[int]) -> OwnedElsewhereError:
    """Return the error with the coordinators that may have state of a group."""
    owners = {owner.wire: owner for number in missing if (owner := view.owners.owner(number)) is not None}
    where = ", ".join(owner.page or wire for wire, owner in sorted(owners.items()))
    message = (
        f"group {group!r} has no state in the shards that are loaded here; {len(missing)} shards are not"
    )
    return OwnedElsewhereError(
        f"{message}; {where} owns them" if where else message,
        next(iter(owners.values())) if len(owners) == 1 else None,
    )


def _add_share_partition_routes(routes: APIRouter, view: CoordinatorView, turns: ListingLimiter) -> None:
    @routes.get("/api/v1/share-partitions", response_model=SharePartitionPage)
    async def list_share_partitions(
        group: Annotated[str | None, Query(description="Only share-partitions of this group.")] = None,
        topic: Topic | None = None,
        limit: ShortLimit = 100,
        offset: Offset = 0,
        sort: SharePartitionOrder = SharePartitionOrder.KEY,
        descending: Descending = False,
        after: After = None,
    ) -> Response:
        """List share-partitions, of all groups or of one. `total` does not count those up to `after`."""
        in_order = sort is SharePartitionOrder.KEY and not descending
        _check_after_parameter(after, in_order=in_order, offset=offset)
        topic_id = None if topic is None else await resolve_topic(view.cluster, topic)
        after_key = None if after is None else _parse_key(after)

        def matches_filter(key: SharePartitionKey) -> bool:
            return (
                (group is None or key.group_id == group)
                and (topic_id is None or key.topic_id == topic_id)
                and (after_key is None or key > after_key)
            )

        async with turns.wait_for_turn():
            found = await listing.select_share_partitions(
                view.runtime, matches_filter, sort, descending=descending, count=offset + limit
            )
            backwards = descending and sort is SharePartitionOrder.KEY
            items = await _make_page(view, found.first, limit=limit, offset=offset, backwards=backwards)
        more = in_order and items and offset + limit < found.total
        page = SharePartitionPage(
            items=[],
            next=f"{items[-1].group}:{items[-1].topic_id}:{items[-1].partition}" if more else None,
            total=found.total,
            limit=limit,
            offset=offset,
            missing_shards=view.missing_shards(),
        )
        return await listing.render_page(page, items, _WRITE_WORK)

    @routes.get("/api/v1/share-partition", responses=NOT_FOUND, response_model=SharePartitionWithChart)
    async def get_share_partition(
        group: Annotated[str, Query(description="The group id.")],
        topic: Topic,
        partition: PartitionQuery,
        limit: Limit = 1_000,
        offset: Offset = 0,
        columns: Columns = 0,
        from_offset: FromOffset = 0,
    ) -> Response:
        """Return the state of a share-partition; `limit` and `offset` select its in-flight offset ranges."""
        key = SharePartitionKey(group, await resolve_topic(view.cluster, topic), partition)
        return await _show_detail(view, key, limit, offset, columns, from_offset)


def _check_after_parameter(after: str | None, *, in_order: bool, offset: int) -> None:
    if after is not None and (offset or not in_order):
        raise HTTPException(422, "after: it can be used only in the default order, and without offset")


def _parse_key(text: str) -> SharePartitionKey:
    try:
        return SharePartitionKey.parse(text)
    except ValueError as error:
        raise HTTPException(422, f"after: {error}") from None


def require_loaded(view: CoordinatorView, key: SharePartitionKey) -> int:
    """Return the state partition of a share-partition. Raises OwnedElsewhereError if it is not loaded."""
    number = state_partition(key, view.runtime.state_partitions)
    shard = view.runtime.shard_views()[number]
    if shard.status != "ACTIVE":
        owner = view.owners.owner(number)
        # If the owner has a page, the client adds a link to it.
        where = f"; {owner.wire} owns it" if owner is not None and owner.page is None else ""
        raise OwnedElsewhereError(f"shard {number} of {key} is {shard.status}{where}", owner)
    return number


async def _show_detail(
    view: CoordinatorView,
    key: SharePartitionKey,
    limit: int,
    offset: int,
    columns: int = 0,
    from_offset: int = 0,
) -> Response:
    """Return a share-partition, a page of its offset ranges, and chart data if columns are requested."""
    require_loaded(view, key)
    if view.runtime.share_partition(key) is None:
        raise HTTPException(404, f"share-partition {key} has no state here")
    cluster_info = await view.cluster.lookup([(key.topic_id, key.partition)])
    # Read the state again, because it may have changed while waiting for the cluster.
    state = view.runtime.share_partition(key)
    if state is None:
        raise HTTPException(404, f"share-partition {key} has no state here")
    window = WindowHistogram(state, columns) if columns else None
    sums = await listing.sum_batches(state, listing.YieldTimer(), window)
    shown = SharePartitionWithChart(
        **make_share_partition_detail(key, state, sums, view.runtime.state_partitions, cluster_info),
        in_flight=Page[OffsetRange](items=[], total=state.batch_count, limit=limit, offset=offset),
        drawing=None if window is None else _make_chart(state, window, from_offset),
    )
    runs = (
        make_offset_range(batch) for some in unpack_slices(state.batches, offset, limit) for batch in some
    )
    return await listing.render_page(shown, runs, _WRITE_WORK, exclude=None if columns else {"drawing"})


def _make_chart(state: ShareState, window: WindowHistogram, from_offset: int) -> WindowChart:
    near = unpack_slices(
        state.batches, first_batch_index(state.batches, max(from_offset, state.start_offset)), _NEAR
    )
    return WindowChart(
        near=[make_offset_range(batch) for some in near for batch in some], columns=window.columns
    )


async def _make_page(
    view: CoordinatorView,
    found: list[ListedSharePartition],
    *,
    limit: int,
    offset: int,
    backwards: bool = False,
) -> list[SharePartition]:
    """Create the responses for a page of a list of share-partitions."""
    part = await listing.sorted_page(
        found, lambda entry: entry[:2], limit=limit, offset=offset, backwards=backwards
    )
    cluster_info = await view.cluster.lookup([(entry.key.topic_id, entry.key.partition) for entry in part])
    state_partitions = view.runtime.state_partitions
    items = []
    yield_timer = listing.YieldTimer()
    for entry in part:
        sums = await listing.sum_batches(entry.state, yield_timer)
        items.append(make_share_partition(entry.key, entry.state, sums, state_partitions, cluster_info))
        await yield_timer.add_work(_ANSWER_WORK)
    return items
