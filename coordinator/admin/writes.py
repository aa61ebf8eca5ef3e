"""What changes something: snapshots, pruning, and giving a shard to another coordinator.

Each asks first: without `execute` the answer says what would be done.  What is done leaves one line in the
log of `coordinator.audit`: who, what, and what came of it.  No state of a share-partition changes here, only
where and how it is kept; offsets are the group coordinator's to change, in Kafka.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from coordinator.admin import listing
from coordinator.admin.access import Visitor, audit
from coordinator.admin.answers import Elsewhere, Problem, Responses
from coordinator.admin.guard import VISITOR
from coordinator.admin.listing import Found, Order
from coordinator.admin.owners import Owner, owner_of
from coordinator.admin.paths import MALFORMED, PARTITION_MAX, parsed_topic
from coordinator.admin.state import NotHere
from coordinator.admin.watched import Watched
from coordinator.errors import NotDone
from coordinator.visible import written_out
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

Answer = TypeVar("Answer", bound=BaseModel)

# A hand-over takes a rebalance, and what is under way in the shard.
_HAND_OVER_WITHIN_S = 30.0
_HAND_OVER_LOOK_S = 0.05

_REFUSALS: Responses = {
    401: {"model": Problem, "description": "It is not known who asks."},
    403: {"model": Problem, "description": "Who asks may not."},
    404: {"model": Problem, "description": "There is no such state, or no such shard."},
    409: {"model": Problem, "description": "It was not done, or not all of it; the message says why."},
    503: {"model": Elsewhere, "description": "The shard is not loaded, or not here."},
}


class _Order(BaseModel):
    # What changes something is not guessed from what looks like it.
    model_config = ConfigDict(extra="forbid", strict=True)

    execute: bool = Field(default=False, description="Without it, the answer says what would be done.")


class SnapshotOrder(_Order):
    """Which share-partitions: of a shard, of a group, or one."""

    shard: int | None = Field(default=None, ge=0)
    group: str | None = None
    topic: str | None = Field(default=None, description="A topic id; with group and partition.")
    partition: int | None = Field(default=None, ge=0, le=PARTITION_MAX)


class Snapshots(BaseModel):
    """The snapshots that were written, or would be."""

    executed: bool
    share_partitions: int = Field(description="Number of share-partitions.")
    updates: int = Field(description="Records since their last snapshots, which are not needed afterwards.")
    bytes: int = Field(description="About how much the snapshots take on the log.")
    missing_shards: list[int] = Field(description="State partitions that are not here: theirs are left out.")


class PruneOrder(_Order):
    """Which shard; all that are here if none is given."""

    shard: int | None = Field(default=None, ge=0)


class Pruned(BaseModel):
    """What the log was told of one shard, or would be. Logs give room back in whole segments."""

    state_partition: int
    start_log_offset: int = Field(description="First log offset that was still there.")
    redundant_offset: int = Field(description="Records below this log offset are not needed any more.")
    records: int = Field(description="Log offsets in between.")


class Prunes(BaseModel):
    """What was pruned, or would be."""

    executed: bool
    shards: list[Pruned]


class HandOverOrder(_Order):
    """Which shard, and to whom."""

    shard: int = Field(ge=0)
    to: str | None = Field(
        default=None, description="The address for brokers of another coordinator of the group. None: any."
    )


class HandOverDone(BaseModel):
    """Who gave a shard to whom, or would."""

    executed: bool
    state_partition: int
    giver: Owner | None
    taker: Owner | None = Field(description="None in a dry run: the group's leader decides.")
    outcome: str


def write_routes(watched: Watched) -> APIRouter:
    """Make the routes that change something. The guard before them has let in who may."""
    routes = APIRouter(tags=["writes"], responses={**MALFORMED, **_REFUSALS})

    @routes.post("/api/v1/snapshots")
    async def snapshot(order: SnapshotOrder, request: Request) -> Snapshots:
        """Write snapshots of share-partitions, so that what is older can be pruned."""
        found, missing = await _wanted(watched, order)
        plan = Snapshots(
            executed=order.execute,
            share_partitions=len(found),
            updates=sum(entry.state.updates for entry in found),
            bytes=sum(entry.state.snapshot_bytes for entry in found),
            missing_shards=missing,
        )
        if not order.execute:
            return plan
        return await audited(request, "snapshot", order, _snapshot(watched, found, plan))

    @routes.post("/api/v1/prunes")
    async def prune(order: PruneOrder, request: Request) -> Prunes:
        """Tell the log which records are not needed any more, as a job does every few minutes."""
        here = _shards_here(watched, order.shard)
        shards = [_pruned(watched, number) for number in here]
        plan = Prunes(executed=order.execute, shards=shards)
        if not order.execute:
            return plan
        return await audited(request, "prune", order, _prune(watched, plan))

    @routes.post("/api/v1/hand-overs")
    async def hand_over(order: HandOverOrder, request: Request) -> HandOverDone:
        """Give a shard to another coordinator of the group."""
        instance = _taker(watched, order)
        giver = watched.owners.owner(order.shard)
        if not order.execute:
            to = f"to {order.to}" if order.to else "to whoever has fewest"
            outcome = f"would ask the group's leader to give shard {order.shard} {to}"
            return HandOverDone(
                executed=False, state_partition=order.shard, giver=giver, taker=None, outcome=outcome
            )
        return await audited(request, "hand-over", order, _handed_over(watched, order, instance, giver))

    return routes


async def audited(request: Request, what: str, order: BaseModel, work: Awaitable[Answer]) -> Answer:
    """Do it, and leave one line in the log, however it ends."""
    visitor: Visitor = getattr(request.state, VISITOR)
    given = {
        name: value for name, value in order.model_dump().items() if value is not None and name != "execute"
    }
    facts: dict[str, Any] = {
        "who": written_out(visitor.who),
        "address": visitor.address,
        "what": what,
        "order": given,
    }
    try:
        done = await work
    except HTTPException as error:
        audit.warning("a write was not done", extra={**facts, "outcome": error.detail})
        raise
    except NotDone as error:
        audit.warning("a write was not done", extra={**facts, "outcome": str(error)})
        raise HTTPException(409, str(error)) from None
    except BaseException as error:
        audit.error("a write failed", extra={**facts, "outcome": repr(error)})
        raise
    audit.info("a write was done", extra={**facts, "outcome": _outcome(done)})
    return done


def _outcome(done: BaseModel) -> str:
    if isinstance(done, Snapshots):
        return f"{done.share_partitions} snapshots"
    if isinstance(done, Prunes):
        return f"{sum(shard.records for shard in done.shards)} records are not needed"
    return str(getattr(done, "outcome", "done"))


# Snapshots.


async def _wanted(watched: Watched, order: SnapshotOrder) -> tuple[list[Found], list[int]]:
    """Return the share-partitions that are meant, and shards that could have more. Raises HTTPException."""
    parts = (order.topic is not None, order.partition is not None)
    if (
        (order.shard is None) == (order.group is None)
        or (order.group is None and any(parts))
        or len(set(parts)) > 1
    ):
        raise HTTPException(422, "give a shard, or a group, or a group with a topic and a partition")
    runtime = watched.runtime
    if order.shard is not None:
        (shard,) = _shards_here(watched, order.shard)
        return await _found(watched, lambda key: state_partition(key, runtime.state_partitions) == shard), []
    group = order.group
    assert group is not None
    if order.topic is None or order.partition is None:
        missing = watched.missing_shards()
        found = await _found(watched, lambda key: key.group_id == group)
        if not found:
            raise HTTPException(
                404,
                f"group {group!r} has no state here"
                + (f"; {len(missing)} shards are not here" if missing else ""),
            )
        return found, missing
    wanted = SharePartitionKey(group, parsed_topic(order.topic), order.partition)
    _shards_here(watched, state_partition(wanted, runtime.state_partitions))
    state = runtime.share_partition(wanted)
    if state is None:
        raise HTTPException(404, f"share-partition {wanted} has no state here")
    return [Found(0, wanted, state)], []


async def _found(watched: Watched, wanted: Any) -> list[Found]:
    return await listing.share_partitions(watched.runtime, wanted, Order.KEY, descending=False)


async def _snapshot(watched: Watched, found: list[Found], plan: Snapshots) -> Snapshots:
    by_shard: dict[int, list[SharePartitionKey]] = {}
    for entry in found:
        number = state_partition(entry.key, watched.runtime.state_partitions)
        by_shard.setdefault(number, []).append(entry.key)
    written = 0
    for number, keys in by_shard.items():
        written += await watched.coordinator.jobs.snapshot_now(number, keys)
    return plan.model_copy(update={"share_partitions": written})


# Pruning.


def _shards_here(watched: Watched, shard: int | None) -> list[int]:
    """Return a shard that is loaded here, or all that are. Raises HTTPException."""
    views = watched.runtime.shard_views()
    if shard is None:
        return [view.state_partition for view in views if view.status == "ACTIVE"]
    if shard >= len(views):
        raise HTTPException(404, f"there is no shard {shard}: they are numbered from 0 to {len(views) - 1}")
    if views[shard].status != "ACTIVE":
        raise NotHere(f"shard {shard} is {views[shard].status} here", watched.owners.owner(shard))
    return [shard]


def _pruned(watched: Watched, shard: int) -> Pruned:
    view = watched.runtime.shard_views()[shard]
    return Pruned(
        state_partition=shard,
        start_log_offset=view.start_log_offset,
        redundant_offset=view.redundant_offset,
        records=max(0, view.redundant_offset - view.start_log_offset),
    )


async def _prune(watched: Watched, plan: Prunes) -> Prunes:
    for shard in plan.shards:
        watched.coordinator.jobs.prune_now(shard.state_partition)
    return plan


# Handing over.


def _taker(watched: Watched, order: HandOverOrder) -> str:
    """Return the instance that a shard is wished to go to, "" for any. Raises HTTPException."""
    (shard,) = _shards_here(watched, order.shard)
    if watched.config.ownership == "static":
        raise HTTPException(
            409, "this coordinator owns all shards alone (ownership=static): there is nobody to take one"
        )
    owner_map = watched.owners.map
    if owner_map is None:
        raise HTTPException(409, "it is not known now who owns what: the group has not answered for too long")
    giver = owner_map.owner(shard)
    others = [replica for replica in owner_map.replicas if replica != giver]
    if not others:
        raise HTTPException(409, "this coordinator is alone in its group: there is nobody to take a shard")
    if order.to is None:
        return ""
    named = [replica for replica in others if order.to in (replica.wire, owner_of(replica).page)]
    if not named:
        if giver is not None and order.to in (giver.wire, owner_of(giver).page):
            raise HTTPException(409, f"shard {shard} is with {order.to} already")
        known = ", ".join(sorted(replica.wire for replica in others))
        raise HTTPException(404, f"there is no coordinator {order.to} in the group; there are {known}")
    return named[0].instance


async def _handed_over(
    watched: Watched, order: HandOverOrder, instance: str, giver: Owner | None
) -> HandOverDone:
    """Wish it, and wait for the group's next map. Raises NotDone."""
    runtime, owners, shard = watched.coordinator, watched.owners, order.shard
    generation = owners.generation
    watched.hand_over(shard, instance)
    try:
        async with asyncio.timeout(_HAND_OVER_WITHIN_S):
            while runtime.owns(shard) or shard in runtime.resigning:
                if owners.generation not in (generation, None) and shard not in runtime.resigning:
                    raise NotDone(
                        f"the group's leader left shard {shard} here; see whether the other coordinator is "
                        "ready, and whether all are of this release"
                    )
                await asyncio.sleep(_HAND_OVER_LOOK_S)
    except TimeoutError:
        raise NotDone(
            f"the group has not answered within {_HAND_OVER_WITHIN_S:.0f} s; shard {shard} may still move"
        ) from None
    taker = owners.owner(shard)
    where = taker.wire if taker is not None else "another coordinator"
    return HandOverDone(
        executed=True,
        state_partition=shard,
        giver=giver,
        taker=taker,
        outcome=f"shard {shard} is released here and belongs to {where}",
    )
