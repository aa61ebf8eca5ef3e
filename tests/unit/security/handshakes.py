"""TLS handshakes between a client and a server, in memory or on a socket."""

import socket
import ssl
from contextlib import suppress
from typing import NamedTuple


class HandshakeResult(NamedTuple):
    """The certificates that client and server received, the client's session, and whether it was resumed."""

    servers_certificate: dict[str, object]
    clients_certificate: dict[str, object]
    session: ssl.SSLSession | None
    resumed: bool


def client_context(
    authority: str, certificate: str = "", *, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """Return a client context that trusts one authority; `certificate` is a file with certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    context.maximum_version = newest
    if certificate:
        context.load_cert_chain(certificate)
    return context


def perform_handshake(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    name: str | None = "localhost",
    session: ssl.SSLSession | None = None,
) -> HandshakeResult:
    """Perform a handshake; raise the ssl.SSLError of the side that refuses.

    If `name` is None, the client sends no host name. If `session` is given, the client asks to resume it.
    """
    client.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    calling = client.wrap_bio(to_client, to_server, server_hostname=name, session=session)
    waiting = [calling, serving]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    # OpenSSL drops the session of a connection that was not shut down properly.
    for side in (calling, serving, calling):
        with suppress(ssl.SSLError):
            side.unwrap()
    return HandshakeResult(
        dict(calling.getpeercert() or {}),
        dict(serving.getpeercert() or {}),
        calling.session,
        bool(serving.session_reused),
    )


def is_tls_session_resumed(port: int, context: ssl.SSLContext) -> bool:
    """Connect twice with TLS 1.2; return whether the second connection resumes the session of the first."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    session, resumed = None, None
    for _ in range(2):
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        with context.wrap_socket(plain, server_hostname="localhost", session=session) as client:
            session, resumed = client.session, client.session_reused
            with suppress(OSError):
                client.unwrap()
    return bool(resumed)


def common_name(certificate: dict[str, object]) -> str:
    """Return the common name of a certificate in the form of `getpeercert`."""
    (name,) = (
        value
        for part in certificate["subject"]
        for key, value in part
        if key == "commonName"  # type: ignore[attr-defined]
    )
    return str(name)
