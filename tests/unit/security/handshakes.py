"""TLS handshakes in memory: two sides, no socket."""

import ssl
from contextlib import suppress
from typing import NamedTuple


class HandshakeResult(NamedTuple):
    """What each side knows after a handshake, and by what the client may ask to go on with it."""

    servers_certificate: dict[str, object]
    clients_certificate: dict[str, object]
    session: ssl.SSLSession | None
    resumed: bool


def client_context(
    authority: str, certificate: str = "", *, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """The context of a client that trusts one authority; `certificate`: its own, with its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    context.maximum_version = newest
    if certificate:
        context.load_cert_chain(certificate)
    return context


def handshake(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    name: str | None = "localhost",
    session: ssl.SSLSession | None = None,
) -> HandshakeResult:
    """Shake hands; raise the ssl.SSLError of the side that refuses.

    `name` None: the client names no host. With a `session` it asks to go on with that one.
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
    # OpenSSL forgets the session of a connection that did not end in order.
    for side in (calling, serving, calling):
        with suppress(ssl.SSLError):
            side.unwrap()
    return HandshakeResult(
        dict(calling.getpeercert() or {}),
        dict(serving.getpeercert() or {}),
        calling.session,
        bool(serving.session_reused),
    )


def common_name(certificate: dict[str, object]) -> str:
    """Return the common name in a certificate as `getpeercert` gives it."""
    (name,) = (
        value
        for part in certificate["subject"]
        for key, value in part
        if key == "commonName"  # type: ignore[attr-defined]
    )
    return str(name)
