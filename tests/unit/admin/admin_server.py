"""Run the admin application and a runtime with a memory log, in process or behind a socket."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlencode

import httpx
from fastapi import FastAPI

from coordinator.cluster.topics import EveryTopicExists
from coordinator.config import Config, HostPort
from coordinator.errors import LogError, LogUnavailable
from coordinator.log.memory import MemoryLog
from coordinator.log.other_process import locate_log
from coordinator.metrics import Metrics
from coordinator.observe.signals import SignalMonitor
from coordinator.operate.admin import (
    ClusterInfoCache,
    CoordinatorView,
    HttpServer,
    OwnerDirectory,
    create_app,
)
from coordinator.operate.admin.access_control import AccessControl
from coordinator.operate.expiry import Expiry
from coordinator.operate.history import HistoryProcess
from coordinator.process.clock import SystemClock
from coordinator.security.tls import ServerTls
from coordinator.serve.runtime import Runtime, RuntimeLimits
from coordinator.shard import SnapshotPolicy
from protocol.routing import state_partition
from protocol.state_records import StateRecord, encode_record
from tests.unit.log.kafka_logs import run_in_real_time

MakeExpiry = Callable[[Runtime], Expiry | None]

NOW_MS = 1_700_000_000_123
SHARDS = 4


class TopicsInMemory:
    """Topic metadata in memory. A request waits until `may_answer` is set, and fails if `is_down` is true."""

    def __init__(
        self, names: Mapping[bytes, str] | None = None, ends: Mapping[tuple[bytes, int], int] | None = None
    ) -> None:
        self.known_names = dict(names or {})
        self.known_ends = dict(ends or {})
        self.is_down = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

        self.requests: list[Collection[object]] = []
        self.closed = False

    async def topic_names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        await self._answer_request(topic_ids)
        return {key: name for key, name in self.known_names.items() if key in topic_ids}

    async def topic_id(self, name: str) -> bytes | None:
        await self._answer_request([name])
        return next((key for key, known in self.known_names.items() if known == name), None)

    async def end_offsets(self, partitions: Collection[tuple[bytes, int]]) -> Mapping[tuple[bytes, int], int]:
        await self._answer_request(partitions)
        return {key: end for key, end in self.known_ends.items() if key in partitions}

    async def _answer_request(self, requested: Collection[object]) -> None:
        self.requests.append(requested)
        await self.may_answer.wait()
        if self.is_down:
            raise LogUnavailable("No broker of kafka:9092 can be reached (refused).")

    async def close(self) -> None:
        self.closed = True


class AdminTestClient:
    """The admin application, its runtime and an in-process HTTP client."""

    def __init__(
        self,
        runtime: Runtime,
        metrics: Metrics,
        config: Config,
        topics: TopicsInMemory | None,
        expiry: Expiry | None,
        signals: SignalMonitor | None,
        log: MemoryLog,
    ) -> None:
        self.log = log
        self.history = HistoryProcess(lambda state_partition: locate_log(config, log, state_partition))
        self.runtime = runtime
        self.config = config
        self.metrics = metrics
        self.owners = OwnerDirectory()
        self.access = AccessControl(config)
        self.tls = ServerTls(config.http_ssl, "http") if config.http_uses_tls else None
        # (state partition, instance id) of each requested hand-over.
        self.requested_hand_overs: list[tuple[int, str]] = []
        self.view = CoordinatorView(
            runtime,
            metrics,
            config,
            self.owners,
            ClusterInfoCache(topics),
            self._record_hand_over,
            expiry,
            signals,
            self.history,
        )
        self.app: FastAPI = create_app(self.view, self.access)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1:9096"
        )

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return await self._client.get(path, headers=headers)

    async def post(
        self, path: str, order: object, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await self._client.post(path, json=order, headers=headers)

    async def post_bytes(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        return await self._client.post(path, content=body, headers=headers)

    def _record_hand_over(self, state_partition: int, instance: str) -> None:
        self.requested_hand_overs.append((state_partition, instance))


def enable_group_ownership(coordinator: AdminTestClient) -> None:
    """Set ownership=group after the validation, because Config refuses it with log=memory."""
    object.__setattr__(coordinator.config, "ownership", "group")


async def make_memory_log(records: Iterable[StateRecord]) -> MemoryLog:
    """Return a memory log with one append for each record, all with the timestamp NOW_MS."""
    log = MemoryLog(SHARDS)
    await log.open()
    for record in records:
        done = asyncio.get_running_loop().create_future()

        def on_appended(base_offset: int, error: LogError | None, done: "asyncio.Future[int]" = done) -> None:
            done.set_result(base_offset)

        log.append(state_partition(record.key, SHARDS), [encode_record(record)], NOW_MS, on_appended)
        await done
    await log.close()
    return log


@asynccontextmanager
async def run_admin(
    records: Iterable[StateRecord] = (),
    topics: TopicsInMemory | None = None,
    make_expiry: MakeExpiry = lambda _: None,
    signals: SignalMonitor | None = None,
    **settings: object,
) -> AsyncIterator[AdminTestClient]:
    """Start a runtime with the given records and wait until all shards are loaded."""
    config = Config(log="memory", state_partitions=SHARDS, **settings)  # type: ignore[arg-type]
    metrics = Metrics()
    log = await make_memory_log(records)
    runtime = Runtime(
        log=log,
        clock=SystemClock(),
        topics=EveryTopicExists(),
        metrics=metrics,
        policy=SnapshotPolicy(),
        limits=RuntimeLimits(),
        state_partitions=SHARDS,
        cold_interval_ms=config.cold_snapshot_interval_ms,
        prune_interval_ms=config.prune_interval_ms,
    )
    metrics.attach_runtime(runtime)
    await runtime.start()
    while runtime.health():  # noqa: ASYNC110 (loading from memory needs event-loop steps, not time)
        await asyncio.sleep(0)
    admin = AdminTestClient(runtime, metrics, config, topics, make_expiry(runtime), signals, log)
    try:
        yield admin
    finally:
        admin.history.close()
        await runtime.stop()


async def get_json(
    path: str,
    records: Iterable[StateRecord] = (),
    topics: TopicsInMemory | None = None,
    *,
    status: int = 200,
    **settings: object,
) -> Any:
    """Return the JSON response to one GET request of a coordinator with these records."""
    async with run_admin(records, topics, **settings) as coordinator:  # type: ignore[arg-type]
        answer = await coordinator.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


class AdminServer:
    """An admin application that another thread serves at `url`."""

    def __init__(self, url: str, coordinator: AdminTestClient, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.coordinator = coordinator
        self._loop = loop

    def page_url(self, **view: object) -> str:
        """Return the URL of the page with the parameters of a view."""
        return f"{self.url}/" + (f"?{urlencode(view)}" if view else "")

    def run_in_loop(self, action: Callable[[], object]) -> None:
        """Run the action on the server's event loop and wait until it ends."""

        async def call_in_loop() -> None:
            action()

        asyncio.run_coroutine_threadsafe(call_in_loop(), self._loop).result(30)


@contextmanager
def serve_admin(
    records: Iterable[StateRecord] = (),
    make_topics: Callable[[], TopicsInMemory | None] = lambda: None,
    make_expiry: MakeExpiry = lambda _: None,
    signals: SignalMonitor | None = None,
    **settings: object,
) -> Iterator[AdminServer]:
    """Serve a runtime with the given records from another thread until the block ends."""
    ready = threading.Event()
    stopped = asyncio.Event()
    made: list[AdminServer] = []

    async def run_server() -> None:
        try:
            async with run_admin(records, make_topics(), make_expiry, signals, **settings) as coordinator:
                tls = coordinator.tls
                server = HttpServer(
                    coordinator.app,
                    HostPort("127.0.0.1", 0),
                    tls=tls,
                    refused=coordinator.metrics.count_http_refusal,
                )
                await server.start()
                url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.port}"
                made.append(AdminServer(url, coordinator, asyncio.get_running_loop()))
                ready.set()
                await stopped.wait()
                await server.stop()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: run_in_real_time(run_server()))
    thread.start()
    try:
        assert ready.wait(60)
        yield made[0]
    finally:
        if made:
            made[0].run_in_loop(stopped.set)
        thread.join()
