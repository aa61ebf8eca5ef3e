"""Start and stop of the process: the claims at start, and the effect of a first and a second signal."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator import app
from coordinator.config import Config, HostPort
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.log.memory import MemoryLog
from coordinator.process.clock import SystemClock
from coordinator.serve.runtime import Runtime
from coordinator.serve.server import Listener
from protocol.messages import write_share_group_state as write_api
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.unit.log.kafka_logs import run_in_real_time
from tests.unit.runtime.blocking_log import BlockingLog
from tests.unit.server.test_server import INITIALIZE_FRAME_BODY, write_state_body
from tests.unit.server.wire import WireClient, request_frame

# Longer than a test takes, so that only a second signal can end the wait for responses.
STOP_TIMEOUT_MS = 60_000


class RunningCoordinator:
    """A coordinator in this process with a BlockingLog, and a connected client."""

    def __init__(self, log: BlockingLog, client: WireClient, ended: "asyncio.Task[int]") -> None:
        self.log = log
        self.client = client
        self.ended = ended

    async def wait_until_append_held(self) -> None:
        async with asyncio.timeout(60):
            while not self.log.held:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@asynccontextmanager
async def run_coordinator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[RunningCoordinator]:
    """Run a coordinator with a client that has initialized two share-partitions."""
    config = Config(
        listen=HostPort("127.0.0.1", 0),
        http=HostPort("127.0.0.1", 0),
        data_dir=tmp_path,
        state_partitions=4,
        stop_timeout_ms=STOP_TIMEOUT_MS,
    )
    log = BlockingLog(config.state_partitions)
    log.blocking = False

    monkeypatch.setattr(app, "make_log", lambda *_: log)
    ready_message: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    ended = asyncio.create_task(app._Coordinator(config).run(ready_message.set_result))
    async with asyncio.timeout(60):
        port = int((await ready_message).split()[3].rstrip(",").rsplit(":", 1)[1])
    client = WireClient(*await asyncio.open_connection("127.0.0.1", port))
    client.send(request_frame(83, 0, 1, INITIALIZE_FRAME_BODY))
    await client.read_frame()
    try:
        yield RunningCoordinator(log, client, ended)
    finally:
        log.blocking = False
        log.release_appends()
        client.writer.close()
        signal.raise_signal(signal.SIGTERM)
        await ended


async def test_first_signal_waits_for_accepted_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with run_coordinator(monkeypatch, tmp_path) as coordinator:
        coordinator.log.blocking = True
        coordinator.client.send(request_frame(85, 1, 2, write_state_body()))
        await coordinator.wait_until_append_held()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert not coordinator.ended.done()
        coordinator.log.blocking = False
        coordinator.log.release_appends()
        correlation_id, rest = await coordinator.client.read_frame()
        response = write_api.decode_response(rest, 1, 1)
        assert (correlation_id, response.results[0].partitions[0].error_code) == (2, 0)
        async with asyncio.timeout(60):
            assert await coordinator.ended == 0


async def test_second_signal_does_not_wait_for_accepted_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with run_coordinator(monkeypatch, tmp_path) as coordinator:
        coordinator.log.blocking = True
        coordinator.client.send(request_frame(85, 1, 2, write_state_body()))
        await coordinator.wait_until_append_held()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await coordinator.ended == 0


async def test_signal_ends_the_recovery_of_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opening = asyncio.Event()

    class RecoveringLog(MemoryLog):
        async def open(self) -> None:
            opening.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(app, "make_log", lambda *_: RecoveringLog(4))
    config = Config(
        listen=HostPort("127.0.0.1", 0), http=HostPort("127.0.0.1", 0), data_dir=tmp_path, state_partitions=4
    )
    ended = asyncio.create_task(app._Coordinator(config).run(lambda text: None))
    async with asyncio.timeout(60):
        await opening.wait()
        signal.raise_signal(signal.SIGTERM)
        assert await ended == 0


def test_static_owner_claims_all_shards_before_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(
        listen=HostPort("127.0.0.1", 0),
        http=HostPort("127.0.0.1", 0),
        state_partitions=4,
        log="kafka",
        bootstrap_servers="127.0.0.1:1",
    )
    listen, make_runtime = Listener.start, app.make_runtime
    made: list[Runtime] = []

    def record_runtime(*arguments: Any, **more: Any) -> Runtime:
        made.append(make_runtime(*arguments, **more))
        return made[0]

    async def listen_when_loaded(listener: Listener, address: HostPort) -> None:
        async with asyncio.timeout(60):
            while not made[0].initial_load_done:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.001)
        await listen(listener, address)

    def make_log(*_: Any) -> KafkaLog:
        return KafkaLog(
            KafkaInMemory().new_client(config.state_topic),
            TopicConfig(config.state_topic, config.state_partitions),
            owner="test",
            clock=SystemClock(),
        )

    monkeypatch.setattr(app, "make_log", make_log)
    monkeypatch.setattr(app, "make_runtime", record_runtime)
    monkeypatch.setattr(Listener, "start", listen_when_loaded)

    async def run_test() -> None:
        ready_message: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ended = asyncio.create_task(app._Coordinator(config).run(ready_message.set_result))
        await asyncio.wait({ready_message, ended}, return_when=asyncio.FIRST_COMPLETED)
        assert not ended.done(), ended
        assert made[0].health() == []
        signal.raise_signal(signal.SIGTERM)
        await ended

    run_in_real_time(run_test())
