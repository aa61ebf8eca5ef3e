"""What changes, as server-sent events: the coordinator at a glance, and the shards that are not as they were.

All who watch share one look a second at the shards, which is cheap at any size of state; while nobody watches
there is none. That the log of a shard has grown tells a page when to ask again for what it shows.

::

    event: overview     data: what /healthz answers
    event: shards       data: a list of shards as /api/v1/shards shows them, all of them at first
"""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse

from coordinator.admin.api_models import ErrorResponse
from coordinator.admin.coordinator_view import CoordinatorView
from coordinator.admin.health_routes import make_summary
from coordinator.open_files import http_connections_to_accept

# Who watches keeps a connection; at least half of those over HTTP are left for probes and answers.
SUBSCRIBERS_MAX = 200
_REFRESH_INTERVAL_S = 1.0

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def subscribers_to_accept() -> int:
    """Return how many may watch at a time."""
    return min(SUBSCRIBERS_MAX, http_connections_to_accept() // 2)


class EventStream:
    """The streams of all who watch. Used on one event loop; `end` once."""

    def __init__(self, view: CoordinatorView) -> None:
        self._view = view
        self._overview = ""
        # Each shard as JSON, and at which look it came to be so.
        self._shards: dict[int, tuple[int, str]] = {}
        self._refreshes = 0
        self._refreshed = asyncio.Event()
        self._refresh_task: asyncio.Task[None] | None = None
        self._subscribers = 0
        self._interrupted = 0
        self._ended = False

    @property
    def is_full(self) -> bool:
        """True if nobody more may watch."""
        return self._ended or self._subscribers >= subscribers_to_accept()

    def end(self) -> None:
        """End all streams: the server is about to stop, and waits for open answers."""
        self._ended = True
        self._refreshed.set()

    def interrupt(self) -> None:
        """End the streams there are now; whoever may, opens another."""
        self._interrupted += 1
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    async def stream(self) -> AsyncIterator[str]:
        """Yield events until the viewer leaves or all is over."""
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
            # Whoever waits is woken; whoever comes later waits for the next look.
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
    """Make the route of the events."""
    routes = APIRouter(tags=["state"])

    @routes.get(
        "/api/v1/live",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}},
            503: {"model": ErrorResponse, "description": "Too many watch already."},
        },
    )
    async def watch(request: Request) -> StreamingResponse:
        """Tell what changes, as server-sent events, until the connection is closed."""
        if event_stream.is_full:
            raise HTTPException(503, f"{subscribers_to_accept()} viewers watch already")
        # Who wants the head only watches nothing, and would wait for an end that does not come.
        events = iter(()) if request.state.head_only else event_stream.stream()
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    return routes
