"""Send Kafka requests on a separate thread with its own event loop.

Decoding the descriptions of ten thousand groups takes a second of Python time. On the main event loop,
decoding would delay the responses to brokers.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from coordinator.errors import LogUnavailable
from coordinator.operate.expiry.observer import GroupAdmin

_METHODS = frozenset(name for name in vars(GroupAdmin) if not name.startswith("_"))
_CLOSED = "The coordinator is stopping and sends no more requests to Kafka."


class ClusterThread:
    """A `GroupAdmin` whose methods may be called on any event loop.

    Exceptions of the underlying methods are passed on. After `close`, pending and new calls raise
    LogUnavailable.
    """

    def __init__(self, make: Callable[[], GroupAdmin]) -> None:
        """Create the object without a thread; the first request starts the thread, which calls `make`."""
        self._make = make
        self._admin: GroupAdmin | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return the method of `GroupAdmin` with this name; a call runs on the thread."""
        if name not in _METHODS:
            raise AttributeError(name)
        return partial(self._call_on_thread, name)

    async def close(self) -> None:
        """Cancel pending calls, close the connections, and end the thread. May be called twice."""
        self._closed = True
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close_connections(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()

    async def _close_connections(self) -> None:
        asked = asyncio.all_tasks() - {asyncio.current_task()}
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        if self._admin is not None:
            await self._admin.close()

    async def _call_on_thread(self, name: str, *args: Any) -> Any:
        async def call_method() -> Any:
            if self._admin is None:
                self._admin = self._make()
            return await getattr(self._admin, name)(*args)

        if self._closed:
            raise LogUnavailable(_CLOSED)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="expiry", daemon=True)
            self._thread.start()
        asked = asyncio.run_coroutine_threadsafe(call_method(), self._loop)
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            assert asking is not None
            if not asking.cancelling():
                raise LogUnavailable(_CLOSED) from None
            raise
