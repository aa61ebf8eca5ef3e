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

from coordinator.admin.answers import Problem
from coordinator.admin.health import summary_of
from coordinator.admin.watched import Watched
from coordinator.open_files import http_connections_to_accept

# Who watches keeps a connection; at least half of those over HTTP are left for probes and answers.
VIEWERS_MAX = 200
_LOOK_EVERY_S = 1.0

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def viewers_to_accept() -> int:
    """Return how many may watch at a time."""
    return min(VIEWERS_MAX, http_connections_to_accept() // 2)


class Live:
    """The streams of all who watch. Used on one event loop; `end` once."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._overview = ""
        # Each shard as JSON, and at which look it came to be so.
        self._shards: dict[int, tuple[int, str]] = {}
        self._looks = 0
        self._looked = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._viewers = 0
        self._interrupted = 0
        self._ended = False

    @property
    def is_full(self) -> bool:
        """True if nobody more may watch."""
        return self._ended or self._viewers >= viewers_to_accept()

    def end(self) -> None:
        """End all streams: the server is about to stop, and waits for open answers."""
        self._ended = True
        self._looked.set()

    def interrupt(self) -> None:
        """End the streams there are now; whoever may, opens another."""
        self._interrupted += 1
        self._looked.set()
        self._looked = asyncio.Event()

    async def stream(self) -> AsyncIterator[str]:
        """Yield events until the viewer leaves or all is over."""
        self._viewers += 1
        if self._looking is None:
            self._look()
            self._looking = asyncio.create_task(self._keep_looking(), name="live")
        seen, interrupted = 0, self._interrupted
        try:
            yield "retry: 2000\n\n"
            while not self._ended and interrupted == self._interrupted:
                yield self._news(seen)
                seen = self._looks
                await self._looked.wait()
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._looking.cancel()
                self._looking = None

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self._look()
            # Whoever waits is woken; whoever comes later waits for the next look.
            self._looked.set()
            if not self._ended:
                self._looked = asyncio.Event()

    def _look(self) -> None:
        self._looks += 1
        self._overview = summary_of(self._watched).model_dump_json()
        for shard in self._watched.shards():
            shown = shard.model_dump_json()
            if self._shards.get(shard.state_partition, (0, ""))[1] != shown:
                self._shards[shard.state_partition] = (self._looks, shown)

    def _news(self, seen: int) -> str:
        shards = [shown for since, shown in self._shards.values() if since > seen]
        news = f"event: overview\ndata: {self._overview}\n\n"
        if shards:
            news += f"event: shards\ndata: [{','.join(shards)}]\n\n"
        return news


def live_routes(live: Live) -> APIRouter:
    """Make the route of the events."""
    routes = APIRouter(tags=["state"])

    @routes.get(
        "/api/v1/live",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}},
            503: {"model": Problem, "description": "Too many watch already."},
        },
    )
    async def watch(request: Request) -> StreamingResponse:
        """Tell what changes, as server-sent events, until the connection is closed."""
        if live.is_full:
            raise HTTPException(503, f"{viewers_to_accept()} viewers watch already")
        # Who wants the head only watches nothing, and would wait for an end that does not come.
        events = iter(()) if request.state.head_only else live.stream()
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    return routes
