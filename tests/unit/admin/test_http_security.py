"""HTTP over TLS on real sockets: client certificates, tokens, renewed files and malformed requests."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.operate.admin.access_middleware import BODY_BYTES_MAX
from coordinator.operate.admin.http_protocol import HEAD_BYTES_MAX
from tests.certificates import CertificateAuthority, make_subject
from tests.unit.admin.admin_server import AdminServer, serve_admin
from tests.unit.admin.test_state_routes import make_snapshot
from tests.unit.admin.test_tokens import READING, WRITING, write_token_file
from tests.unit.security.handshakes import client_context, is_tls_session_resumed

ALICE, BOB, EVE = "User:CN=alice,O=Example", "User:CN=bob", "User:CN=eve"


class CertificateFiles:
    """Certificates and keys of the listener and of its clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder)
        self.server = self.authority.issue_certificate("coordinator")
        self.alice = self.authority.issue_certificate(
            "alice", subject=make_subject("alice", ORGANIZATION_NAME="Example"), file="alice"
        )
        self.bob = self.authority.issue_certificate("bob")
        self.eve = self.authority.issue_certificate("eve")
        self.ended = self.authority.issue_certificate("ended", ended=True)
        self.stranger = CertificateAuthority(folder / "other", "other").issue_certificate(
            "alice", file="stranger"
        )
        self.tokens = write_token_file(folder, f"prometheus read {READING}\noperator write {WRITING}\n")

    def settings(self, **settings: str) -> dict[str, Any]:
        return {
            "http_ssl_certificate_location": str(self.server.certificate),
            "http_ssl_key_location": str(self.server.key),
            "http_ssl_ca_location": str(self.authority.certificate),
            **settings,
        }


