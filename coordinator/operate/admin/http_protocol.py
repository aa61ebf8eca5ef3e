"""Limit the resources of one HTTP connection: pipelined requests, header bytes, and the time of each step.

uvicorn alone has none of these limits. uvicorn queues all requests that arrive, waits for a body without a
timeout, and keeps a response that the client does not read. uvicorn's `limit_concurrency` does not limit
connections.

Received bytes wait in the server's `FairQueue`, which processes the bytes of one connection in each iteration
of the event loop. While bytes of a connection wait, the server does not read from this connection.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.operate.admin.access_middleware import CERTIFICATE
from coordinator.process.fair_queue import FairQueue, client_network
from coordinator.security.tls import CertificateTrust, ServerTls

# Maximum size of request line and headers; browsers send less than 8 KiB.
HEAD_BYTES_MAX = 64 << 10
# Maximum number of pipelined requests of one connection. Browsers do not pipeline.
PIPELINED_MAX = 8
# Maximum time from the previous request, or the start of the connection, to the end of the headers.
_HEAD_TIMEOUT_S = 20.0
# Maximum time from the end of the headers to the end of the body, which has at most 64 KiB.
_BODY_WITHIN_S = 20.0
# Maximum time that a client may leave a response unread.
_UNREAD_WITHIN_S = 20.0
# Maximum time from the end of the headers to the last byte of the response.
_RESPONSE_WITHIN_S = 120.0


class Connection(HttpToolsProtocol):
    """One HTTP connection. The ASGI scope of its requests has the client's certificate, if any."""

    def __init__(
        self,
        *uvicorn_arguments: Any,
        on_rejected: Callable[[HTTPStatus], None],
        turns: FairQueue,
        tls: ServerTls | None = None,
        **more: Any,
    ) -> None:
        """Create uvicorn's protocol; `on_rejected` is called with the HTTP status of each refused request."""
        super().__init__(*uvicorn_arguments, **more)
        self._turns = turns
        # Received bytes that this connection parses at its next turn; connections of a client take turns.
        self._received: list[bytes] = []
        self._on_rejected = on_rejected
        self._tls = tls
        self.trust: CertificateTrust | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert")
        self._certificate = certificate
        if certificate and self._tls is not None:
            self.trust = CertificateTrust(self._tls, certificate)
        self.network = client_network(transport)
        self._head_bytes = 0
        self._in_head = True
        self.last_active_s = self.loop.time()
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._start_deadline("head", _HEAD_TIMEOUT_S, self._close_gracefully)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers, and drop pipelined requests, which form cycles with this connection."""
        for deadline in self._deadlines.values():
            deadline.cancel()
        self._deadlines.clear()
        super().connection_lost(exc)
        self.pipeline.clear()
        self._received.clear()
        self.cycle = None  # type: ignore[assignment]
        self.scope, self.headers = cast(Any, {}), []

    def data_received(self, data: bytes) -> None:
        """Queue received bytes, and stop reading until they are parsed."""
        self._received.append(data)
        if len(self._received) == 1:
            self.transport.pause_reading()
            self._turns.add(self.network, self._process_received)

    def _process_received(self) -> None:
        data = b"".join(self._received)
        self._received.clear()
        if self.transport.is_closing():
            # Transports may deliver bytes after `close`.
            return
        self._parse_bytes(data)
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse_bytes(self, data: bytes) -> None:
        """Parse bytes; refuse requests if their headers or their number in the pipeline exceed the limits."""
        if self._in_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # WebSockets are not supported: the request gets a normal response, and later bytes are ignored.
            pass
        except httptools.HttpParserError:
            # uvicorn would log each pipelined request.
            if len(self.pipeline) >= PIPELINED_MAX:
                self._on_rejected(HTTPStatus.TOO_MANY_REQUESTS)
                self.transport.abort()
            else:
                self._on_rejected(HTTPStatus.BAD_REQUEST)
                self._respond_and_close(HTTPStatus.BAD_REQUEST)
            return
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._on_rejected(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            self._respond_and_close(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begin a request, unless the pipeline is full."""
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("too many requests in the pipeline")
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[CERTIFICATE] = self._certificate
        if not self._in_head:
            self._in_head, self._head_bytes = True, 0
            self._start_deadline("head", _HEAD_TIMEOUT_S, self._close_gracefully)

    def on_headers_complete(self) -> None:
        """Start the timers of body and response, and process the request."""
        self._in_head = False
        self._cancel_deadline("head")
        self._start_deadline("body", _BODY_WITHIN_S, self.transport.abort)
        super().on_headers_complete()
        self._start_deadline("response", _RESPONSE_WITHIN_S, self.transport.abort)

    def on_message_complete(self) -> None:
        self._cancel_deadline("body")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Stop the timer of the response; the connection then closes or waits for the next request."""
        self._cancel_deadline("response")
        if self.transport.is_closing():
            # Without a timer, a client that does not read would keep the remaining bytes in memory.
            self._start_deadline("unread", _UNREAD_WITHIN_S, self.transport.abort)
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that received no further request within the keep-alive time."""
        self._close_gracefully()

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        self._start_deadline("unread", _UNREAD_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer for a client that does not read."""
        if not self.transport.is_closing():
            self._cancel_deadline("unread")
        super().resume_writing()

    def evict(self) -> None:
        """Close the connection at once, because the server is at its connection limit."""
        self.transport.abort()

    @property
    def is_waiting_for_client(self) -> bool:
        """True while the connection waits for the client and no response is in progress."""
        return self._in_head or not {"body", "unread"}.isdisjoint(self._deadlines) or self._is_idle

    @property
    def _is_idle(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _start_deadline(self, step: str, seconds: float, act: Callable[[], None]) -> None:
        self._cancel_deadline(step)
        self._deadlines[step] = self.loop.call_later(seconds, act)

    def _cancel_deadline(self, step: str) -> None:
        deadline = self._deadlines.pop(step, None)
        if deadline is not None:
            deadline.cancel()

    def _respond_and_close(self, status: HTTPStatus) -> None:
        line = f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n\r\n"
        self.transport.write(line.encode())
        self._close_gracefully()

    def _close_gracefully(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
        self._start_deadline("unread", _UNREAD_WITHIN_S, self.transport.abort)
