"""TLS handshakes: a connection is one only when its handshake is over.

The event loop's own TLS server says nothing of handshakes that fail.  Here each is watched: whoever comes
without TLS, or with a certificate that is not accepted, is closed, counted, and told about in one line.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

_logger = logging.getLogger(__name__)

# What OpenSSL says of bytes that are no TLS: a request without it, from Kafka's clients or a browser.
_NO_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
}

Come = Callable[[asyncio.Transport], asyncio.Protocol | None]
Refuse = Callable[[str, str, str], None]


class Doorway(asyncio.Protocol):
    """One connection until its TLS handshake is over; then it gives it to the protocol that `come` returns.

    `refuse` is told the reason, for a metric, a sentence and the client's address of each that fails.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        handshake_s: float,
        come: Come,
        refuse: Refuse,
        gone: Callable[[], None],
    ) -> None:
        self._context = context
        self._handshake_s = handshake_s
        self._come = come
        self._refuse = refuse
        self._gone = gone
        self._early: list[bytes] = []
        self._lost = False
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        # Whatever comes is for TLS to read.
        self._transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._shake(self._transport))

    def data_received(self, data: bytes) -> None:
        """Keep what a client says with the last message of its handshake."""
        self._early.append(data)

    def eof_received(self) -> bool:
        """Close: nobody half-closes on this protocol."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client went away."""
        self._lost = True

    def close(self) -> None:
        """Give up."""
        if self._transport is not None:
            self._transport.abort()

    async def _shake(self, transport: asyncio.Transport) -> None:
        peer = peer_of(transport)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=self._handshake_s
            )
        except ssl.SSLError as error:
            self._refuse(*_judged(error), peer)
        except OSError as error:
            # Went away, or took too long: an everyday event.
            _logger.debug("a TLS handshake was not finished: %s", error, extra={"peer": peer})
            self._refuse("tls_unfinished", "", peer)
        else:
            self._gone()
            if secured is not None and not self._lost:
                self._pass_on(secured)
            return
        self._gone()
        transport.abort()

    def _pass_on(self, secured: asyncio.Transport) -> None:
        protocol = self._come(secured)
        if protocol is None:
            secured.abort()
            return
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        for data in self._early:
            protocol.data_received(data)


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    """Return a client's address for people."""
    name: Any = transport.get_extra_info("peername") if transport is not None else None
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"


def _judged(error: ssl.SSLError) -> tuple[str, str]:
    """Return a label for a metric and a sentence for why a handshake failed."""
    if error.reason in _NO_TLS:
        return "plaintext_to_tls", "a client without TLS came to the TLS port"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "bad_certificate", f"a client's certificate is not accepted: {error.verify_message}"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "no_certificate", "a client without a certificate came to a port that asks for one"
    return "tls_failed", f"a TLS handshake failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
