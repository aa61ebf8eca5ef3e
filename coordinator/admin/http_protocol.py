"""What uvicorn's connection does not do by itself: say who connected, and bound what comes before a body.

uvicorn's own bound (`limit_concurrency`) keeps no connection out: each is held, and answered 503 if it asks.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.admin.guard import CERTIFICATE
from coordinator.open_files import http_connections_to_accept

# A request line and headers; what a browser sends is below 8 KiB.
HEAD_BYTES_MAX = 64 << 10
# From one request's end, or the connection's begin, to the end of the next one's headers.
_HEAD_WITHIN_S = 20.0


class Connection(HttpToolsProtocol):
    """One connection over HTTP. Its requests have the certificate of whoever made it, if they showed one."""

    def __init__(self, *uvicorns: Any, turned_away: Callable[[HTTPStatus], None], **more: Any) -> None:
        """Make what uvicorn does; `turned_away` is told what is answered before there is a request."""
        super().__init__(*uvicorns, **more)
        self._turned_away = turned_away

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, or close at once when there are too many connections."""
        super().connection_made(transport)
        certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert")
        self._certificate = certificate
        self._head_bytes = 0
        self._in_head = True
        self._late = self.loop.call_later(_HEAD_WITHIN_S, self._give_up)
        if len(self.connections) > http_connections_to_accept():
            # Over TLS nobody comes this far: the doorway is closed before.
            self._turn_away(HTTPStatus.SERVICE_UNAVAILABLE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._late.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless they are the endless head of a request, or of one that was turned away."""
        if self.transport.is_closing():
            # asyncio's TLS hands over what had come by then.
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._turn_away(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[CERTIFICATE] = self._certificate
        if not self._in_head:
            self._in_head, self._head_bytes = True, 0
            self._late = self.loop.call_later(_HEAD_WITHIN_S, self._give_up)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head = False
        self._late.cancel()
        super().on_headers_complete()

    def _turn_away(self, status: HTTPStatus) -> None:
        self._turned_away(status)
        line = f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n\r\n"
        self.transport.write(line.encode())
        self.transport.close()

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
