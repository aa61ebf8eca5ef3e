"""Routes of share-group signals: all groups by severity, one group (for a KEDA scaler), and the events."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from coordinator.observe.signals import GroupSignals, Problem
from coordinator.operate.admin.api_models import ErrorResponse as HttpErrorResponse
from coordinator.operate.admin.api_models import Responses
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.paths import MALFORMED, Limit

SIGNALS_PATH = "/api/v1/signals"

_NO_GROUP: Responses = {
    404: {"model": HttpErrorResponse, "description": "The group has no state in this coordinator."}
}


class GroupSignalsAnswer(BaseModel):
    """The figures of one share group. Counts are user records; null means unknown."""

    group: str
    problem: str
    severity: int
    message: str
    share_partitions: int
    lag: int | None
    in_flight_records: int
    redelivered_records: int
    delivery_count_max: int
    near_delivery_limit_records: int
    window_usage: float
    stuck_seconds: float
    stuck_at: str | None
    oldest_record_age_seconds: float | None
    acknowledged_per_second: float | None
    released_per_second: float | None
    rejected_per_second: float | None
    lost_records: int
    members: int | None


class SignalsAnswer(BaseModel):
    """Share groups, the most severe problem first, then the largest lag."""

    items: list[GroupSignalsAnswer]
    total: int
    problems: int


class EventAnswer(BaseModel):
    """A problem of a group began (`began` is true) or ended."""

    timestamp_ms: int
    group: str
    problem: str
    began: bool
    message: str


class EventsAnswer(BaseModel):
    """The newest events, oldest first."""

    items: list[EventAnswer]


def signal_routes(view: CoordinatorView) -> APIRouter:
    """Create the routes; without a monitor, the lists are empty."""
    routes = APIRouter(tags=["signals"], responses=MALFORMED)

    @routes.get(SIGNALS_PATH)
    async def list_signals(
        limit: Limit = 100,
        only_problems: Annotated[bool, Query(description="Omit groups without a problem.")] = False,
        group: Annotated[str | None, Query(description="Only this group.")] = None,
    ) -> SignalsAnswer:
        """List share groups by the severity of their problem."""
        groups = list(view.signals.groups.values()) if view.signals is not None else []
        if group is not None:
            groups = [each for each in groups if each.group == group]
        with_problem = [each for each in groups if each.problem is not Problem.NONE]
        shown = with_problem if only_problems else groups
        shown = sorted(shown, key=lambda each: (-each.problem, -each.lag, each.group))
        return SignalsAnswer(
            items=[_make_response(each) for each in shown[:limit]],
            total=len(shown),
            problems=len(with_problem),
        )

    @routes.get("/api/v1/events")
    async def list_events(limit: Limit = 100) -> EventsAnswer:
        """List the newest events: problems that began or ended."""
        events = list(view.signals.events)[-limit:] if view.signals is not None else []
        return EventsAnswer(
            items=[
                EventAnswer(
                    timestamp_ms=each.timestamp_ms,
                    group=each.group,
                    problem=each.problem,
                    began=each.began,
                    message=each.message,
                )
                for each in events
            ]
        )

    @routes.get("/api/v1/signal", responses=_NO_GROUP)
    async def get_signals(
        group: Annotated[str, Query(description="The group id.")],
    ) -> GroupSignalsAnswer:
        """Show one group. KEDA's metrics-api scaler reads `lag` from it (valueLocation: lag)."""
        found = view.signals.groups.get(group) if view.signals is not None else None
        if found is None:
            raise HTTPException(404, f"group {group!r} has no state here")
        return _make_response(found)

    return routes


def _make_response(signals: GroupSignals) -> GroupSignalsAnswer:
    return GroupSignalsAnswer(
        group=signals.group,
        problem=signals.problem.label,
        severity=signals.problem,
        message=signals.message,
        share_partitions=signals.share_partitions,
        lag=_none_if_negative(signals.lag),
        in_flight_records=signals.in_flight,
        redelivered_records=signals.redelivered,
        delivery_count_max=signals.delivery_count_max,
        near_delivery_limit_records=signals.near_delivery_limit,
        window_usage=round(signals.window_usage, 4),
        stuck_seconds=round(signals.stuck_s, 1),
        stuck_at=signals.stuck_at or None,
        oldest_record_age_seconds=_round_rate(signals.oldest_record_age_s),
        acknowledged_per_second=_round_rate(signals.acknowledged_rate),
        released_per_second=_round_rate(signals.released_rate),
        rejected_per_second=_round_rate(signals.rejected_rate),
        lost_records=signals.lost_records,
        members=_none_if_negative(signals.members),
    )


def _none_if_negative(value: int) -> int | None:
    return None if value < 0 else value


def _round_rate(value: float) -> float | None:
    return None if value < 0 else round(value, 3)
