"""Routes that write snapshots, prune logs and hand over shards.

Without `execute`, a request is a dry run.  Each executed request writes one line to the `coordinator.audit`
log: client, request and outcome.  These routes do not change the state of share-partitions; only Kafka's
group coordinator changes offsets.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from coordinator.errors import OperationFailed
from coordinator.operate.admin.access_control import HttpPrincipal, audit
from coordinator.operate.admin.access_middleware import AUTHORIZE_WRITE, PRINCIPAL
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.owner_directory import Owner, make_owner
from coordinator.operate.admin.query_parameters import PARTITION_MAX, resolve_topic
from coordinator.operate.admin.state_routes import OwnedElsewhereError
from coordinator.printable import escape_unprintable
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

Answer = TypeVar("Answer", bound=BaseModel)
_FoundState = tuple[SharePartitionKey, ShareState]

# A hand-over includes a rebalance and waits for the operations in progress in the shard.
_HAND_OVER_TIMEOUT_S = 30.0
_HAND_OVER_POLL_S = 0.05


class WriteRequest(BaseModel):
    """The body of a request that changes something, validated strictly."""

    model_config = ConfigDict(extra="forbid", strict=True)

    execute: bool = Field(default=False, description="False: a dry run, which changes nothing.")


class SnapshotRequest(WriteRequest):
    """Selects all share-partitions of a shard or of a group, or one share-partition."""

    shard: int | None = Field(default=None, ge=0)
    group: str | None = None
    topic: str | None = Field(default=None, description="A topic id or name; with group and partition.")
    partition: int | None = Field(default=None, ge=0, le=PARTITION_MAX)


class SnapshotResponse(BaseModel):
    """The number of snapshots; in a dry run, the expected number."""

    executed: bool
    share_partitions: int = Field(description="Number of share-partitions.")
    updates: int = Field(
        description="Updates since the last snapshots, which are redundant after the new ones."
    )
    bytes: int = Field(description="Estimated size of the snapshots in the log.")
    missing_shards: list[int] = Field(
        description="State partitions that are not loaded here; their share-partitions are not included."
    )


class PruneRequest(WriteRequest):
    """Selects a shard; if `shard` is null, all shards of this coordinator."""

    shard: int | None = Field(default=None, ge=0)


class PrunedShard(BaseModel):
    """The offsets passed to the log of one shard. Logs free space in whole segments."""

    state_partition: int
    start_log_offset: int = Field(description="The first offset of the log before pruning.")
    redundant_offset: int = Field(description="Records below this log offset are no longer needed.")
    records: int = Field(description="Number of log offsets from the first to the redundant one.")


class PruneResponse(BaseModel):
    """The pruned shards; in a dry run, the expected ones."""

    executed: bool
    shards: list[PrunedShard]


class HandOverRequest(WriteRequest):
    """The shard, and the coordinator that should get it."""

    shard: int = Field(ge=0)
    to: str | None = Field(
        default=None, description="The broker-facing address of another coordinator of the group. null: any."
    )


class HandOverResponse(BaseModel):
    """The former and the new owner of a shard."""

    executed: bool
    state_partition: int
    previous_owner: Owner | None
    new_owner: Owner | None = Field(
        description="The new owner; null in a dry run, because the group's leader decides."
    )
    outcome: str


def write_routes(view: CoordinatorView) -> APIRouter:
    """Create the routes that write. `run_audited` authorizes each executed request."""
    routes = APIRouter(tags=["writes"])

    @routes.post("/api/v1/snapshots")
    async def write_snapshots(request_body: SnapshotRequest, request: Request) -> SnapshotResponse:
        """Write snapshots of share-partitions, so that older records can be pruned."""
        found, missing = await _select_share_partitions(view, request_body)
        plan = SnapshotResponse(
            executed=request_body.execute,
            share_partitions=len(found),
            updates=sum(state.updates for _, state in found),
            bytes=sum(state.snapshot_bytes for _, state in found),
            missing_shards=missing,
        )
        if not request_body.execute:
            return plan
        return await run_audited(
            request, "snapshot", request_body, lambda: _write_snapshots(view, found, plan)
        )

    @routes.post("/api/v1/prunes")
    async def prune_logs(request_body: PruneRequest, request: Request) -> PruneResponse:
        """Prune the records that are no longer needed, as a job does every few minutes."""
        here = _loaded_shards(view, request_body.shard)
        shards = [_describe_prune(view, number) for number in here]
        plan = PruneResponse(executed=request_body.execute, shards=shards)
        if not request_body.execute:
            return plan
        return await run_audited(request, "prune", request_body, lambda: _prune_shards(view, plan))

    @routes.post("/api/v1/hand-overs")
    async def hand_over_shard(request_body: HandOverRequest, request: Request) -> HandOverResponse:
        """Hand a shard over to another coordinator of the group."""
        instance = _target_instance(view, request_body)
        previous_owner = view.owners.owner(request_body.shard)
        if not request_body.execute:
            to = f"to {request_body.to}" if request_body.to else "to the coordinator with the fewest shards"
            outcome = f"would request the hand-over of shard {request_body.shard} {to}"
            return HandOverResponse(
                executed=False,
                state_partition=request_body.shard,
                previous_owner=previous_owner,
                new_owner=None,
                outcome=outcome,
            )
        return await run_audited(
            request,
            "hand-over",
            request_body,
            lambda: _wait_for_hand_over(view, request_body, instance, previous_owner),
        )

    return routes


async def run_audited(
    request: Request, what: str, request_body: BaseModel, work: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Authorize and execute a request; write one audit line for any outcome. Raises AccessDenied."""
    getattr(request.state, AUTHORIZE_WRITE)()
    principal: HttpPrincipal = getattr(request.state, PRINCIPAL)
    given = {
        name: value
        for name, value in request_body.model_dump().items()
        if value is not None and name != "execute"
    }
    cluster_info: dict[str, Any] = {
        "who": escape_unprintable(principal.who),
        "address": principal.address,
        "what": what,
        "order": given,
    }
    try:
        done = await work()
    except HTTPException as error:
        audit.warning("write request refused", extra={**cluster_info, "outcome": error.detail})
        raise
    except OperationFailed as error:
        audit.warning("write request refused", extra={**cluster_info, "outcome": str(error)})
        raise HTTPException(409, str(error)) from None
    except BaseException as error:
        audit.error("write request failed", extra={**cluster_info, "outcome": repr(error)})
        raise
    audit.info("write request executed", extra={**cluster_info, "outcome": _describe_outcome(done)})
    return done


