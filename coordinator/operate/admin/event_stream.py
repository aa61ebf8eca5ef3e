"""Stream changes as server-sent events: the summary of the coordinator, and the shards that changed.

All subscribers share one refresh per second. Its cost is independent of the size of the state. Without
subscribers there is no refresh. When the log of a shard has grown, the page requests its data again.

::

    event: overview     data: the response of /healthz
    event: shards       data: a list of shards as in /api/v1/shards; the first event has all of them
"""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse

from coordinator.operate.admin.api_models import ErrorResponse
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.health_routes import make_summary
from coordinator.process.open_files import http_connection_limit

# A subscriber keeps a connection; at least half of the HTTP connections are left for other requests.
SUBSCRIBERS_MAX = 200
_REFRESH_INTERVAL_S = 1.0

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def subscriber_limit() -> int:
    """Return the maximum number of subscribers."""
    return min(SUBSCRIBERS_MAX, http_connection_limit() // 2)


class EventStream:
    """The streams of all subscribers. Used on one event loop; call `end` once."""

    def __init__(self, view: CoordinatorView) -> None:
        self._view = view
        self._overview = ""
        # Each shard as JSON, with the number of the refresh in which it changed.
        self._shards: dict[int, tuple[int, str]] = {}
        self._refreshes = 0
        self._refreshed = asyncio.Event()
        self._refresh_task: asyncio.Task[None] | None = None
        self._subscribers = 0
        self._interrupted = 0
        self._ended = False

    @property
    def is_full(self) -> bool:
        """True if no further subscriber is accepted."""
        return self._ended or self._subscribers >= subscriber_limit()

    def end(self) -> None:
        """End all streams, so that the server can stop."""
        self._ended = True
        self._refreshed.set()

    def restart_streams(self) -> None:
        """End the current streams; subscribers that are still authorized reconnect."""
        self._interrupted += 1
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    async def stream(self) -> AsyncIterator[str]:
        """Yield events until the subscriber disconnects or the server stops."""
        self._subscribers += 1
        if self._refresh_task is None:
            self._refresh()
            self._refresh_task = asyncio.create_task(self._refresh_periodically(), name="live")
        seen, interrupted = 0, self._interrupted
        try:
            yield "retry: 2000\n\n"
            while not self._ended and interrupted == self._interrupted:
                yield self._format_changes(seen)
                seen = self._refreshes
                await self._refreshed.wait()
        finally:
            self._subscribers -= 1
            if not self._subscribers:
                self._refresh_task.cancel()
                self._refresh_task = None

    async def _refresh_periodically(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_INTERVAL_S)
            self._refresh()
            # Wake all streams; they then wait for the next refresh.
            self._refreshed.set()
            if not self._ended:
                self._refreshed = asyncio.Event()

    def _refresh(self) -> None:
        self._refreshes += 1
        self._overview = make_summary(self._view).model_dump_json()
        for shard in self._view.shards():
            shown = shard.model_dump_json()
            if self._shards.get(shard.state_partition, (0, ""))[1] != shown:
                self._shards[shard.state_partition] = (self._refreshes, shown)

    def _format_changes(self, seen: int) -> str:
        shards = [shown for since, shown in self._shards.values() if since > seen]
        news = f"event: overview\ndata: {self._overview}\n\n"
        if shards:
            news += f"event: shards\ndata: [{','.join(shards)}]\n\n"
        return news


def event_routes(event_stream: EventStream) -> APIRouter:
    """Create the route of the event stream."""
    routes = APIRouter(tags=["state"])

    @routes.get(
        "/api/v1/live",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}},
            503: {"model": ErrorResponse, "description": "Too many subscribers."},
        },
    )
    async def stream_events(request: Request) -> StreamingResponse:
        """Send changes as server-sent events until the connection is closed."""
        if event_stream.is_full:
            raise HTTPException(
                503, f"{subscriber_limit()} clients are subscribed already, which is the limit"
            )
        # A HEAD request must not wait for a stream without an end.
        events = iter(()) if request.state.head_only else event_stream.stream()
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    return routes
