"""API routes of shards, groups, share-partitions with their in-flight records, and delivery histories."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from coordinator.errors import CoordinatorError
from coordinator.operate.admin import listing
from coordinator.operate.admin.api_models import (
    DeliveryEvent,
    DeliveryHistory,
    Group,
    OffsetRange,
    Page,
    Shard,
    SharePartition,
    SharePartitionWithNearRanges,
    StatePage,
)
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.listing import (
    GroupOrder,
    ListedSharePartition,
    ListingLimiter,
    SharePartitionOrder,
)
from coordinator.operate.admin.owner_directory import Owner
from coordinator.operate.admin.query_parameters import (
    After,
    Contains,
    Descending,
    FromOffset,
    Limit,
    Offset,
    PartitionQuery,
    ShortLimit,
    Topic,
    resolve_topic,
)
from coordinator.operate.admin.views import (
    iso_time,
    make_group,
    make_offset_range,
    share_partition_detail_fields,
    share_partition_fields,
    unpack_slices,
)
from coordinator.shard import ShareState
from coordinator.shard.batches import first_batch_index
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, topic_id_text

# Cost of creating and of encoding the response for a share-partition, a group or an offset range, relative
# to skipping a share-partition.
_ANSWER_WORK = 10
_WRITE_WORK = 8

# Number of offset ranges that a response has from `from_offset` on. Each range has at least one offset, so
# the ranges cover at least 256 offsets.
_NEAR = 256


class OwnedElsewhereError(HTTPException):
    """An error with status 503: the state is not loaded here, and another coordinator may have it."""

    def __init__(self, message: str, owner: Owner | None) -> None:
        super().__init__(503, message)
        self.owner = owner


def state_routes(view: CoordinatorView, **options: Any) -> APIRouter:
    routes = APIRouter(tags=["state"], **options)
    turns = ListingLimiter()
    _add_shard_and_group_routes(routes, view, turns)
    _add_share_partition_routes(routes, view, turns)
    return routes


def _add_shard_and_group_routes(routes: APIRouter, view: CoordinatorView, turns: ListingLimiter) -> None:
    @routes.get("/api/v1/shards", response_model=Page[Shard])
    async def list_shards(limit: Limit = 1000, offset: Offset = 0) -> Response:
        """List all shards, including those of other coordinators."""
        shards = view.shards()
        page = Page[Shard](items=[], total=len(shards), limit=limit, offset=offset)
        return await listing.render_page(page, shards[offset : offset + limit], _WRITE_WORK)

    @routes.get("/api/v1/groups", response_model=StatePage[Group])
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
            total, selected = await listing.select_groups(
                view.runtime,
                contains,
                sort,
                view.group_signals,
                descending=descending,
                limit=limit,
                offset=offset,
                after=after,
            )
            page = StatePage[Group](
                items=[],
                next=selected[-1][0] if in_order and offset + limit < total else None,
                total=total,
                limit=limit,
                offset=offset,
                missing_shards=view.unloaded_shards(),
            )
            return await listing.render_page(
                page, (make_group(*entry, view.group_signals) for entry in selected), _WRITE_WORK
            )


def _add_share_partition_routes(routes: APIRouter, view: CoordinatorView, turns: ListingLimiter) -> None:
    @routes.get("/api/v1/share-partitions", response_model=StatePage[SharePartition])
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
        after_key = None if after is None else _parse_share_partition_key(after)

        def matches_filter(key: SharePartitionKey) -> bool:
            return (
                (group is None or key.group_id == group)
                and (topic_id is None or key.topic_id == topic_id)
                and (after_key is None or key > after_key)
            )

        async with turns.wait_for_turn():
            total, selected = await listing.select_share_partitions(
                view.runtime, matches_filter, sort, descending=descending, limit=limit, offset=offset
            )
            items = await _make_share_partitions(view, selected)
        more = in_order and items and offset + limit < total
        page = StatePage[SharePartition](
            items=[],
            next=f"{items[-1].group}:{items[-1].topic_id}:{items[-1].partition}" if more else None,
            total=total,
            limit=limit,
            offset=offset,
            missing_shards=view.unloaded_shards(),
        )
        return await listing.render_page(page, items, _WRITE_WORK)

    @routes.get("/api/v1/share-partition", response_model=SharePartitionWithNearRanges)
    async def get_share_partition(
        group: Annotated[str, Query(description="The group id.")],
        topic: Topic,
        partition: PartitionQuery,
        limit: Limit = 1_000,
        offset: Offset = 0,
        from_offset: FromOffset = None,
    ) -> Response:
        """Return the state of a share-partition; `limit` and `offset` select its in-flight offset ranges."""
        key = SharePartitionKey(group, await resolve_topic(view.cluster, topic), partition)
        return await _make_detail_response(view, key, limit, offset, from_offset)


def _check_after_parameter(after: str | None, *, in_order: bool, offset: int) -> None:
    if after is not None and (offset or not in_order):
        raise HTTPException(422, "after: it can be used only in the default order, and without offset")


def _parse_share_partition_key(text: str) -> SharePartitionKey:
    try:
        return SharePartitionKey.parse(text)
    except ValueError as error:
        raise HTTPException(422, f"after: {error}") from None


def require_loaded(view: CoordinatorView, key: SharePartitionKey) -> int:
    """Return the state partition of a share-partition. Raises OwnedElsewhereError if not loaded."""
    number = state_partition(key, view.runtime.state_partitions)
    shard = view.runtime.shard_views()[number]
    if shard.status != "ACTIVE":
        owner = view.owners.owner(number)
        # If the owner has a page, the client adds a link to it.
        where = f"; {owner.wire} owns it" if owner is not None and owner.page is None else ""
        raise OwnedElsewhereError(f"shard {number} of {key} is {shard.status}{where}", owner)
    return number


async def _make_detail_response(
    view: CoordinatorView, key: SharePartitionKey, limit: int, offset: int, from_offset: int | None
) -> Response:
    require_loaded(view, key)
    if view.runtime.share_partition(key) is None:
        raise HTTPException(404, f"share-partition {key} has no state here")
    cluster_info = await view.cluster.look_up_partitions([(key.topic_id, key.partition)])
    # Read the state again: it may have changed during the lookup in the cluster.
    state = view.runtime.share_partition(key)
    if state is None:
        raise HTTPException(404, f"share-partition {key} has no state here")
    sums = await listing.sum_batches(state, listing.YieldTimer())
    near: Iterable[OffsetRange] = ()
    if from_offset is not None:
        first = first_batch_index(state.batches, max(from_offset, state.start_offset))
        near = _make_offset_ranges(state, first, _NEAR)
    fields = share_partition_fields(key, state, sums, view.runtime.state_partitions, cluster_info)
    shown = SharePartitionWithNearRanges(
        **fields,
        **share_partition_detail_fields(state, sums, fields["end_offset"]),
        in_flight=Page[OffsetRange](items=[], total=state.batch_count, limit=limit, offset=offset),
        near=list(near),
    )
    ranges = _make_offset_ranges(state, offset, limit)
    exclude = {"near"} if from_offset is None else None
    return await listing.render_page(shown, ranges, _WRITE_WORK, exclude=exclude)


def _make_offset_ranges(state: ShareState, offset: int, limit: int) -> Iterator[OffsetRange]:
    for some in unpack_slices(state.batches, offset, limit):
        yield from map(make_offset_range, some)


async def _make_share_partitions(
    view: CoordinatorView, selected: list[ListedSharePartition]
) -> list[SharePartition]:
    cluster_info = await view.cluster.look_up_partitions(
        [(key.topic_id, key.partition) for _, key, _ in selected]
    )
    state_partitions = view.runtime.state_partitions
    items = []
    yield_timer = listing.YieldTimer()
    for _, key, state in selected:
        sums = await listing.sum_batches(state, yield_timer)
        fields = share_partition_fields(key, state, sums, state_partitions, cluster_info)
        items.append(SharePartition(**fields))
        await yield_timer.add_work(_ANSWER_WORK)
    return items


# Maximum number of waiting requests for histories: one process reads the logs, one at a time.
_WAITING_MAX = 4


def history_routes(view: CoordinatorView, **options: Any) -> APIRouter:
    routes = APIRouter(tags=["state"], **options)
    limiter = ListingLimiter(_WAITING_MAX)

    @routes.get("/api/v1/delivery-history")
    async def get_delivery_history(
        group: Annotated[str, Query(description="The group id.")],
        topic: Topic,
        partition: PartitionQuery,
        record_offset: Annotated[
            int | None, Query(ge=0, description="Only events that changed this record of the topic.")
        ] = None,
        before: Annotated[
            int | None, Query(ge=0, description="Only events before this log offset: `next` of a page.")
        ] = None,
        limit: ShortLimit = 100,
    ) -> DeliveryHistory:
        """Return what the state log contains about a share-partition, the latest event first.

        A separate process reads the log, with limits of time and memory.
        """
        key = SharePartitionKey(group, await resolve_topic(view.cluster, topic), partition)
        number = require_loaded(view, key)
        if view.history is None:
            raise HTTPException(503, "this process cannot read its log")
        async with limiter.wait_for_turn():
            try:
                found = await view.history.read_history(number, key, record_offset, before, limit)
            except CoordinatorError as error:
                raise HTTPException(503, f"the delivery history of {key} cannot be read: {error}") from None
        if not found["records"]:
            raise HTTPException(404, f"the log has no records of share-partition {key}")
        names = await view.cluster.look_up_partitions([(key.topic_id, key.partition)])
        log_start = iso_time(found.pop("log_start_ms"))
        pruned = (
            f"records before log offset {found['log_start_offset']} were pruned; events before {log_start} "
            f"are unknown, unless an archive has them (share-coordinator recovery archive)"
        )
        events = [DeliveryEvent(**event, time=iso_time(event["time_ms"])) for event in found.pop("events")]
        return DeliveryHistory(
            **{**found, "pruned": pruned if found["pruned"] else None},
            group=group,
            topic=names.names.get(key.topic_id),
            topic_id=topic_id_text(key.topic_id),
            partition=partition,
            state_partition=number,
            record_offset=record_offset,
            events=events,
            log_start=log_start,
        )

    return routes
