"""The route that hands a shard over to another coordinator of the group."""

import asyncio
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from coordinator.errors import OperationFailed
from coordinator.operate.admin.audited_writes import WriteRequest, authorize_write, run_audited_request
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.owner_directory import Owner, make_owner
from coordinator.operate.admin.state_routes import OwnedElsewhereError

# A hand-over includes a rebalance and waits for the operations in progress in the shard.
_HAND_OVER_TIMEOUT_S = 30.0
_HAND_OVER_POLL_S = 0.05


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


def hand_over_routes(view: CoordinatorView, **options: Any) -> APIRouter:
    routes = APIRouter(tags=["writes"], **options)

    @routes.post("/api/v1/hand-overs")
    async def hand_over_shard(request_body: HandOverRequest, request: Request) -> HandOverResponse:
        """Hand a shard over to another coordinator of the group."""
        if view.is_observer:
            raise HTTPException(404, "an observer owns no shards; ask a coordinator")
        if request_body.execute:
            # Authorize before the validation, because its errors name the members of the group.
            authorize_write(request)
        instance = _find_target_instance(view, request_body)
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
        return await run_audited_request(
            request,
            "hand-over",
            request_body,
            lambda: _wait_for_hand_over(view, request_body, instance, previous_owner),
        )

    return routes


def _check_shard_is_loaded(view: CoordinatorView, shard: int) -> None:
    views = view.runtime.shard_views()
    if shard >= len(views):
        raise HTTPException(404, f"there is no shard {shard}; shards are numbered from 0 to {len(views) - 1}")
    if views[shard].status != "ACTIVE":
        raise OwnedElsewhereError(f"shard {shard} is {views[shard].status} here", view.owners.owner(shard))


def _find_target_instance(view: CoordinatorView, request_body: HandOverRequest) -> str:
    """Return the instance that should get a shard, "" for any instance. Raises HTTPException."""
    shard = request_body.shard
    _check_shard_is_loaded(view, shard)
    if view.config.ownership == "static":
        raise HTTPException(
            409, "this coordinator owns all shards (ownership=static), so there is no other owner"
        )
    assignment = view.owners.assignment
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
            # The shard is released before the group has named its new owner.
            while (
                runtime.owns(shard)
                or shard in runtime.resigning_shards
                or (previous_owner is not None and owners.owner(shard) == previous_owner)
            ):
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
