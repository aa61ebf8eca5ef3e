# cython: annotation_typing=False
"""One client's connection: read frames, write responses in request order, apply back-pressure.

Each request takes a response slot in a queue. Responses may be ready in any order and are written in the
order of the slots.  Reading pauses if the client has too many requests in progress, if it does not read its
responses, or if the request memory is full.

The bytes of an unauthorized client wait in the listener's `FairQueue`, which handles one frame per turn.
A malformed frame closes the connection. A broker handles a closed connection normally, but an unexpected
response ends its network thread.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

import asyncio
import logging
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from coordinator import fastpath
from coordinator.metrics import Metrics
from coordinator.process.fair_queue import client_network
from coordinator.security.receive_buffer import limit_receive_buffer
from coordinator.security.tls import CertificateTrust
from coordinator.security.tls_acceptor import peer_address
from coordinator.serve.server.error_responses import CloseConnection
from coordinator.serve.server.large_requests import LARGE_WRITE_BYTES
from coordinator.serve.server.limits import ServerLimits
from coordinator.serve.server.listener_security import FrameHandler
from coordinator.serve.server.sasl_authenticator import SaslAuthenticator
from protocol.errors import FrameError
from protocol.frames import FrameReader

if TYPE_CHECKING:
    from coordinator.serve.server.listener import Listener

_logger = logging.getLogger(__name__)

# The start of a TLS handshake record. Read as a frame size, these bytes would be at least 369 MB.
_TLS_HANDSHAKE = b"\x16\x03"
_SIZE_BYTES = 4
# Bytes of queued frames that a connection handles in one turn; a byte of a response counts as a 16th.
_BYTES_PER_TURN = 6 << 10
_RESPONSE_BYTES_PER_BYTE = 16

# Sends bytes on a socket and returns their number; None without the compiled module.
_send_now: Any = None if fastpath.compiled is None else fastpath.compiled.send_on_socket


class ResponseSlot:
    """The position of one request in the order of responses; holds its request memory until it is freed."""

    __slots__ = ("connection", "frame_bytes", "response")

    connection: "Connection"
    frame_bytes: int
    response: bytes | None

    def release_memory(self) -> None:
        released, self.frame_bytes = self.frame_bytes, 0
        self.connection._request_memory.adjust_held_bytes(-released)

    def __del__(self) -> None:
        self.release_memory()

    def respond(self, response: bytes) -> None:
        """Set the response of the request; write the responses that are ready, in order."""
        assert self.response is None, "a request is answered once"
        self.response = response
        connection = self.connection
        if connection.disconnected or connection._handling or connection._response_slots[0] is not self:
            return
        connection._flush()
        if connection._queued_frames or not connection._reading:
            connection._handle_queued_frames()


class Connection:
    """The state of one connection; the event loop's transport calls it as its protocol.

    Frames go to a handler: the API, or the SASL authenticator until the client has logged in. A fast-path
    request on an idle connection goes directly to the compiled code (`coordinator.fastpath`).
    """

    def __init__(
        self,
        handler: FrameHandler,
        listener: "Listener",
        metrics: Metrics,
        limits: ServerLimits,
        trust: CertificateTrust | None = None,
    ) -> None:
        """Create a connection; `trust` belongs to the client's certificate and is None without one."""
        self._trust = trust
        self.sasl_authenticator = handler if isinstance(handler, SaslAuthenticator) else None
        self._listener = listener
        self._request_memory = listener.request_memory
        self._metrics = metrics
        self._limits = limits
        self._requests_in_flight_max = limits.requests_in_flight_max
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(0)
        self._transport: asyncio.Transport | None = None
        # The file descriptor for responses that bypass the transport; -1 with TLS.
        self._file = -1
        self.set_handler(handler)
        self._response_slots: deque[ResponseSlot] = deque()
        self._queued_frames: deque[bytes] = deque()
        self.partial_bytes = 0  # received bytes of an incomplete frame
        self._partial_since_s = 0.0
        self._writable = True
        self._unwritable_since_s = 0.0
        self._reading = True
        self._handling = False
        self._draining = False
        self.network = ""
        # Received bytes of an unauthorized client, and whether a turn for them or for frames is queued.
        self._unsplit = bytearray()
        self._awaits_turn = False
        self._closing_reason: str | None = None
        self._closing_since_s = 0.0
        self.disconnected = False
        self.last_active_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or close it if there are too many."""
        # uvloop's transports do not inherit from asyncio's, but have the same methods.
        self._transport = cast(asyncio.Transport, transport)
        self.network = client_network(transport)
        own_socket = transport.get_extra_info("socket")
        if own_socket is not None:
            # Keep-alive detects clients whose machine failed without closing the connection.
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if _send_now is not None and transport.get_extra_info("sslcontext") is None:
                self._file = own_socket.fileno()
        self._limit_receive_buffer()
        if not self._listener.connection_opened(self):
            self.close("too_many_connections", "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop queued frames, and release their request memory."""
        self.disconnected = True
        self._file = -1
        held = self.partial_bytes + sum(map(len, self._queued_frames)) + len(self._unsplit)
        self._response_slots.clear()
        self._queued_frames.clear()
        self._unsplit.clear()
        self.partial_bytes = 0
        self._request_memory.adjust_held_bytes(-held)
        self._listener.connection_closed(self)
        self._metrics.count("connections_closed", self._closing_reason or "client")

    def data_received(self, data: bytes) -> None:
        """Split the received bytes into frames and handle them."""
        if self.disconnected:
            return
        self.last_active_s = self._loop.time()
        if self._unsplit or (self._fast_path is None and not self.is_authorized):
            self._unsplit += data
            self._request_memory.adjust_held_bytes(len(data))
            self._pause_or_resume_reading()
            return
        body_bytes = len(data) - _SIZE_BYTES
        if (
            not self._response_slots
            and not self._queued_frames
            and self._reading
            and self._writable
            and not self.partial_bytes
            and 0 <= body_bytes <= self._frame_bytes_max
            and data[0] << 24 | data[1] << 16 | data[2] << 8 | data[3] == body_bytes
        ):
            # The usual case: these bytes are exactly one frame.
            memory = self._request_memory
            memory.adjust_held_bytes(body_bytes)
            self._handle_frame(data[_SIZE_BYTES:])
            if memory.held_bytes >= memory.bytes_max or self._requests_in_flight_max == 1:
                self._pause_or_resume_reading()
            return
        self._receive_bytes(data)

    def _receive_bytes(self, data: bytes) -> None:
        try:
            frames = self._reader.receive_data(data)
        except FrameError as error:
            if data.startswith(_TLS_HANDSHAKE):
                self._listener.warn_client("A client used TLS on a port without TLS.", self.peer)
                self.close("tls_to_plaintext", "TLS on a port without TLS")
                return
            self.close("bad_frame", str(error))
            return
        partial_bytes = self._reader.buffered_bytes
        arrived = sum(map(len, frames))
        self._request_memory.adjust_held_bytes(arrived + partial_bytes - self.partial_bytes)
        if partial_bytes and (frames or not self.partial_bytes):
            self._partial_since_s = self.last_active_s
        self.partial_bytes = partial_bytes
        if frames:
            self._queued_frames.extend(frames)
            self._handle_queued_frames()
        elif self._request_memory.is_full:
            self._pause_or_resume_reading()

    def eof_received(self) -> bool:
        """Close the connection: clients of this protocol do not half-close."""
        return False

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its responses."""
        self._writable = False
        self._unwritable_since_s = self._loop.time()
        self._pause_or_resume_reading()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._writable = True
        self._handle_queued_frames()

    # Requests and responses.

    def _handle_queued_frames(self) -> None:
        """Handle queued frames while the connection may accept more requests; the rest waits for a turn."""
        if self._handling or self._awaits_turn:
            return
        self._handling = True
        bytes_left = _BYTES_PER_TURN
        while self._queued_frames and bytes_left > 0 and self._may_accept_request() and not self.disconnected:
            bytes_left -= self._handle_frame(self._queued_frames.popleft())
            if not self._may_accept_request():
                self._flush()  # Responses that are complete free slots for the next requests.
        self._handling = False
        self._flush()
        self._pause_or_resume_reading()

    def _take_turn(self) -> None:
        """Handle queued frames, or the received bytes: one frame while the client is unauthorized."""
        self._awaits_turn = False
        if self._queued_frames:
            self._handle_queued_frames()
            return
        while self._unsplit and not self.disconnected and self._may_accept_request():
            wanted = len(self._unsplit) if self.is_authorized else self._reader.missing_bytes
            data = bytes(self._unsplit[:wanted])
            del self._unsplit[:wanted]
            self._request_memory.adjust_held_bytes(-len(data))
            self._receive_bytes(data)
            if not self._reader.buffered_bytes:
                break
        self._pause_or_resume_reading()

    def _may_accept_request(self) -> bool:
        return len(self._response_slots) < self._requests_in_flight_max and self._writable

    def _handle_frame(self, frame: bytes) -> int:
        """Handle a frame; return the bytes that count against `_BYTES_PER_TURN`."""
        slot = ResponseSlot.__new__(ResponseSlot)
        slot.connection, slot.frame_bytes, slot.response = self, len(frame), None
        self._response_slots.append(slot)
        fast_path = self._fast_path
        try:
            if (
                fast_path is None
                or len(self._response_slots) > 1
                or len(frame) >= LARGE_WRITE_BYTES
                or not fast_path.try_execute(frame, self, slot.respond, self.last_active_s)
            ):
                self._handler.handle(frame, self, slot.respond)
        except Exception as failure:
            self.handler_failed(failure)
        return len(frame) + len(slot.response or b"") // _RESPONSE_BYTES_PER_BYTE  # type: ignore[redundant-expr]

    def handler_failed(self, failure: Exception) -> None:
        """Close the connection because its request is malformed or because of an internal error."""
        if isinstance(failure, CloseConnection):
            self._metrics.count("frames_refused", failure.reason)
            if failure.advice:
                self._listener.warn_client(failure.advice, self.peer)
            self.close(failure.reason, str(failure))
            return
        _logger.error("Internal error while handling a frame. The connection is closed.", exc_info=failure)
        self.close("internal_error", "handling a frame failed")

    def _flush(self) -> None:
        """Write the ready responses at the head of the queue."""
        slots = self._response_slots
        if self.disconnected or not slots or (answers := slots[0].response) is None:
            return
        assert self._transport is not None
        slots.popleft().release_memory()
        if slots and slots[0].response is not None:
            ready = [answers]
            while slots and (response := slots[0].response) is not None:
                slots.popleft().release_memory()
                ready.append(response)
            answers = b"".join(ready)
        if not self._transport.is_closing():
            sent = 0
            if self._file >= 0 and not self._transport.get_write_buffer_size():
                # The transport has no unsent bytes, so send directly; the transport sends the rest.
                sent = _send_now(self._file, answers)
            if sent < len(answers):
                self._transport.write(answers[sent:] if sent else answers)
        if not slots and self._request_memory.draining:
            self._listener.connection_idle()

    def set_handler(self, handler: FrameHandler) -> None:
        """Pass all further frames to a handler."""
        self._handler = handler
        self._fast_path = getattr(handler, "fast_path_executor", None)
        # True if the client is allowed and, where a login is required, has logged in.
        self.is_authorized, limits = handler.is_authorized, self._limits
        self._frame_bytes_max = limits.frame_bytes_max if self.is_authorized else limits.login_bytes_max
        self._reader.frame_bytes_max = self._frame_bytes_max
        self._limit_receive_buffer()

    def _limit_receive_buffer(self) -> None:
        get = getattr(self._transport, "get_extra_info", None)
        if get is not None and (self.sasl_authenticator is not None or get("sslcontext") is not None):
            limit_receive_buffer(get("socket"), is_authorized=self.is_authorized)

    @property
    def peer(self) -> str:
        """The client's address, for logs."""
        return peer_address(self._transport)

    # Back-pressure.

    def _pause_or_resume_reading(self) -> None:
        """Pause or resume reading according to the limits."""
        assert self._transport is not None
        if self.disconnected or self._transport.is_closing():
            return
        if is_full := self._request_memory.is_full:
            self._request_memory.waiting.add(self)
        may_accept = self._may_accept_request()
        waits = self._queued_frames or self._unsplit
        if waits and may_accept and not self._awaits_turn:
            self._awaits_turn = True
            turns = self._listener.untrusted_work if self._unsplit else self._listener.pipelined_work
            turns.add(self.network, self._take_turn)
        read_on = may_accept and not waits and not is_full and not self._draining
        if read_on != self._reading:
            self._reading = read_on
            (self._transport.resume_reading if read_on else self._transport.pause_reading)()

    def on_memory_available(self) -> None:
        """Resume reading: the request memory has free bytes again."""
        self._handle_queued_frames()

    # Closing.

    def timeout_reason(self, now_s: float, now_ms: int) -> str | None:
        """Return the reason for closing a timed-out connection, or None; takes loop and wall-clock time."""
        if self._trust is not None and not self._trust.is_valid(now_ms):
            return "certificate_revoked"
        if self.partial_bytes and now_s - self._partial_since_s > self._limits.frame_s:
            return "slow_frame"
        if not self._writable and now_s - self._unwritable_since_s > self._limits.reading_s:
            return "slow_reader"
        if not self._response_slots and now_s - self.last_active_s > self._limits.connection_idle_s:
            return "idle"
        login = self.sasl_authenticator
        return None if login is None else login.timeout_reason(now_s, self)

    def abort_if_stalled(self, now_s: float) -> None:
        """Abort a closed connection whose client does not read the remaining bytes."""
        if self._closing_reason is not None and now_s - self._closing_since_s > self._limits.close_s:
            assert self._transport is not None
            self._transport.abort()

    @property
    def busy(self) -> bool:
        """True while a request waits for its response."""
        return bool(self._response_slots)

    def evict(self) -> None:
        """Close at once, because another client needs the connection."""
        self.close("too_many_connections", "another client needs the connection")
        cast(asyncio.Transport, self._transport).abort()

    def close(self, reason: str, message: str = "") -> None:
        """Close after the written bytes are sent; `reason` is a metric label, `message` is logged."""
        _logger.debug("Closing a connection: %s", message or reason)
        if self._closing_reason is None:
            self._closing_reason = reason
            self._closing_since_s = self._loop.time()
        self.disconnected = True
        assert self._transport is not None
        self._transport.close()

    def stop_reading(self) -> None:
        """Stop accepting requests; requests in progress still get their responses."""
        self._draining = True
        self._request_memory.adjust_held_bytes(-sum(map(len, self._queued_frames)) - len(self._unsplit))
        self._queued_frames.clear()
        self._unsplit.clear()
        self._pause_or_resume_reading()
