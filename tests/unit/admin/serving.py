"""A real runtime over a log in memory, and a client that asks its admin application without a socket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import ParamSpec

import httpx
from fastapi import FastAPI

from coordinator.admin import create_app
from coordinator.clock import SystemClock
from coordinator.config import Config
from coordinator.errors import LogError
from coordinator.log.memory import MemoryLog
from coordinator.metrics import Metrics
from coordinator.runtime import Runtime, RuntimeLimits
from coordinator.shard import SnapshotPolicy
from coordinator.topics import EveryTopic
from protocol.routing import state_partition
from protocol.state_records import StateRecord, encode_record

Given = ParamSpec("Given")

NOW_MS = 1_700_000_000_123
SHARDS = 4


class Admin:
    """The application and what stands behind it; `get` asks it."""

    def __init__(self, runtime: Runtime, metrics: Metrics, config: Config) -> None:
        self.runtime = runtime
        self.app: FastAPI = create_app(runtime, metrics, config)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://coordinator"
        )

    async def get(self, path: str) -> httpx.Response:
        return await self._client.get(path)


async def logged(records: Iterable[StateRecord]) -> MemoryLog:
    """Return a log that holds the records, all of the same time."""
    log = MemoryLog(SHARDS)
    await log.open()
    for record in records:
        done = asyncio.get_running_loop().create_future()

        def appended(base_offset: int, error: LogError | None, done: "asyncio.Future[int]" = done) -> None:
            done.set_result(base_offset)

        log.append(state_partition(record.key, SHARDS), [encode_record(record)], NOW_MS, appended)
        await done
    await log.close()
    return log


@asynccontextmanager
async def admin(records: Iterable[StateRecord] = (), **settings: object) -> AsyncIterator[Admin]:
    """Start a runtime that has loaded the records."""
    config = Config(log="memory", state_partitions=SHARDS, **settings)  # type: ignore[arg-type]
    metrics = Metrics()
    runtime = Runtime(
        log=await logged(records),
        clock=SystemClock(),
        topics=EveryTopic(),
        metrics=metrics,
        policy=SnapshotPolicy(),
        limits=RuntimeLimits(),
        state_partitions=SHARDS,
        cold_interval_ms=config.cold_snapshot_interval_ms,
        prune_interval_ms=config.prune_interval_ms,
    )
    metrics.attach(runtime)
    await runtime.start()
    while runtime.health():  # noqa: ASYNC110 (loading from memory is a matter of turns, not of time)
        await asyncio.sleep(0)
    try:
        yield Admin(runtime, metrics, config)
    finally:
        await runtime.stop()


def looped(test: Callable[Given, Coroutine[None, None, None]]) -> Callable[Given, None]:
    """Make a test of a coroutine function: it runs on an event loop of its own."""

    @wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
