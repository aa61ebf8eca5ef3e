"""Routes that list abandoned state with its expiration time, and run a round of expiry on request."""

import asyncio
from collections.abc import Awaitable
from typing import Annotated, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field

from coordinator.errors import CoordinatorError
from coordinator.operate.admin.api_models import Page
from coordinator.operate.admin.cluster_info import NO_CLUSTER
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.query_parameters import Limit, Offset
from coordinator.operate.admin.views import iso_time
from coordinator.operate.admin.write_routes import WriteRequest, run_audited
from coordinator.operate.expiry import AbandonedState, Expiry, ExpiryForecast, ExpiryStatus
from protocol.state_records import topic_id_text

Answer = TypeVar("Answer")

# Maximum time of a request that runs a round. Then the request fails, and the round continues.
_TIMEOUT_S = 20.0

_MINUTES_MAX = 2**31 - 1

RetentionMinutes = Annotated[
    int | None,
    Query(ge=1, le=_MINUTES_MAX, description="Use this retention time for the list. Nothing is removed."),
]


class AbandonedTopic(BaseModel):
    """The abandoned state of one topic of a share group."""

    group: str
    topic: str | None = Field(description="The name of the topic, or null if it does not exist.")
    topic_id: str = Field(description="The topic id as Kafka writes it: base64url.")
    partitions: list[int] = Field(description="The partitions with state in this coordinator.")
    reason: str = Field(
        description="group_empty, topic_unsubscribed, topic_deleted or group_deleted (in Kafka)."
    )
    since: str | None = Field(description="When the state was first seen to be abandoned.")
    since_ms: int
    expires_at: str | None = Field(description="When the state will be removed. null: never.")
    expires_at_ms: int | None
    status: str = Field(
        description="later, due, waits-for-empty-group (Kafka refuses to delete from a group with members), "
        "elsewhere (another coordinator owns it) or not-known (the cluster gave no answer for it)."
    )


class ExpiryPage(Page[AbandonedTopic]):
    """A part of the list of abandoned state, ordered by expiration time."""

    enabled: bool = Field(description="Whether a retention time is set, so that state is removed.")
    retention_minutes: int | None
    grace_minutes: int
    looked_at: str | None
    last_round: str | None = Field(description="The time of the last round.")
    unheard_groups: int = Field(description="Groups whose coordinators did not answer.")
    doubt: str | None = Field(description="Why no topic or group is considered deleted, or null.")
    missing_shards: list[int] = Field(
        description="State partitions that are not loaded; the list is incomplete without their state."
    )


class RemovedTopic(BaseModel):
    """The result for one topic of a group that was due."""

    group: str
    topic: str | None
    topic_id: str
    reason: str
    share_partitions: int = Field(description="Number of share-partitions whose state was removed.")
    refused: str = Field(description="Why the state was not removed; empty if it was.")


class ExpiryRound(BaseModel):
    """The result of a round; in a dry run, the expected result."""

    executed: bool
    items: list[RemovedTopic]
    left_over: int = Field(description="Due topics that wait for the next round.")
    outcome: str


def expiry_routes(view: CoordinatorView) -> APIRouter:
    """Create the routes of expiry."""
    routes = APIRouter(tags=["expiry"])

    @routes.get("/api/v1/expiry")
    async def list_abandoned_state(
        limit: Limit = 1000, offset: Offset = 0, retention_minutes: RetentionMinutes = None
    ) -> ExpiryPage:
        """List abandoned state and when it expires."""
        found = await _await_or_503(_require_expiry(view).forecast(retention_minutes))
        return _make_page(found, view.missing_shards(), limit, offset)

    @routes.post("/api/v1/expiry")
    async def run_expiry(order: WriteRequest, request: Request) -> ExpiryRound:
        """Remove the due state now, as the periodic rounds do."""
        expiry = _require_expiry(view)
        if not expiry.enabled:
            raise HTTPException(
                409, "share.coordinator.group.state.retention.minutes is -1, so state never expires"
            )
        if not order.execute:
            return _plan_round(await _await_or_503(expiry.forecast()))
        return await run_audited(request, "expiry", order, lambda: _run_round(expiry))

    return routes


def _require_expiry(view: CoordinatorView) -> Expiry:
    if view.expiry is None:
        raise HTTPException(503, f"{NO_CLUSTER}, so it is not known which groups are empty")
    return view.expiry


async def _await_or_503(answer: Awaitable[Answer]) -> Answer:
    try:
        return await answer
    except CoordinatorError as error:
        raise HTTPException(503, f"the cluster does not answer: {error}") from None


def _make_page(found: ExpiryForecast, missing_shards: list[int], limit: int, offset: int) -> ExpiryPage:
    return ExpiryPage(
        items=[_make_abandoned_topic(each) for each in found.items[offset : offset + limit]],
        total=len(found.items),
        limit=limit,
        offset=offset,
        enabled=found.enabled,
        retention_minutes=found.rules.retention_minutes,
        grace_minutes=found.rules.grace_minutes,
        looked_at=iso_time(found.read_ms),
        last_round=iso_time(found.last_round_ms or 0),
        unheard_groups=found.unheard_groups,
        doubt=found.doubt,
        missing_shards=missing_shards,
    )


def _make_abandoned_topic(each: AbandonedState) -> AbandonedTopic:
    return AbandonedTopic(
        group=each.group_id,
        topic=each.topic,
        topic_id=topic_id_text(each.topic_id),
        partitions=list(each.partitions),
        reason=each.reason,
        since=iso_time(each.since_ms),
        since_ms=each.since_ms,
        expires_at=iso_time(each.expires_ms or 0),
        expires_at_ms=each.expires_ms,
        status=each.status,
    )


def _make_removed_topic(each: AbandonedState, share_partitions: int, refused: str = "") -> RemovedTopic:
    return RemovedTopic(
        group=each.group_id,
        topic=each.topic,
        topic_id=topic_id_text(each.topic_id),
        reason=each.reason,
        share_partitions=share_partitions,
        refused=refused,
    )


def _plan_round(found: ExpiryForecast) -> ExpiryRound:
    due = [each for each in found.items if each.status is ExpiryStatus.DUE]
    return ExpiryRound(
        executed=False,
        items=[_make_removed_topic(each, len(each.partitions)) for each in due],
        left_over=0,
        outcome=f"would remove {_format_count(sum(len(each.partitions) for each in due))}",
    )


async def _run_round(expiry: Expiry) -> ExpiryRound:
    """Run a round. Raises HTTPException if the cluster does not respond or the round takes too long."""
    task = asyncio.ensure_future(expiry.run_round())
    # Retrieve the exception even if the request timed out, so that asyncio does not log it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        done = await _await_or_503(asyncio.wait_for(asyncio.shield(task), _TIMEOUT_S))
    except TimeoutError:
        raise HTTPException(
            503, f"the round did not finish within {_TIMEOUT_S:.0f} s; it continues"
        ) from None
    removed = sum(removal.share_partitions for removal in done.removals)
    refused = sum(bool(removal.refused) for removal in done.removals)
    outcome = f"removed {_format_count(removed)}"
    if refused:
        outcome += f"; {refused} topics of groups were not removed"
    if done.left_over:
        outcome += f"; {done.left_over} wait for the next round"
    return ExpiryRound(
        executed=True,
        items=[
            _make_removed_topic(removal.abandoned, removal.share_partitions, removal.refused)
            for removal in done.removals
        ],
        left_over=done.left_over,
        outcome=outcome,
    )


def _format_count(share_partitions: int) -> str:
    return f"the state of {share_partitions} share-partitions"
