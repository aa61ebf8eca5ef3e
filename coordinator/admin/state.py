"""The state that Kafka hides: shards, share groups, and each share-partition with its in-flight records."""

from typing import Annotated
from urllib.parse import unquote
from uuid import UUID

from fastapi import APIRouter, Depends, HTTPException, Path, Query

from coordinator.admin.answers import (
    GroupDetail,
    GroupPage,
    Page,
    Problem,
    Responses,
    Shard,
    SharePartition,
    SharePartitionDetail,
)
from coordinator.admin.views import GroupTotals, group_of, share_partition_detail, share_partition_of
from coordinator.runtime import Runtime
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, parse_topic_id

GROUPS_PATH = "/api/v1/groups"

_NOT_FOUND: Responses = {
    404: {"model": Problem, "description": "There is no such state."},
    503: {"model": Problem, "description": "The shard that would know is not loaded."},
}
_MALFORMED: Responses = {
    422: {"model": Problem, "description": "A part of the path or the query does not parse."}
}

Limit = Annotated[int, Query(ge=1, le=10_000, description="Items in one answer, at most.")]
Offset = Annotated[int, Query(ge=0, description="Items to leave out at the beginning.")]


async def _group(
    group: Annotated[str, Path(description="The group id, percent-encoded (`/` as %2F).")],
) -> str:
    try:
        return unquote(group, errors="strict")
    except UnicodeDecodeError:
        raise HTTPException(422, f"group: {group} is not percent-encoded UTF-8") from None


async def _topic(
    topic: Annotated[str, Path(description="The topic id: base64url, or a UUID with hyphens.")],
) -> bytes:
    try:
        return UUID(topic).bytes if len(topic) == 36 else parse_topic_id(topic)
    except ValueError:
        raise HTTPException(
            422, f"topic: {topic} is not a topic id: 22 characters of base64url, or a UUID with hyphens"
        ) from None


GroupId = Annotated[str, Depends(_group)]
TopicId = Annotated[bytes, Depends(_topic)]


def _missing_shards(runtime: Runtime) -> list[int]:
    return [shard.state_partition for shard in runtime.shard_views() if shard.status != "ACTIVE"]


def state_routes(runtime: Runtime) -> APIRouter:
    """Make the routes that show state."""
    routes = APIRouter(tags=["state"], responses=_MALFORMED)
    _add_lists(routes, runtime)
    _add_single_ones(routes, runtime)
    return routes


def _add_lists(routes: APIRouter, runtime: Runtime) -> None:

    @routes.get("/api/v1/shards")
    async def list_shards(limit: Limit = 1000, offset: Offset = 0) -> Page[Shard]:
        """List the shards."""
        shards = runtime.shard_views()
        return Page(
            items=[Shard.model_validate(shard) for shard in shards[offset : offset + limit]],
            total=len(shards),
            limit=limit,
            offset=offset,
        )

    @routes.get(GROUPS_PATH)
    async def list_groups(limit: Limit = 100, offset: Offset = 0) -> GroupPage:
        """List the groups that have state, by group id."""
        groups: dict[str, GroupTotals] = {}
        async for key, state in runtime.share_partitions():
            groups.setdefault(key.group_id, GroupTotals()).add(key, state)
        chosen = sorted(groups)[offset : offset + limit]
        return GroupPage(
            items=[group_of(group_id, groups[group_id]) for group_id in chosen],
            total=len(groups),
            limit=limit,
            offset=offset,
            missing_shards=_missing_shards(runtime),
        )


def _add_single_ones(routes: APIRouter, runtime: Runtime) -> None:
    @routes.get(GROUPS_PATH + "/{group}", responses=_NOT_FOUND)
    async def show_group(group: GroupId, limit: Limit = 100, offset: Offset = 0) -> GroupDetail:
        """Show a group and its share-partitions, by topic id and partition."""
        totals = GroupTotals()
        found: list[tuple[SharePartitionKey, ShareState]] = []
        async for key, state in runtime.share_partitions():
            if key.group_id == group:
                totals.add(key, state)
                found.append((key, state))
        missing = _missing_shards(runtime)
        if not found and missing:
            raise HTTPException(503, f"group {group!r} is not found, but shards {missing} are not loaded")
        if not found:
            raise HTTPException(404, f"group {group!r} has no state here")
        found.sort(key=lambda entry: entry[0])
        items = [
            share_partition_of(key, state, runtime.state_partitions)
            for key, state in found[offset : offset + limit]
        ]
        page = Page[SharePartition](items=items, total=len(found), limit=limit, offset=offset)
        return GroupDetail(**group_of(group, totals).model_dump(), partitions=page, missing_shards=missing)

    @routes.get(GROUPS_PATH + "/{group}/{topic}/{partition}", responses=_NOT_FOUND)
    async def show_share_partition(
        group: GroupId,
        topic: TopicId,
        partition: Annotated[int, Path(ge=0, le=2**31 - 1)],
        limit: Limit = 10_000,
        offset: Offset = 0,
    ) -> SharePartitionDetail:
        """Show the whole state of a share-partition; limit and offset page its in-flight runs."""
        key = SharePartitionKey(group, topic, partition)
        shard = runtime.shard_views()[state_partition(key, runtime.state_partitions)]
        if shard.status != "ACTIVE":
            raise HTTPException(503, f"shard {shard.state_partition} of {key} is {shard.status}")
        state = runtime.share_partition(key)
        if state is None:
            raise HTTPException(404, f"share-partition {key} has no state here")
        return share_partition_detail(key, state, runtime.state_partitions, limit=limit, offset=offset)
