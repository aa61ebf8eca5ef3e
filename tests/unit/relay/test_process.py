"""The relay process: imports, health and metrics over HTTP, inherited sockets and settings."""

import asyncio
import socket
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from coordinator.config import HostPort, load_config
from coordinator.errors import ConfigError, ListenError
from coordinator.serve.relay.health_server import CONNECTIONS_MAX, HealthServer
from coordinator.serve.relay.listener import Listener
from coordinator.serve.relay.metrics import RelayMetrics
from coordinator.serve.relay.process import inherited_socket, make_route
from tests.certificates import CertificateAuthority
from tests.unit.relay.fake_peers import HERE, connect_persister, run_relay

pytestmark = pytest.mark.run_with(function=uvloop.run)

# Modules of the coordinator whose import takes longer than that of the relay.
HEAVY = (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "aiokafka",
    "starlette",
    "rich",
    "coordinator.serve.runtime",
)


def test_relay_imports_no_heavy_modules() -> None:
    script = "import sys, coordinator.serve.relay; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(HEAVY) & set(done.stdout.split()) == set()


async def exchange_bytes(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(sent)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def test_health_server_answers_get_and_head() -> None:
    server = HealthServer({"/livez": lambda: (HTTPStatus.OK, "ok\n")})
    await server.start(HostPort(HERE, 0))
    try:
        ok = await exchange_bytes(server.port, b"GET /livez?verbose HTTP/1.1\r\nHost: here\r\n\r\n")
        assert ok.startswith(b"HTTP/1.1 200 OK\r\n")
        assert ok.endswith(b"\r\n\r\nok\n")
        assert (await exchange_bytes(server.port, b"HEAD /livez HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert b" 404 " in await exchange_bytes(server.port, b"GET / HTTP/1.1\r\n\r\n")
        assert b" 405 " in await exchange_bytes(server.port, b"POST /livez HTTP/1.1\r\n\r\n")
        assert await exchange_bytes(server.port, b"\xff" * 10_000 + b"\r\n\r\n") == b""
        with pytest.raises(ListenError, match=r"relay\.http"):
            await HealthServer({}).start(HostPort(HERE, server.port))
    finally:
        await server.stop()


async def test_probe_is_answered_when_silent_clients_hold_all_connections() -> None:
    server = HealthServer({"/livez": lambda: (HTTPStatus.OK, "ok\n")})
    await server.start(HostPort(HERE, 0))
    silent = [await asyncio.open_connection(HERE, server.port) for _ in range(2 * CONNECTIONS_MAX)]
    try:
        answer = await exchange_bytes(server.port, b"GET /livez HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        # The oldest connections were closed, and the newest are still open.
        async with asyncio.timeout(60):
            for reader, _ in silent[:CONNECTIONS_MAX]:
                assert await reader.read() == b""
        assert not silent[-1][0].at_eof()
    finally:
        for _, writer in silent:
            writer.close()
        await server.stop()


async def test_metrics_are_valid_openmetrics() -> None:
    async with run_relay() as here:
        await connect_persister(here)
        here.figures.refused["principal"] += 1
        families = {
            family.name: family for family in text_string_to_metric_families(here.figures.exposition())
        }
        assert all(family.documentation and family.samples for family in families.values())
        opened = {
            sample.labels["destination"]: sample.value
            for sample in families["share_coordinator_relay_connections"].samples
        }
        assert opened == {"broker": 0, "coordinator": 1}


def test_every_metric_is_documented() -> None:
    page = Path(__file__).parents[3] / "docs" / "routing.md"
    figures = RelayMetrics()
    figures.refused["principal"] += 1
    names = {line.split()[2] for line in figures.exposition().splitlines() if line.startswith("# TYPE")}
    assert [name for name in sorted(names) if f"`{name}`" not in page.read_text()] == []


async def test_address_in_use_raises_listen_error() -> None:
    async with run_relay() as here:
        with pytest.raises(ListenError, match=r"^relay\.listen="):
            await here.listener.start(HostPort(HERE, here.listener.port))


async def test_socket_inherited_from_systemd_is_used() -> None:
    async with run_relay() as here:
        held = socket.create_server((HERE, 0))
        port = held.getsockname()[1]
        listener = Listener(here.listener.route, here.listener.limits, here.figures)
        await listener.start(HostPort(HERE, 1), held)
        assert listener.port == port
        await listener.stop()


@pytest.mark.parametrize(
    "environ",
    [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "7"}, {"LISTEN_PID": "7", "LISTEN_FDS": "2"}],
)
def test_socket_of_another_process_is_not_inherited(environ: dict[str, str]) -> None:
    assert inherited_socket(environ, 7) is None


def relay_settings(tmp_path: Path, **more: str) -> dict[str, str]:
    relay = CertificateAuthority(tmp_path).issue_certificate("relay")
    return {
        "relay.security.protocol": "SSL",
        "relay.allowed.principals": "User:CN=kafka",
        "relay.ssl.certificate.location": str(relay.combined_file),
        "relay.ssl.ca.location": str(tmp_path / "authority.pem"),
        "relay.ssl.client.auth": "required",
        "ssl.ca.location": str(tmp_path / "authority.pem"),
        **{f"relay.{name.replace('_', '.')}": value for name, value in more.items()},
    }


def test_route_is_made_from_settings(tmp_path: Path) -> None:
    route = make_route(
        load_config(relay_settings(tmp_path, broker="kafka-1:19094", coordinator="[::1]:9095")).config
    )
    assert (route.check, route.broker.address) == ("certificate", HostPort("kafka-1", 19094))
    assert route.coordinator.address == HostPort("::1", 9095)
    assert route.tls is not None
    assert route.broker.tls is not None
    assert route.coordinator.tls is None


@pytest.mark.parametrize(
    ("more", "setting"),
    [
        ({"allowed_principals": ""}, "relay.allowed.principals"),
        ({"allowed_principals": "kafka"}, "relay.allowed.principals"),
        ({"ssl_client_auth": "requested"}, "relay.ssl.client.auth"),
        ({"ssl_certificate_location": ""}, "relay.ssl.certificate.location"),
        ({"ssl_certificate_location": "/does/not/exist"}, "relay.ssl.certificate.location"),
        ({"ssl_principal_mapping_rules": "RULE:x"}, "relay.ssl.principal.mapping.rules"),
    ],
)
def test_unusable_setting_is_named(tmp_path: Path, more: dict[str, str], setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_route(load_config(relay_settings(tmp_path, **more)).config)
    assert refused.value.setting == setting


def test_only_allowed_principals_is_a_required_setting() -> None:
    with pytest.raises(ConfigError, match=r"relay\.allowed\.principals"):
        make_route(load_config().config)
    assert make_route(load_config({"relay.allowed.principals": "User:kafka"}).config).check == "sasl"


def test_plaintext_connection_to_a_remote_coordinator_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def logs_warning(coordinator: str) -> bool:
        caplog.clear()
        given = {"relay.allowed.principals": "User:kafka", "relay.coordinator": coordinator}
        make_route(load_config(given).config)
        return f"The connection to the coordinator at {coordinator} is not encrypted" in caplog.text

    assert logs_warning("coordinator.internal:9095")
    assert not logs_warning("127.0.0.1:9095")
