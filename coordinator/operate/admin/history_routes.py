"""API route of the delivery history of a share-partition or of one record."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query

from coordinator.errors import CoordinatorError
from coordinator.operate.admin.api_models import DeliveryEvent, DeliveryHistory
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.listing import ListingLimiter
from coordinator.operate.admin.paths import PartitionQuery, ShortLimit, Topic, resolve_topic
from coordinator.operate.admin.state_routes import require_loaded
from coordinator.operate.admin.views import iso_time
from protocol.state_records import SharePartitionKey, topic_id_text

# Maximum number of requests that wait, because one process reads the logs one after another.
_WAITING_MAX = 4


def history_routes(view: CoordinatorView) -> APIRouter:
    """Create the route."""
    routes = APIRouter(tags=["state"])
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
                found = await view.history.read(number, key, record_offset, before, limit)
            except CoordinatorError as error:
                raise HTTPException(503, f"the delivery history of {key} cannot be read: {error}") from None
        if not found["records"]:
            raise HTTPException(404, f"the log has no records of share-partition {key}")
        names = await view.cluster.lookup([(key.topic_id, key.partition)])
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
