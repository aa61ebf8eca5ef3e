"""Routes that list abandoned state with its expiration time, and that remove expired state on request."""

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from coordinator.errors import CoordinatorError
from coordinator.operate.admin.api_models import Page
from coordinator.operate.admin.audited_writes import WriteRequest, run_audited_request
from coordinator.operate.admin.cluster_info import NO_CLUSTER
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.query_parameters import Limit, Offset
from coordinator.operate.admin.views import iso_time
from coordinator.operate.expiry import Expiry, ExpiryForecast, ExpiryStatus, RemovalResult
from protocol.state_records import topic_id_text

Answer = TypeVar("Answer")

# Maximum time of a request that runs a round. After this time, the request fails, and the round continues.
_TIMEOUT_S = 20.0

_MINUTES_MAX = 2**31 - 1

RetentionMinutes = Annotated[
    int | None,
    Query(ge=1, le=_MINUTES_MAX, description="Use this retention time for the list. Nothing is removed."),
]


# Field types that convert the values of `coordinator.operate.expiry` to those of the API.
_TopicId = Annotated[
    str, BeforeValidator(topic_id_text), Field(description="The topic id as Kafka writes it: base64url.")
]
_Time = Annotated[str | None, BeforeValidator(iso_time)]


class AbandonedTopic(BaseModel):
    """The abandoned state of one topic of a share group."""

    model_config = ConfigDict(from_attributes=True)

    group: str = Field(validation_alias="group_id")
    topic: str | None = Field(description="The name of the topic, or null if it does not exist.")
    topic_id: _TopicId
    partitions: list[int] = Field(description="The partitions with state in this coordinator.")
    reason: str = Field(
        description="group_empty, topic_unsubscribed, topic_deleted or group_deleted (in Kafka)."
    )
    since: _Time = Field(
        validation_alias="since_ms", description="When the state was first seen to be abandoned."
    )
    since_ms: int
    expires_at: _Time = Field(
        validation_alias="expires_ms", description="When the state will be removed. null: never."
    )
    expires_at_ms: int | None = Field(validation_alias="expires_ms")
    status: str = Field(
        description="later, due, waits-for-empty-group (Kafka refuses to delete from a group with members), "
        "elsewhere (another coordinator owns it) or not-known (the cluster gave no answer for it)."
    )


class ExpiryPage(Page[AbandonedTopic]):
    """A part of the list of abandoned state, ordered by expiration time."""

    enabled: bool = Field(description="Whether a retention time is set, so that state is removed.")
    retention_minutes: int | None
    grace_minutes: int
    observed_at: str | None
    last_round: str | None = Field(description="The time of the last round.")
    unanswered_groups: int = Field(description="Groups whose coordinators did not answer.")
    warning: str | None = Field(description="Why no topic or group is considered deleted, or null.")
    missing_shards: list[int] = Field(
        description="State partitions that are not loaded; the list is incomplete without their state."
    )


class RemovedTopic(BaseModel):
    """The result of a round for the state of one group and topic."""

    model_config = ConfigDict(from_attributes=True)

    group: str = Field(validation_alias=AliasPath("abandoned", "group_id"))
    topic: str | None = Field(validation_alias=AliasPath("abandoned", "topic"))
    topic_id: _TopicId = Field(validation_alias=AliasPath("abandoned", "topic_id"))
    reason: str = Field(validation_alias=AliasPath("abandoned", "reason"))
    share_partitions: int = Field(description="Number of share-partitions whose state was removed.")
    refused: str = Field(description="Why the state was not removed; empty if it was.")


class ExpiryRound(BaseModel):
    """The result of a round of expiry; in a dry run, the expected result."""

    executed: bool
    items: list[RemovedTopic]
    left_over: int = Field(description="Due topics that wait for the next round.")
    outcome: str


def expiry_routes(view: CoordinatorView, **options: Any) -> APIRouter:
    routes = APIRouter(tags=["expiry"], **options)

    @routes.get("/api/v1/expiry")
    async def list_abandoned_state(
        limit: Limit = 1000, offset: Offset = 0, retention_minutes: RetentionMinutes = None
    ) -> ExpiryPage:
        """List abandoned state and when it expires."""
        found = await _await_or_503(_require_expiry(view).forecast(retention_minutes))
        return _make_expiry_page(found, view.unloaded_shards(), limit, offset)

    @routes.post("/api/v1/expiry")
    async def run_expiry(order: WriteRequest, request: Request) -> ExpiryRound:
        """Remove the due state now, as the periodic rounds do."""
        expiry = _require_expiry(view)
        if not expiry.enabled:
            raise HTTPException(
                409, "share.coordinator.group.state.retention.minutes is -1, so state never expires"
            )
        if not order.execute:
            return _preview_expiry_round(await _await_or_503(expiry.forecast()))
        return await run_audited_request(request, "expiry", order, lambda: _run_expiry_round(expiry))

    return routes


def _require_expiry(view: CoordinatorView) -> Expiry:
    if view.is_observer:
        raise HTTPException(404, "an observer expires no state; ask a coordinator")
    if view.expiry is None:
        raise HTTPException(503, f"{NO_CLUSTER}, so it is not known which groups are empty")
    return view.expiry


async def _await_or_503(answer: Awaitable[Answer]) -> Answer:
    try:
        return await answer
    except CoordinatorError as error:
        raise HTTPException(503, f"the cluster does not answer: {error}") from None


def _make_expiry_page(
    forecast: ExpiryForecast, missing_shards: list[int], limit: int, offset: int
) -> ExpiryPage:
    return ExpiryPage(
        items=list(map(AbandonedTopic.model_validate, forecast.items[offset : offset + limit])),
        total=len(forecast.items),
        limit=limit,
        offset=offset,
        enabled=forecast.enabled,
        retention_minutes=forecast.rules.retention_minutes,
        grace_minutes=forecast.rules.grace_minutes,
        observed_at=iso_time(forecast.read_ms),
        last_round=iso_time(forecast.last_round_ms),
        unanswered_groups=forecast.unanswered_groups,
        warning=forecast.warning,
        missing_shards=missing_shards,
    )


def _preview_expiry_round(forecast: ExpiryForecast) -> ExpiryRound:
    due = [each for each in forecast.items if each.status is ExpiryStatus.DUE]
    removals = [RemovalResult(each, len(each.partitions)) for each in due]
    return _make_round_response(removals, "would remove", executed=False)


async def _run_expiry_round(expiry: Expiry) -> ExpiryRound:
    task = asyncio.ensure_future(expiry.run_round())
    # Retrieve the exception even if the request timed out, so that asyncio does not log it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        done = await _await_or_503(asyncio.wait_for(asyncio.shield(task), _TIMEOUT_S))
    except TimeoutError:
        raise HTTPException(
            503, f"the round did not finish within {_TIMEOUT_S:.0f} s; it continues"
        ) from None
    return _make_round_response(done.removals, "removed", left_over=done.left_over, executed=True)


def _make_round_response(
    removals: list[RemovalResult], verb: str, *, left_over: int = 0, executed: bool
) -> ExpiryRound:
    outcome = f"{verb} the state of {sum(each.share_partitions for each in removals)} share-partitions"
    if refused := sum(bool(each.refused) for each in removals):
        outcome += f"; {refused} topics of groups were not removed"
    if left_over:
        outcome += f"; {left_over} wait for the next round"
    items = list(map(RemovedTopic.model_validate, removals))
    return ExpiryRound(executed=executed, items=items, left_over=left_over, outcome=outcome)
