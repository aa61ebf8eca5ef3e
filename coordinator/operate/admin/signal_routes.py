"""Routes of share-group signals: all groups by severity, one group (for a KEDA scaler), and the events."""

from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from coordinator.observe.signals import Problem
from coordinator.observe.signals.detectors import SignalEvent
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.query_parameters import Limit

SIGNALS_PATH = "/api/v1/signals"


def _none_if_unknown(value: float) -> float | None:
    return None if value < 0 else round(value, 3)


# The monitor has -1 for an unknown value.
_OptionalCount = Annotated[int | None, BeforeValidator(_none_if_unknown)]
_OptionalFloat = Annotated[float | None, BeforeValidator(_none_if_unknown)]
_Rounded = Annotated[float, BeforeValidator(lambda value: round(value, 3))]


class GroupSignalsAnswer(BaseModel):
    """The signals of one share group. Counts are user records; null means unknown."""

    model_config = ConfigDict(from_attributes=True)

    group: str
    problem: Annotated[str, BeforeValidator(attrgetter("label"))]
    severity: int = Field(validation_alias="problem")
    message: str
    share_partitions: int
    lag: _OptionalCount
    in_flight_records: int = Field(validation_alias="in_flight")
    redelivered_records: int = Field(validation_alias="redelivered")
    delivery_count_max: int
    near_delivery_limit_records: int = Field(validation_alias="near_delivery_limit")
    window_usage: _Rounded
    stuck_seconds: _Rounded = Field(validation_alias="stuck_s")
    stuck_at: Annotated[str | None, BeforeValidator(lambda text: text or None)]
    oldest_record_age_seconds: _OptionalFloat = Field(validation_alias="oldest_record_age_s")
    acknowledged_per_second: _OptionalFloat = Field(validation_alias="acknowledged_rate")
    released_per_second: _OptionalFloat = Field(validation_alias="released_rate")
    rejected_per_second: _OptionalFloat = Field(validation_alias="rejected_rate")
    lost_records: int
    members: _OptionalCount


class SignalsAnswer(BaseModel):
    """Share groups, the most severe problem first, then the largest lag."""

    items: list[GroupSignalsAnswer]
    total: int
    problems: int


class EventsAnswer(BaseModel):
    """The newest events in order of time."""

    items: list[SignalEvent]


def signal_routes(view: CoordinatorView, **options: Any) -> APIRouter:
    """Create the routes; without a monitor, the lists are empty."""
    routes = APIRouter(tags=["signals"], **options)

    @routes.get(SIGNALS_PATH)
    async def list_signals(
        limit: Limit = 100,
        only_problems: Annotated[bool, Query(description="Omit groups without a problem.")] = False,
        group: Annotated[str | None, Query(description="Only this group.")] = None,
    ) -> SignalsAnswer:
        """List share groups by the severity of their problem."""
        groups = list(view.group_signals.values())
        if group is not None:
            groups = [each for each in groups if each.group == group]
        with_problem = [each for each in groups if each.problem is not Problem.NONE]
        shown = with_problem if only_problems else groups
        shown = sorted(shown, key=lambda each: (-each.problem, -each.lag, each.group))
        return SignalsAnswer(
            items=[GroupSignalsAnswer.model_validate(each) for each in shown[:limit]],
            total=len(shown),
            problems=len(with_problem),
        )

    @routes.get("/api/v1/events")
    async def list_events(limit: Limit = 100) -> EventsAnswer:
        """List the newest events: problems that began or ended."""
        events = list(view.signals.events)[-limit:] if view.signals is not None else []
        return EventsAnswer(items=events)

    @routes.get("/api/v1/signal")
    async def get_signals(
        group: Annotated[str, Query(description="The group id.")],
    ) -> GroupSignalsAnswer:
        """Show one group. KEDA's metrics-api scaler reads `lag` from the response (valueLocation: lag)."""
        found = view.group_signals.get(group)
        if found is None:
            raise HTTPException(404, f"group {group!r} has no state here")
        return GroupSignalsAnswer.model_validate(found)

    return routes