class SecuredServer:
    """A running coordinator with TLS, and its clients."""

    def __init__(self, files: CertificateFiles, running: AdminServer) -> None:
        self.files = files
        self.url = running.url
        self.coordinator = running.coordinator
        self.run_in_loop = running.run_in_loop
        host, port = running.url.removeprefix("https://").split(":")
        self.address = host, int(port)

    def new_connection(self, certificate: Path | None = None) -> http.client.HTTPSConnection:
        context = client_context(str(self.files.authority.certificate), str(certificate or ""))
        return http.client.HTTPSConnection(*self.address, context=context, timeout=60)

    def send_request(
        self, path: str, *, certificate: Path | None = None, token: str = "", order: object = None
    ) -> tuple[int, dict[str, Any]]:
        """Send a request on a new connection; return the status and the decoded JSON body."""
        connection = self.new_connection(certificate)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = None
        if order is not None:
            body, headers["Content-Type"] = json.dumps(order), "application/json"
        connection.request("GET" if order is None else "POST", path, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer


@contextmanager
def serve_with_tls(folder: Path, **settings: str) -> Iterator[SecuredServer]:
    files = CertificateFiles(folder)
    with serve_admin([make_snapshot()], **files.settings(**settings)) as running:
        yield SecuredServer(files, running)


@pytest.fixture(scope="module")
def client_auth_required(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """A coordinator that requires client certificates."""
    with serve_with_tls(
        tmp_path_factory.mktemp("required"),
        http_ssl_client_auth="required",
        http_allowed_principals=BOB,
        http_write_principals=ALICE,
        http_writes="true",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client_auth_requested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """A coordinator that accepts client certificates or tokens, and probes without either."""
    folder = tmp_path_factory.mktemp("requested")
    with serve_with_tls(
        folder,
        http_ssl_client_auth="requested",
        http_allowed_principals=BOB,
        http_token_file=str(folder / "tokens"),
        http_writes="true",
    ) as server:
        yield server


def test_certificate_principals_have_their_configured_rights(
    client_auth_required: SecuredServer,
) -> None:
    server, files = client_auth_required, client_auth_required.files
    for certificate in (files.alice.combined_file, files.bob.combined_file):
        assert server.send_request("/healthz", certificate=certificate)[0] == 200
    order = {"shard": 0, "execute": True}
    status, answer = server.send_request(
        "/api/v1/hand-overs", certificate=files.alice.combined_file, order=order
    )
    assert status == 409
    assert answer["message"].startswith("this coordinator owns all shards")
    status, answer = server.send_request(
        "/api/v1/hand-overs", certificate=files.bob.combined_file, order=order
    )
    assert status == 403
    assert answer["message"].startswith(f"{BOB} may only read")
    context = client_context(str(files.authority.certificate), str(files.bob.combined_file))
    assert not is_tls_session_resumed(server.address[1], context)


def test_unlisted_certificate_principal_gets_403_except_for_probes(
    client_auth_required: SecuredServer,
) -> None:
    eve = client_auth_required.files.eve.combined_file
    status, answer = client_auth_required.send_request("/healthz", certificate=eve)
    assert status == 403
    assert answer["message"] == f"{EVE} may not read; add it to http.allowed.principals"
    assert client_auth_required.send_request("/readyz", certificate=eve)[0] == 200


def test_probes_need_no_certificate_if_client_auth_is_requested(
    client_auth_requested: SecuredServer,
) -> None:
    server, files = client_auth_requested, client_auth_requested.files
    assert server.send_request("/readyz")[0] == 200
    status, answer = server.send_request("/healthz")
    assert status == 401
    assert "or connect with a certificate" in answer["message"]
    assert server.send_request("/healthz", token=READING)[0] == 200
    assert server.send_request("/healthz", certificate=files.bob.combined_file)[0] == 200
    # A token takes precedence over the certificate.
    assert server.send_request("/healthz", token="x", certificate=files.bob.combined_file)[0] == 401
    with pytest.raises((ssl.SSLError, ConnectionError)):
        server.send_request("/readyz", certificate=files.stranger.combined_file)


def test_request_body_over_the_limit_returns_413(
    client_auth_requested: SecuredServer,
) -> None:
    # The server does not read the rest of a refused body, so a second request may fail on the connection.
    for chunked in (False, True):
        connection = client_auth_requested.new_connection()
        connection.putrequest("POST", "/api/v1/hand-overs")
        connection.putheader("Authorization", f"Bearer {WRITING}")
        connection.putheader("Content-Type", "application/json")
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            connection.send(b"%x\r\n%b\r\n1\r\n[\r\n" % (BODY_BYTES_MAX, b"[" * BODY_BYTES_MAX))
        else:
            connection.putheader("Content-Length", str(BODY_BYTES_MAX + 1))
            connection.endheaders()
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["message"] == "the body is too large; the limit is 65536 bytes"
        connection.close()
    metrics = client_auth_requested.coordinator.metrics.registry
    assert metrics.get_sample_value("share_coordinator_http_refused_total", {"status": "413"}) == 2


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"Content-Type": "text/plain"}, 415, "send a JSON body with Content-Type: application/json"),
        ({}, 415, "send a JSON body"),
        (
            {"Content-Type": "application/json", "Origin": "https://elsewhere.example"},
            403,
            "write requests from pages of https://elsewhere.example",
        ),
        (
            {"Content-Type": "application/json", "Origin": "null"},
            403,
            "write requests from pages of null",
        ),
        (
            {"Content-Type": "application/json", "Origin": "http://["},
            403,
            "write requests from pages of http://[",
        ),
        ({"Content-Type": "application/json"}, 422, "the body is not JSON: "),
    ],
)
def test_write_request_without_json_or_from_another_site_is_refused(
    client_auth_requested: SecuredServer,
    headers: dict[str, str],
    status: int,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = client_auth_requested.new_connection()
    connection.request("POST", "/api/v1/hand-overs", b"{]", {"Authorization": f"Bearer {WRITING}", **headers})
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status == status
    assert answer["message"].startswith(said)
    connection.close()
    if status == 403:
        assert "from a page of" in caplog.records[-1].why  # type: ignore[attr-defined]


def test_oversized_request_head_is_refused(
    client_auth_requested: SecuredServer,
) -> None:
    connection = client_auth_requested.new_connection()
    connection.connect()
    connection.sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n")
    received = b""
    try:
        for _ in range(2 * HEAD_BYTES_MAX // 1000):
            connection.sock.sendall(b"X-Long: " + b"x" * 1000 + b"\r\n")
        while data := connection.sock.recv(4096):
            received += data
    except (ssl.SSLError, ConnectionError):
        pass
    assert received == b"" or received.startswith(b"HTTP/1.1 431 ")
    connection.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/docs", 404),
        ("GET", "/redoc", 404),
        ("GET", "/assets/../app.py", 404),
        ("GET", "/%6C%69vez", 200),
        ("PUT", "/livez", 405),
        ("DELETE", "/api/v1/groups", 405),
        ("POST", "/api/v1/shards", 405),
    ],
)
def test_unknown_paths_and_methods_return_the_same_json_error(
    client_auth_requested: SecuredServer,
    method: str,
    path: str,
    status: int,
) -> None:
    connection = client_auth_requested.new_connection()
    headers = {"Authorization": f"Bearer {WRITING}", "Content-Type": "application/json"}
    connection.request(method, path, b"{}" if method != "GET" else None, headers)
    response = connection.getresponse()
    text = response.read().decode()
    assert response.status == status
    if status >= 400:
        answer = json.loads(text)
        assert answer["status"] == status
        assert "; /openapi.json lists all " in answer["message"]
    assert "Traceback" not in text
    connection.close()


def test_forwarded_for_header_does_not_change_the_audited_address(
    client_auth_requested: SecuredServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "coordinator.audit"):
        connection = client_auth_requested.new_connection()
        headers = {"Authorization": "Bearer wrong-wrong-wrong-wrong", "X-Forwarded-For": "192.0.2.1"}
        connection.request("GET", "/healthz", headers=headers)
        assert connection.getresponse().status == 401
        connection.close()
    (refused,) = [record for record in caplog.records if record.name == "coordinator.audit"]
    assert vars(refused)["address"] == "127.0.0.1"
