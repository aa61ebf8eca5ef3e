"""The route that hands over shards, and the audit log of all write requests.

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
from coordinator.operate.admin.state_routes import OwnedElsewhereError
from coordinator.printable import escape_unprintable

Answer = TypeVar("Answer", bound=BaseModel)

# A hand-over includes a rebalance and waits for the operations in progress in the shard.
_HAND_OVER_TIMEOUT_S = 30.0
_HAND_OVER_POLL_S = 0.05


class WriteRequest(BaseModel):
    """The body of a request that changes something, validated strictly."""

    model_config = ConfigDict(extra="forbid", strict=True)

    execute: bool = Field(default=False, description="False: a dry run, which changes nothing.")


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

    @routes.post("/api/v1/hand-overs")
    async def hand_over_shard(request_body: HandOverRequest, request: Request) -> HandOverResponse:
        """Hand a shard over to another coordinator of the group."""
        if request_body.execute:
            getattr(request.state, AUTHORIZE_WRITE)()
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
    return str(getattr(done, "outcome", "done"))


def _check_shard_is_loaded(view: CoordinatorView, shard: int) -> None:
    """Raise HTTPException if a shard does not exist or is not loaded here."""
    views = view.runtime.shard_views()
    if shard >= len(views):
        raise HTTPException(404, f"there is no shard {shard}; shards are numbered from 0 to {len(views) - 1}")
    if views[shard].status != "ACTIVE":
        raise OwnedElsewhereError(f"shard {shard} is {views[shard].status} here", view.owners.owner(shard))


def _target_instance(view: CoordinatorView, request_body: HandOverRequest) -> str:
    """Return the instance that should get a shard, "" for any instance. Raises HTTPException."""
    shard = request_body.shard
    _check_shard_is_loaded(view, shard)
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
