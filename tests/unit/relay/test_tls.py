"""TLS at the relay: it terminates TLS of peers and opens new TLS connections upstream."""

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from coordinator.client import ClientSecurity
from coordinator.config import HostPort
from coordinator.security.outgoing_tls import OutgoingTls
from coordinator.security.tls import ServerTls
from coordinator.serve.relay import streams
from coordinator.serve.relay.streams import UpstreamServer
from tests.certificates import CertificateAuthority, IssuedCertificate
from tests.unit.relay.fake_peers import (
    ANSWER,
    FETCH,
    FETCHER,
    HERE,
    LIMITS,
    PERSISTER,
    WRITE,
    FrameStream,
    RelaySetup,
    connect_persister,
    encode_frame,
    encode_request,
    handshake_request,
    plain_token,
    run_relay,
    token_request,
    wait_seconds,
    wait_until,
)
from tests.unit.security.handshakes import client_context, is_tls_session_resumed

pytestmark = pytest.mark.run_with(function=uvloop.run)

MIB = 1 << 20


class RelayCertificates:
    """Certificates of all parties, issued by one authority."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder)
        self.relay, self.broker = (
            self.authority.issue_certificate("relay"),
            self.authority.issue_certificate("broker"),
        )
        self.kafka, self.eve = (
            self.authority.issue_certificate("kafka"),
            self.authority.issue_certificate("eve"),
        )

    def server_tls(self, own: IssuedCertificate, client_auth: str = "none") -> ServerTls:
        settings = own.listener_tls(ca_location=str(self.authority.certificate), client_auth=client_auth)
        return ServerTls(settings, "relay")

    def relay_server_tls(self, client_auth: str = "none") -> ServerTls:
        return self.server_tls(self.relay, client_auth)

    def upstream_tls(self, client_auth: str = "none") -> tuple[ssl.SSLContext, OutgoingTls]:
        """Return the TLS context of a fake server, and the client configuration of the relay."""
        outward = ClientSecurity(
            "SSL", ca_file=str(self.authority.certificate), certificate_file=str(self.relay.combined_file)
        )
        return self.server_tls(self.broker, client_auth).context, OutgoingTls(outward, "ssl.")

    def peer_context(self, own: IssuedCertificate | None = None) -> ssl.SSLContext:
        """Return the TLS context of a peer, with a client certificate if given."""
        return client_context(str(self.authority.certificate), str(own.combined_file) if own else "")


@pytest.fixture
def certificates(tmp_path: Path) -> RelayCertificates:
    return RelayCertificates(tmp_path)


async def connect_encrypted_persister(
    here: RelaySetup, tls: ssl.SSLContext
) -> tuple[FrameStream, FrameStream]:
    peer = await here.connect_peer(tls)
    await peer.log_in()
    asked = encode_request(WRITE, PERSISTER)
    peer.send_bytes(asked)
    coordinator = await here.coordinator.next_connection()
    assert encode_frame(await coordinator.read_frame()) == asked
    coordinator.send_bytes(ANSWER)
    assert encode_frame(await peer.read_frame()) == ANSWER
    return peer, coordinator


async def test_login_requests_and_responses_work_over_tls(certificates: RelayCertificates) -> None:
    async with run_relay(tls=certificates.relay_server_tls(), broker_tls=certificates.upstream_tls()) as here:
        peer, coordinator = await connect_encrypted_persister(here, certificates.peer_context())
        for size in (0, 5, 3 * MIB):
            asked = encode_request(WRITE, PERSISTER, b"z" * size)
            await peer.send_all(asked)
            assert await coordinator.read_exactly(len(asked)) == asked
        other = await here.connect_peer(certificates.peer_context())
        await other.log_in()
        asked = encode_request(FETCH, FETCHER)
        other.send_bytes(asked)
        broker = await here.broker.next_connection()
        assert await broker.read_exactly(len(asked)) == asked
        flood = b"fetched" * MIB
        await asyncio.gather(broker.send_all(flood), other.read_exactly(len(flood)))
        broker.send_bytes(ANSWER)
        broker.close_connection()
        assert encode_frame(await other.read_frame()) == ANSWER
        assert await other.wait_until_closed()


async def test_relay_presents_its_certificate_to_the_coordinator(certificates: RelayCertificates) -> None:
    async with run_relay(coordinator_tls=certificates.upstream_tls("required")) as here:
        await connect_persister(here)


async def test_certificate_gives_the_principal_without_sasl(certificates: RelayCertificates) -> None:
    async with run_relay(
        check="certificate",
        allowed="User:CN=kafka",
        tls=certificates.relay_server_tls("required"),
        broker_tls=certificates.upstream_tls("required"),
    ) as here:
        peer = await here.connect_peer(certificates.peer_context(certificates.kafka))
        asked = encode_request(WRITE, PERSISTER)
        peer.send_bytes(asked)
        coordinator = await here.coordinator.next_connection()
        assert encode_frame(await coordinator.read_frame()) == asked
        for client_id in (PERSISTER, FETCHER):
            # A broker would treat this peer as the relay, because it sees only the relay's certificate.
            eve = await here.connect_peer(certificates.peer_context(certificates.eve))
            eve.send_bytes(encode_request(FETCH, client_id))
            assert await eve.wait_until_closed()
        assert here.broker.accepted == 0
        assert here.figures.refused == {"principal": 2}
        context = certificates.peer_context(certificates.kafka)
        assert not await asyncio.to_thread(is_tls_session_resumed, here.listener.port, context)


async def test_removed_authority_closes_open_connections(certificates: RelayCertificates) -> None:
    tls = certificates.relay_server_tls("required")
    other = CertificateAuthority(certificates.authority.certificate.parent / "other").certificate
    async with run_relay(check="certificate", allowed="User:CN=kafka", tls=tls) as here:
        peer = await here.connect_peer(certificates.peer_context(certificates.kafka))
        peer.send_bytes(encode_request(WRITE, PERSISTER))
        await (await here.coordinator.next_connection()).read_frame()
        authorities = certificates.authority.certificate
        authorities.write_bytes(authorities.read_bytes() + other.read_bytes())
        assert tls.reload_if_changed()
        await wait_seconds(3 * LIMITS.sweep_s)
        assert here.figures.refused == {}, "an authority was only added"
        authorities.write_bytes(other.read_bytes())
        assert tls.reload_if_changed()
        assert await peer.wait_until_closed()
        assert here.figures.refused == {"certificate_revoked": 1}


async def test_peer_without_certificate_is_refused(certificates: RelayCertificates) -> None:
    async with run_relay(check="certificate", tls=certificates.relay_server_tls("required")) as here:
        # With TLS 1.3, a client sees the refusal when it reads the first byte.
        nobody = await here.connect_peer(certificates.peer_context())
        nobody.send_bytes(encode_request(FETCH, FETCHER))
        with pytest.raises((ssl.SSLError, asyncio.IncompleteReadError)):
            await nobody.read_exactly(1)
        await wait_until(lambda: here.figures.refused)
        assert here.figures.refused == {"tls": 1}


async def test_plaintext_to_a_tls_port_is_closed(certificates: RelayCertificates) -> None:
    async with run_relay(tls=certificates.relay_server_tls(), broker_tls=certificates.upstream_tls()) as here:
        plain = await here.connect_peer()
        plain.send_bytes(encode_request(FETCH, FETCHER) * 20)
        assert await plain.wait_until_closed()
        assert here.broker.accepted == 0
        await connect_encrypted_persister(here, certificates.peer_context())


async def test_broker_certificate_of_another_authority_is_refused(
    certificates: RelayCertificates, tmp_path: Path
) -> None:
    others = RelayCertificates(tmp_path / "others")
    async with run_relay(
        tls=certificates.relay_server_tls(),
        broker_tls=(others.upstream_tls()[0], certificates.upstream_tls()[1]),
    ) as here:
        peer = await here.connect_peer(certificates.peer_context())
        peer.send_bytes(encode_request(18, None))
        assert await peer.wait_until_closed()
        assert here.figures.failed_connects["broker"] == 3


async def test_broker_certificate_must_match_the_host_name(certificates: RelayCertificates) -> None:
    broker = certificates.authority.issue_certificate("named", hosts=("broker.example",))
    context = ServerTls(broker.listener_tls(), "listen").context
    outward = OutgoingTls(ClientSecurity("SSL", ca_file=str(certificates.authority.certificate)), "ssl.")

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(serve_client, "127.0.0.1", 0, ssl=context) as server:
        address = HostPort("127.0.0.1", server.sockets[0].getsockname()[1])
        for name in ("", "another.example"):
            with pytest.raises(ssl.SSLCertVerificationError):
                await UpstreamServer(address, outward, name).connect(20.0)
        (await UpstreamServer(address, outward, "broker.example").connect(20.0)).close()


def send_and_detach(address: tuple[str, int], tls: ssl.SSLContext, asked: list[bytes]) -> socket.socket:
    """Send requests over TLS, reading a response after each but the last; return the raw socket, still
    open."""
    plain = socket.create_connection(address, timeout=20)
    encrypted = tls.wrap_socket(plain, server_hostname="localhost")
    for each in asked[:-1]:
        encrypted.sendall(each)
        assert encrypted.recv(4096)
    encrypted.sendall(asked[-1])
    return socket.socket(fileno=encrypted.detach())


def wait_until_closed(below_tls: socket.socket) -> bool:
    """Read until the connection is closed; return True."""
    with below_tls, suppress(ConnectionError):
        below_tls.settimeout(20)
        while below_tls.recv(4096):
            pass
    return True


def count_accepted_bytes(address: tuple[str, int], tls: ssl.SSLContext) -> int:
    """Send bytes until the other side stops reading; return the number sent."""
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
        plain.connect(address)
        plain.settimeout(2)
        said = 0
        with suppress(TimeoutError), tls.wrap_socket(plain, server_hostname="localhost") as encrypted:
            while said < 8 * MIB:
                encrypted.sendall(bytes(4 << 10))
                said += 4 << 10
        return said


@pytest.mark.slow
async def test_tls_stream_buffers_little_before_a_read_is_requested(certificates: RelayCertificates) -> None:
    with socket.create_server((HERE, 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 10)
        address = listening.getsockname()
        saying = asyncio.ensure_future(
            asyncio.to_thread(count_accepted_bytes, address, certificates.peer_context())
        )
        accepted, _ = await asyncio.to_thread(listening.accept)
        accepted.setblocking(False)
        end = await streams.accept_stream(accepted, certificates.relay_server_tls().context)
        said = await saying
        assert said < 512 << 10
        end.close()


async def test_malformed_frame_closes_tls_without_waiting_for_shutdown(
    certificates: RelayCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_TLS_FINISH_S", 60.0)
    async with run_relay(tls=certificates.relay_server_tls(), broker_tls=certificates.upstream_tls()) as here:
        address = (HERE, here.listener.port)
        peer = await asyncio.to_thread(
            send_and_detach, address, certificates.peer_context(), [encode_frame(b"\0")]
        )
        assert await asyncio.to_thread(wait_until_closed, peer)


@pytest.mark.slow
async def test_connection_in_tls_shutdown_is_closed_for_a_new_one_at_the_limit(
    certificates: RelayCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_TLS_FINISH_S", 3_600.0)
    async with run_relay(
        tls=certificates.relay_server_tls(),
        broker_tls=certificates.upstream_tls(),
        limits=LIMITS._replace(connections_max=1),
    ) as here:
        address = (HERE, here.listener.port)
        wrong = [handshake_request(), token_request(plain_token(password="guessed"))]
        peer = await asyncio.to_thread(send_and_detach, address, certificates.peer_context(), wrong)
        await wait_until(lambda: here.broker.left == 1)
        another = await here.connect_peer()
        assert await asyncio.to_thread(wait_until_closed, peer)
        assert here.figures.refused["too_many_connections"] == 1
        another.close_connection()
        await wait_until(lambda: here.figures.undecided == 0)


def test_replaced_tls_files_are_used_for_new_connections(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    first, second = authority.issue_certificate("first"), authority.issue_certificate("second")
    own = tmp_path / "own.pem"
    own.write_bytes(first.combined_file.read_bytes())
    tls = OutgoingTls(
        ClientSecurity("SSL", ca_file=str(authority.certificate), certificate_file=str(own)), "ssl."
    )
    before = tls.context()
    assert tls.context() is before
    own.write_text("half a file")
    assert tls.context() is before
    own.write_bytes(second.combined_file.read_bytes())
    after = tls.context()
    assert after is not before
    assert tls.context() is after
