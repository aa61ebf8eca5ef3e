"""Removal of the credentials of HTTP clients while their connections are open."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.config import HostPort
from coordinator.operate.admin import http_server
from coordinator.operate.admin.http_server import HttpService
from tests.unit.admin.admin_server import run_admin
from tests.unit.admin.test_http_security import BOB, CertificateFiles
from tests.unit.admin.test_tokens import READING, WRITING, write_token_file
from tests.unit.security.handshakes import client_context
from tests.unit.security.test_tls import replace_file

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def certificate_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CertificateFiles:
    monkeypatch.setattr(http_server, "_FILE_CHECK_INTERVAL_S", 0.02)
    return CertificateFiles(tmp_path)


@asynccontextmanager
async def run_http_service(**settings: str) -> AsyncIterator[HttpService]:
    async with run_admin(http=HostPort("127.0.0.1", 0), **settings) as admin:
        service = HttpService(admin.view)
        await service.start()
        try:
            yield service
        finally:
            await service.stop()


async def request_shards(client: Client, token: str = "") -> bytes:
    """Send GET /api/v1/shards, read the whole response, and return its head."""
    reader, writer = client
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"GET /api/v1/shards HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"content-length: (\d+)", head)
        await reader.readexactly(int(length))
    except BaseException:
        writer.transport.abort()
        raise
    return head


async def connect(service: HttpService, context: ssl.SSLContext | None) -> Client:
    return await asyncio.open_connection(
        "127.0.0.1", service.port, ssl=context, server_hostname="localhost" if context else None
    )


async def wait_closed(client: Client) -> None:
    reader, writer = client
    try:
        async with asyncio.timeout(30):
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        pass
    writer.transport.abort()


@pytest.mark.parametrize("trusted", ["authority", "certificates"])
async def test_removed_certificate_or_authority_closes_open_connections(
    certificate_files: CertificateFiles, tmp_path: Path, trusted: str
) -> None:
    """The CA file may contain client certificates instead of an authority, as a Java truststore may."""
    anchors, left = tmp_path / "anchors.pem", tmp_path / "left.pem"
    alice, bob = (
        certificate_files.alice.certificate.read_bytes(),
        certificate_files.bob.certificate.read_bytes(),
    )
    before = certificate_files.authority.certificate.read_bytes() if trusted == "authority" else alice + bob
    anchors.write_bytes(before)
    left.write_bytes(alice)
    settings = certificate_files.settings(
        http_ssl_client_auth="required", http_allowed_principals=BOB, http_ssl_ca_location=str(anchors)
    )
    context = client_context(
        str(certificate_files.authority.certificate), str(certificate_files.bob.combined_file)
    )
    async with run_http_service(**settings) as service:
        idle = await connect(service, context)
        assert (await request_shards(idle)).startswith(b"HTTP/1.1 200")
        replace_file(anchors, left)
        await wait_closed(idle)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await request_shards(await connect(service, context))


async def test_removed_token_is_refused_on_an_open_connection(certificate_files: CertificateFiles) -> None:
    async with run_http_service(http_token_file=str(certificate_files.tokens)) as service:
        client = await connect(service, None)
        assert (await request_shards(client, READING)).startswith(b"HTTP/1.1 200")
        write_token_file(certificate_files.tokens.parent, f"operator write {WRITING}\n")
        async with asyncio.timeout(30):
            while not (await request_shards(client, READING)).startswith(b"HTTP/1.1 401"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        client[1].close()