def _describe_outcome(done: BaseModel) -> str:
    if isinstance(done, SnapshotResponse):
        return f"{done.share_partitions} snapshots"
    if isinstance(done, PruneResponse):
        return f"{sum(shard.records for shard in done.shards)} records are redundant"
    return str(getattr(done, "outcome", "done"))


# Snapshots.


async def _select_share_partitions(
    view: CoordinatorView, request_body: SnapshotRequest
) -> tuple[list[_FoundState], list[int]]:
    """Return the selected share-partitions, and unloaded shards that may have more. Raises HTTPException."""
    parts = (request_body.topic is not None, request_body.partition is not None)
    if (
        (request_body.shard is None) == (request_body.group is None)
        or (request_body.group is None and any(parts))
        or len(set(parts)) > 1
    ):
        raise HTTPException(422, "specify a shard, a group, or a group with a topic and a partition")
    runtime = view.runtime
    if request_body.shard is not None:
        (shard,) = _loaded_shards(view, request_body.shard)
        return await _find_share_partitions(
            view, lambda key: state_partition(key, runtime.state_partitions) == shard
        ), []
    group = request_body.group
    assert group is not None
    if request_body.topic is None or request_body.partition is None:
        missing = view.missing_shards()
        found = await _find_share_partitions(view, lambda key: key.group_id == group)
        if not found:
            raise HTTPException(
                404,
                f"group {group!r} has no state here"
                + (f"; {len(missing)} shards are not loaded here" if missing else ""),
            )
        return found, missing
    topic_id = await resolve_topic(view.cluster, request_body.topic)
    wanted = SharePartitionKey(group, topic_id, request_body.partition)
    _loaded_shards(view, state_partition(wanted, runtime.state_partitions))
    state = runtime.share_partition(wanted)
    if state is None:
        raise HTTPException(404, f"share-partition {wanted} has no state here")
    return [(wanted, state)], []


async def _find_share_partitions(
    view: CoordinatorView, wanted: Callable[[SharePartitionKey], bool]
) -> list[_FoundState]:
    return [entry async for entry in view.runtime.share_partitions() if wanted(entry[0])]


