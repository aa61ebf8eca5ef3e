"""Kafka asked on an event loop of its own, in a thread of its own.

To take apart what is said of ten thousand groups takes a second of Python; brokers that wait for an answer of
ours must not notice.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from coordinator.expiry.observer import Groups, Topics
from coordinator.kafka.group_facts import GroupDescription, Outcome, Presence, ShownOffset

Answer = TypeVar("Answer")


class ClusterApart:
    """A `Groups` and a `Topics`. Its methods are called on any event loop, and raise what those raise."""

    def __init__(self, make: Callable[[], tuple[Groups, Topics]]) -> None:
        """Prepare; `make` is called in the thread, which begins with the first question."""
        self._make = make
        self._made: tuple[Groups, Topics] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def names(self) -> set[str]:
        return await self._groups(lambda groups: groups.names())

    async def offsets(self, groups: Collection[str]) -> list[ShownOffset]:
        return await self._groups(lambda asked: asked.offsets(groups))

    async def bare_groups(self, groups: Collection[str]) -> set[str]:
        return await self._groups(lambda asked: asked.bare_groups(groups))

    async def describe_groups(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        return await self._groups(lambda asked: asked.describe_groups(groups))

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, Outcome]:
        return await self._groups(lambda asked: asked.delete_offsets(group, topics))

    async def delete_groups(self, groups: Collection[str]) -> dict[str, Outcome]:
        return await self._groups(lambda asked: asked.delete_groups(groups))

    async def look(self, topic_ids: Sequence[bytes]) -> Presence:
        return await self._apart(lambda made: made[1].look(topic_ids))

    async def close(self) -> None:
        """Close the connections and end the thread; harmless if it was never begun, or has ended."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if self._made is not None:
            await self._apart(self._close)
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()

    @staticmethod
    async def _close(made: tuple[Groups, Topics]) -> None:
        for each in made:
            await each.close()

    async def _groups(self, ask: Callable[[Groups], Coroutine[Any, Any, Answer]]) -> Answer:
        return await self._apart(lambda made: ask(made[0]))

    async def _apart(self, ask: Callable[[tuple[Groups, Topics]], Coroutine[Any, Any, Answer]]) -> Answer:
        async def run() -> Answer:
            if self._made is None:
                self._made = self._make()
            return await ask(self._made)

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="expiry", daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))
