"""Connections to brokers: errors, concurrent attempts to connect, certificates, and closing."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka import connections
from coordinator.cluster.kafka.broker_results import NoResponse
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogUnavailable
from protocol.messages import produce
from tests.certificates import CertificateAuthority
from tests.kafka_in_memory.broker import Broker, RequestSender
from tests.kafka_in_memory.frames import api_key
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.loop import run

TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0


@asynccontextmanager
async def serve_broker(tls: ssl.SSLContext | None, reads_produce: asyncio.Event) -> AsyncIterator[int]:
    """Serve a broker at a port, which is yielded. It reads no Produce request before the event is set."""
    cluster = KafkaInMemory(nodes=1).brokers("state")
    cluster.create_topic(1, {})
    broker = Broker(1, cluster)
    serving: list[asyncio.Task[None]] = []

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            while True:
                head = await reader.readexactly(6)
                if api_key(head) == produce.API_KEY:
                    await reads_produce.wait()
                frame = head + await reader.readexactly(int.from_bytes(head[:4]) - 2)
                broker.serve(RequestSender("one"), frame, writer.write)
        except (OSError, EOFError):
            writer.transport.abort()

    server = await asyncio.start_server(serve_client, "localhost", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    cluster.addresses = {1: ("localhost", port)}
    yield port
    server.close()
    await asyncio.wait(serving)


class TlsFiles:
    """The files of a broker and of a client that must present a certificate."""

    def __init__(self, folder: Path) -> None:
        self._authority = CertificateAuthority(folder)
        own = self._authority.issue_certificate("broker")
        self.broker = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.broker.load_cert_chain(own.combined_file)
        self.broker.load_verify_locations(self._authority.certificate)
        self.broker.verify_mode = ssl.CERT_REQUIRED
        self.client = ClientSecurity(
            "SSL", ca_file=str(self._authority.certificate), certificate_file=str(folder / "client.pem")
        )

    def issue_client_certificate(self, *, ended: bool = False) -> None:
        self._authority.issue_certificate("client", ended=ended)


def test_renewed_client_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    async def run_test() -> None:
        files = TlsFiles(tmp_path)
        files.issue_client_certificate(ended=True)
        async with serve_broker(files.broker, asyncio.Event()) as port:
            brokers = Brokers(f"localhost:{port}", "state", security=files.client)
            with pytest.raises(LogUnavailable):
                await brokers.connect()
            files.issue_client_certificate()
            await brokers.connect()
            await brokers.close()

    asyncio.run(run_test())


@pytest.mark.parametrize("uses_tls", [False, True])
def test_close_does_not_wait_for_a_broker_that_does_not_read(tmp_path: Path, uses_tls: bool) -> None:
    async def run_test() -> None:
        files = TlsFiles(tmp_path)
        files.issue_client_certificate()
        async with serve_broker(files.broker if uses_tls else None, reads_produce := asyncio.Event()) as port:
            security = files.client if uses_tls else None
            brokers = Brokers(f"localhost:{port}", "state", security=security, request_timeout_s=TIMEOUT_S)
            await brokers.connect()
            # The request is much larger than the socket buffers of the client and the broker.
            producing = asyncio.ensure_future(brokers.produce(1, "append", [(0, bytes(20_000_000))], 1_000))
            while brokers._connections.find_open_connection(1, "append") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await brokers.close()
            with pytest.raises(NoResponse):
                await producing
            reads_produce.set()

    asyncio.run(run_test())


def test_concurrent_requests_share_the_attempt_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []

    async def connect_without_answer(host: str, port: int, **options: Any) -> None:
        attempts.append(host)
        await asyncio.sleep(TIMEOUT_S)
        raise TimeoutError

    async def run_test() -> None:
        loop, brokers = (
            asyncio.get_running_loop(),
            Brokers("broker:9092", "state", request_timeout_s=TIMEOUT_S),
        )
        brokers._connections.add_address(1, "broker", 9092)
        began_s = loop.time()
        requests = [asyncio.ensure_future(brokers.delete_records(1, {0: 5})) for _ in range(5)]
        await asyncio.sleep(0)
        for failed in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(failed, NoResponse)
            assert not failed.sent
        assert loop.time() - began_s < 2 * TIMEOUT_S
        assert attempts == ["broker"]
        await brokers.close()

    monkeypatch.setattr(connections, "create_conn", connect_without_answer)
    run(run_test())


def test_connection_of_an_unanswered_request_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graceful close would wait for the broker, so its socket would stay open."""
    aborted: list[str] = []

    class Writer:
        @property
        def transport(self) -> "Writer":
            return self

        def abort(self) -> None:
            aborted.append("socket")

    class SilentConnection:
        host, port = "broker", 9092
        _writer: Writer | None = Writer()

        def connected(self) -> bool:
            return True

        async def send(self, request: Any) -> None:
            raise TimeoutError

        def close(self, **reason: Any) -> None:
            self._writer = None

    async def connect(host: str, port: int, **options: Any) -> SilentConnection:
        return SilentConnection()

    async def run_test() -> None:
        brokers = Brokers("broker:9092", "state", request_timeout_s=TIMEOUT_S)
        brokers._connections.add_address(1, "broker", 9092)
        with pytest.raises(NoResponse) as failed:
            await brokers.delete_records(1, {0: 5})
        assert failed.value.sent
        assert aborted == ["socket"]
        await brokers.close()

    monkeypatch.setattr(connections, "create_conn", connect)
    run(run_test())


def test_request_is_not_sent_if_the_token_file_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fetch_token(host: str, port: int, *, sasl_oauth_token_provider: Any, **options: Any) -> None:
        await sasl_oauth_token_provider.token()

    async def run_test() -> None:
        security = ClientSecurity(
            protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token_file=str(tmp_path / "token")
        )
        brokers = Brokers("broker:9092", "state", security=security)
        brokers._connections.add_address(1, "broker", 9092)
        with pytest.raises(NoResponse, match="no token in") as failed:
            await brokers.delete_records(1, {0: 5})
        assert not failed.value.sent
        with pytest.raises(LogUnavailable, match="no token in"):
            await brokers.connect()
        assert "no token in" in (brokers.unreachable_reason() or "")
        await brokers.close()

    monkeypatch.setattr(connections, "create_conn", fetch_token)
    asyncio.run(run_test())
