"""TLS on a real socket: client certificates, refused handshakes and replaced files."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from coordinator.security.principals import AllowedPrincipals, MappingRules
from coordinator.security.tls import CertificateTrust, ServerTls
from coordinator.serve.server import ListenerSecurityConfig, ServerLimits
from protocol.messages import write_share_group_state as write_api
from tests.certificates import CertificateAuthority, IssuedCertificate
from tests.unit.security.handshakes import client_context, is_tls_session_resumed
from tests.unit.security.test_tls import replace_file
from tests.unit.server.sasl_clients import FIND_BODY, find_coordinator_error_code, log_in, password_security
from tests.unit.server.test_server import connect_and_initialize, write_state_body
from tests.unit.server.wire import ServedCoordinator, request_frame, serve_coordinator

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
CLUSTER_AUTHORIZATION_FAILED = 31


class TlsListener:
    """An authority, the certificate of a server, and the event loop on which a test serves."""

    def __init__(self, folder: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.folder = folder
        self.authority = CertificateAuthority(folder)
        self.server = self.authority.issue_certificate("coordinator")
        self.tls: ServerTls | None = None
        self._new_loop = new_loop

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        """Run a test on a new event loop."""
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(test)

    def serve(
        self,
        *,
        client_auth: str = "required",
        limits: ServerLimits | None = None,
        base: ListenerSecurityConfig | None = None,
        **more: Any,
    ) -> AbstractAsyncContextManager[ServedCoordinator]:
        """Serve on a port with TLS until the end of an `async with` block."""
        files = self.server.listener_tls(ca_location=str(self.authority.certificate), client_auth=client_auth)
        self.tls = ServerTls(files, "listen")
        security = {
            "tls": self.tls,
            "allowed": AllowedPrincipals.parse("User:CN=broker-1"),
            "watched": (self.tls,),
            "reload_s": 0.02,
            **more,
        }
        return serve_coordinator(limits, (base or ListenerSecurityConfig())._replace(**security))

    async def request_error_code(
        self, served: ServedCoordinator, own: IssuedCertificate | None = None, **more: Any
    ) -> int:
        """Send FindCoordinator on a new connection; return the error code of the response."""
        return await find_coordinator_error_code(await served.connect(self.make_client_context(own, **more)))

    def make_client_context(self, own: IssuedCertificate | None = None, **more: Any) -> ssl.SSLContext:
        return client_context(str(self.authority.certificate), str(own.combined_file) if own else "", **more)


@pytest.fixture(params=LOOPS)
def tls_listener(request: pytest.FixtureRequest, tmp_path: Path) -> TlsListener:
    return TlsListener(tmp_path, LOOPS[request.param])


def closed_connection_counts(served: ServedCoordinator) -> dict[str, int]:
    return served.metrics._counts["connections_closed"]


def warning_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.run_with(fixture="tls_listener")
async def test_client_certificate_gives_the_principal(tls_listener: TlsListener) -> None:
    issue = tls_listener.authority.issue_certificate
    broker, other = issue("broker-1"), issue("broker-2")
    async with tls_listener.serve() as served:
        # With TLS 1.3, the client sends its first request together with the end of its handshake.
        for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            assert await tls_listener.request_error_code(served, broker, newest=newest) == 0
        assert await tls_listener.request_error_code(served, other) == CLUSTER_AUTHORIZATION_FAILED
        assert served.listener.connection_count == 3
        context = tls_listener.make_client_context(broker)
        assert not await asyncio.to_thread(is_tls_session_resumed, served.port, context)


@pytest.mark.run_with(fixture="tls_listener")
@pytest.mark.parametrize(
    ("client_auth", "allowed", "error"),
    [
        ("requested", "User:CN=broker-1", CLUSTER_AUTHORIZATION_FAILED),
        ("none", "User:CN=broker-1", CLUSTER_AUTHORIZATION_FAILED),
        ("none", "User:ANONYMOUS", 0),
    ],
)
async def test_client_without_certificate_is_anonymous(
    tls_listener: TlsListener, client_auth: str, allowed: str, error: int
) -> None:
    async with tls_listener.serve(
        client_auth=client_auth, allowed=AllowedPrincipals.parse(allowed)
    ) as served:
        assert await tls_listener.request_error_code(served) == error


@pytest.mark.run_with(fixture="tls_listener")
async def test_mapping_rule_gives_the_principal_and_unmapped_names_are_refused(
    tls_listener: TlsListener,
) -> None:
    issue = tls_listener.authority.issue_certificate
    broker, other = issue("broker-1"), issue("else")
    rules = MappingRules.parse("RULE:^CN=(broker-.*)$/$1/U")
    async with tls_listener.serve(rules=rules, allowed=AllowedPrincipals.parse("User:BROKER-1")) as served:
        assert await tls_listener.request_error_code(served, broker) == 0
        client = await served.connect(tls_listener.make_client_context(other))
        assert await client.wait_until_closed()
        assert closed_connection_counts(served)["unmapped_certificate"] == 1


@pytest.mark.run_with(fixture="tls_listener")
@pytest.mark.parametrize(
    ("showing", "reason", "sentence"),
    [
        ("nothing", "no_certificate", "a client without a certificate came to a port that asks for one"),
        (
            "of another authority",
            "bad_certificate",
            "a client's certificate is not accepted: unable to get local issuer certificate",
        ),
        (
            "expired",
            "bad_certificate",
            "a client's certificate is not accepted: certificate has expired",
        ),
    ],
)
async def test_bad_client_certificates_are_refused_with_one_log_line(
    tls_listener: TlsListener, caplog: pytest.LogCaptureFixture, showing: str, reason: str, sentence: str
) -> None:
    own = {
        "nothing": None,
        "of another authority": CertificateAuthority(
            tls_listener.folder / "else", "stranger"
        ).issue_certificate("broker-1"),
        "expired": tls_listener.authority.issue_certificate("broker-1", ended=True, file="ended"),
    }[showing]
    async with tls_listener.serve() as served:
        for attempt in range(1, 4):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await served.connect(tls_listener.make_client_context(own, newest=ssl.TLSVersion.TLSv1_2))
            await served.wait_until(lambda: closed_connection_counts(served)[reason] == attempt)  # noqa: B023
        assert served.listener.connection_count == 0
    assert warning_messages(caplog) == [sentence]


@pytest.mark.run_with(fixture="tls_listener")
async def test_handshake_aborted_by_the_client_is_counted(tls_listener: TlsListener) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    stranger = CertificateAuthority(tls_listener.folder / "else", "stranger")
    async with tls_listener.serve() as served:
        with pytest.raises(ssl.SSLCertVerificationError):
            await served.connect(client_context(str(stranger.certificate), str(broker.combined_file)))
        # Some clients send an alert, others only close the connection.
        await served.wait_until(
            lambda: (
                closed_connection_counts(served)["tls_failed"]
                + closed_connection_counts(served)["tls_unfinished"]
                == 1
            )
        )


@pytest.mark.run_with(fixture="tls_listener")
@pytest.mark.parametrize(
    "said",
    [request_frame(18, 0, 1, b"", flexible=False), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["Kafka", "HTTP"],
)
async def test_plaintext_to_a_tls_port_is_closed_at_once(
    tls_listener: TlsListener, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    async with tls_listener.serve() as served:
        for attempt in range(1, 4):
            client = await served.connect()
            client.send(said)
            # The server sends at most an alert before it closes the connection.
            async with asyncio.timeout(60):
                assert len(await client.reader.read()) < 10
            await served.wait_until(lambda: closed_connection_counts(served)["plaintext_to_tls"] == attempt)  # noqa: B023
    assert warning_messages(caplog) == ["a client without TLS came to the TLS port"]


async def test_tls_to_a_plaintext_port_is_closed_at_once(
    tls_listener: TlsListener, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_coordinator() as served:
        for attempt in range(1, 4):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await served.connect(tls_listener.make_client_context())
            await served.wait_until(lambda: closed_connection_counts(served)["tls_to_plaintext"] == attempt)  # noqa: B023
    assert warning_messages(caplog) == ["A client used TLS on a port without TLS."]


@pytest.mark.run_with(fixture="tls_listener")
async def test_unfinished_handshakes_leave_no_connection_or_memory(
    tls_listener: TlsListener, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_listener.serve(handshake_s=0.2) as served:
        for _ in range(3):
            # Connect and close, as a TCP health check does.
            socket.create_connection(("127.0.0.1", served.port)).close()
        await served.wait_until(lambda: closed_connection_counts(served)["tls_unfinished"] == 3)
        silent = await served.connect()
        assert await silent.wait_until_closed()
        await served.wait_until(lambda: closed_connection_counts(served)["tls_unfinished"] == 4)
        assert (served.listener.connection_count, served.listener.held_bytes) == (0, 0)
    assert warning_messages(caplog) == []


@pytest.mark.run_with(fixture="tls_listener")
async def test_removed_authority_closes_connections_and_added_one_does_not(tls_listener: TlsListener) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    more = CertificateAuthority(tls_listener.folder / "more")
    async with tls_listener.serve(limits=ServerLimits(sweep_s=0.01)) as served:
        client = await served.connect(tls_listener.make_client_context(broker))
        ca = tls_listener.authority.certificate
        ours = ca.read_bytes()
        tls = served.listener._security.tls
        assert tls is not None
        both = tls_listener.folder / "both.pem"
        both.write_bytes(ours + more.certificate.read_bytes())
        replace_file(ca, both)
        await served.wait_until(lambda: len(tls._anchors) == 2)
        await asyncio.sleep(0.05)
        assert await find_coordinator_error_code(client) == 0
        replace_file(ca, more.certificate)
        await served.wait_until(lambda: tls.removals == 1)
        assert await client.wait_until_closed()
        await served.wait_until(lambda: closed_connection_counts(served)["certificate_revoked"] == 1)


@pytest.mark.run_with(fixture="tls_listener")
async def test_removed_certificate_closes_its_connection(tls_listener: TlsListener) -> None:
    """The file of authorities may contain the certificates of the clients, as a Java truststore may."""
    here, gone = (
        tls_listener.authority.issue_certificate("here"),
        tls_listener.authority.issue_certificate("gone"),
    )
    server_authority = tls_listener.folder / "server-authority.pem"
    server_authority.write_bytes(tls_listener.authority.certificate.read_bytes())
    trusted, left = tls_listener.authority.certificate, tls_listener.folder / "left.pem"
    trusted.write_bytes(here.certificate.read_bytes() + gone.certificate.read_bytes())
    left.write_bytes(here.certificate.read_bytes())
    contexts = [client_context(str(server_authority), str(own.combined_file)) for own in (here, gone)]
    async with tls_listener.serve(
        limits=ServerLimits(sweep_s=0.01), allowed=AllowedPrincipals.parse("User:CN=here;User:CN=gone")
    ) as served:
        clients = [await served.connect(context) for context in contexts]
        for client in clients:
            assert await find_coordinator_error_code(client) == 0
        replace_file(trusted, left)
        for client in clients:
            assert await client.wait_until_closed()
        assert await find_coordinator_error_code(await served.connect(contexts[0])) == 0
        assert await (await served.connect(contexts[1])).wait_until_closed()


def test_expired_client_certificate_ends_trust(tls_listener: TlsListener) -> None:
    certificate = {"notAfter": "Jan  5 09:34:43 2018 GMT"}
    tls = ServerTls(tls_listener.server.listener_tls(), "listen")
    trust = CertificateTrust(tls, certificate)
    assert trust.is_valid(1_515_144_882_999)
    assert not trust.is_valid(1_515_144_883_000)


@pytest.mark.run_with(fixture="tls_listener")
async def test_oldest_handshake_is_cancelled_when_connections_are_exhausted(
    tls_listener: TlsListener,
) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    async with tls_listener.serve(limits=ServerLimits(connections_max=2)) as served:
        first, second = await served.connect(), await served.connect()
        third = await served.connect()
        assert await first.wait_until_closed()
        assert closed_connection_counts(served)["too_many_connections"] == 1
        # A broker can connect although silent clients hold all connections.
        there = await served.connect(tls_listener.make_client_context(broker))
        assert await second.wait_until_closed()
        assert await find_coordinator_error_code(there) == 0
        # An additional handshake may use a file descriptor that is reserved for other uses than connections.
        late = await served.connect()
        assert await third.wait_until_closed()
        assert await find_coordinator_error_code(there) == 0
        late.writer.close()


@pytest.mark.run_with(fixture="tls_listener")
async def test_renewed_certificate_keeps_existing_connections(tls_listener: TlsListener) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    async with tls_listener.serve() as served:
        client = await served.connect(tls_listener.make_client_context(broker))
        after = tls_listener.authority.issue_certificate("after")
        replace_file(tls_listener.server.key, after.key)
        replace_file(tls_listener.server.certificate, after.certificate)

        async def served_certificate_name() -> str:
            fresh = await served.connect(tls_listener.make_client_context(broker))
            (((_, name),),) = fresh.writer.get_extra_info("peercert")["subject"]
            return str(name)

        async with asyncio.timeout(60):
            while await served_certificate_name() != "after":
                pass
        assert await find_coordinator_error_code(client) == 0


@pytest.mark.run_with(fixture="tls_listener")
async def test_large_requests_over_tls_are_answered_in_order(tls_listener: TlsListener) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    async with tls_listener.serve() as served:
        client = await connect_and_initialize(served, tls_listener.make_client_context(broker))
        for number in range(200):
            client.send(request_frame(85, 1, number, write_state_body()))
            client.send(request_frame(10, 6, 1000 + number, FIND_BODY))
        for number in range(200):
            correlation_id, rest = await client.read_frame()
            assert correlation_id == number
            assert write_api.decode_response(rest, 1, 1).results[0].partitions[0].error_code == 0
            assert (await client.read_frame())[0] == 1000 + number


@pytest.mark.run_with(fixture="tls_listener")
async def test_consecutive_writes_over_tls_are_answered(tls_listener: TlsListener) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    async with tls_listener.serve() as served:
        client = await connect_and_initialize(served, tls_listener.make_client_context(broker))
        for number in range(3):
            client.send(request_frame(85, 1, number, write_state_body()))
            assert (await client.read_frame())[0] == number


@pytest.mark.run_with(fixture="tls_listener")
async def test_sasl_login_works_over_tls(tls_listener: TlsListener, caplog: pytest.LogCaptureFixture) -> None:
    base = password_security(tls_listener.folder)
    async with tls_listener.serve(client_auth="none", base=base, allowed=base.allowed) as served:
        client = await served.connect(tls_listener.make_client_context())
        assert (await log_in(client)).error_code == 0
        assert await find_coordinator_error_code(client) == 0
        assert warning_messages(caplog) == []
        stranger = await served.connect(tls_listener.make_client_context())
        stranger.send(request_frame(10, 6, 3, FIND_BODY))
        assert await stranger.wait_until_closed()


@pytest.mark.run_with(fixture="tls_listener")
async def test_stop_closes_tls_connections_and_handshakes(tls_listener: TlsListener) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    async with tls_listener.serve() as served:
        client, silent = (
            await served.connect(tls_listener.make_client_context(broker)),
            await served.connect(),
        )
        assert await find_coordinator_error_code(client) == 0
        await served.listener.drain(1.0)
        await served.listener.stop()
        assert await client.wait_until_closed()
        assert await silent.wait_until_closed()