async def _write_snapshots(
    view: CoordinatorView, found: list[_FoundState], plan: SnapshotResponse
) -> SnapshotResponse:
    by_shard: dict[int, list[SharePartitionKey]] = {}
    for key, _ in found:
        by_shard.setdefault(state_partition(key, view.runtime.state_partitions), []).append(key)
    written = 0
    for number, keys in by_shard.items():
        written += await view.writable_runtime.jobs.snapshot_now(number, keys)
    return plan.model_copy(update={"share_partitions": written})


# Pruning.


def _loaded_shards(view: CoordinatorView, shard: int | None) -> list[int]:
    """Return the given shard if it is loaded here, or all loaded shards. Raises HTTPException."""
    views = view.runtime.shard_views()
    if shard is None:
        return [shard_view.state_partition for shard_view in views if shard_view.status == "ACTIVE"]
    if shard >= len(views):
        raise HTTPException(404, f"there is no shard {shard}; shards are numbered from 0 to {len(views) - 1}")
    if views[shard].status != "ACTIVE":
        raise OwnedElsewhereError(f"shard {shard} is {views[shard].status} here", view.owners.owner(shard))
    return [shard]


def _describe_prune(view: CoordinatorView, shard: int) -> PrunedShard:
    shard_view = view.runtime.shard_views()[shard]
    return PrunedShard(
        state_partition=shard,
        start_log_offset=shard_view.start_log_offset,
        redundant_offset=shard_view.redundant_offset,
        records=max(0, shard_view.redundant_offset - shard_view.start_log_offset),
    )


async def _prune_shards(view: CoordinatorView, plan: PruneResponse) -> PruneResponse:
    for shard in plan.shards:
        view.writable_runtime.jobs.prune_now(shard.state_partition)
    return plan


# Hand-over.


def _target_instance(view: CoordinatorView, request_body: HandOverRequest) -> str:
    """Return the instance that should get a shard, "" for any instance. Raises HTTPException."""
    (shard,) = _loaded_shards(view, request_body.shard)
    if view.config.ownership == "static":
        raise HTTPException(
            409, "this coordinator owns all shards (ownership=static), so there is no other owner"
        )
    assignment = view.owners.map
    if assignment is None:
        raise HTTPException(409, "the owners are not known, because the group has not answered for too long")
    previous_owner = assignment.owner(shard)
    others = [replica for replica in assignment.replicas if replica != previous_owner]
    if not others:
        raise HTTPException(409, "this coordinator is the only member of its group")
    if request_body.to is None:
        return ""
    named = [replica for replica in others if request_body.to in (replica.wire, make_owner(replica).page)]
    if not named:
        if previous_owner is not None and request_body.to in (
            previous_owner.wire,
            make_owner(previous_owner).page,
        ):
            raise HTTPException(409, f"{request_body.to} owns shard {shard} already")
        known = ", ".join(sorted(replica.wire for replica in others))
        raise HTTPException(
            404, f"there is no coordinator {request_body.to} in the group; its members are {known}"
        )
    return named[0].instance


async def _wait_for_hand_over(
    view: CoordinatorView, request_body: HandOverRequest, instance: str, previous_owner: Owner | None
) -> HandOverResponse:
    """Request the hand-over and wait for the next assignment. Raises OperationFailed."""
    runtime, owners, shard = view.writable_runtime, view.owners, request_body.shard
    generation = owners.generation
    view.hand_over(shard, instance)
    try:
        async with asyncio.timeout(_HAND_OVER_TIMEOUT_S):
            while runtime.owns(shard) or shard in runtime.resigning_shards:
                if owners.generation not in (generation, None) and shard not in runtime.resigning_shards:
                    raise OperationFailed(
                        f"the group's leader left shard {shard} here; check that the other coordinator is "
                        "ready and that all run the same release"
                    )
                await asyncio.sleep(_HAND_OVER_POLL_S)
    except TimeoutError:
        raise OperationFailed(
            f"the group did not answer within {_HAND_OVER_TIMEOUT_S:.0f} s; shard {shard} may still move"
        ) from None
    new_owner = owners.owner(shard)
    where = new_owner.wire if new_owner is not None else "another coordinator"
    return HandOverResponse(
        executed=True,
        state_partition=shard,
        previous_owner=previous_owner,
        new_owner=new_owner,
        outcome=f"shard {shard} was released and is owned by {where}",
    )
