"""Send Produce requests on a connection that aiokafka has opened, without a task for each request.

For each request, aiokafka wakes two tasks, sets a timeout, and decodes two headers field by field. The
coordinator sends thousands of small requests a second, so this took half of the CPU time of a write.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import cast

from aiokafka.conn import AIOKafkaConnection, CloseReason

from coordinator.cluster.kafka.broker_results import NoResponse, ProduceResult
from coordinator.cluster.kafka.topic_requests import produce_message, read_produce_response
from coordinator.errors import error_text
from protocol.errors import DecodeError, FrameError
from protocol.frames import FrameReader
from protocol.messages import produce, request_header, response_header
from protocol.messages.request_header import RequestHeader

RESPONSE_BYTES_MAX = 16 << 20

_SIZE = Struct(">i")
_CORRELATION_IDS = 1 << 31


class ProduceConnection(asyncio.Protocol):
    """Replaces aiokafka's protocol of an open, idle connection.

    One request may be in flight at a time. Without a Produce request in flight, received bytes are passed to
    aiokafka, which also closes the connection and is notified when it is lost.
    """

    def __init__(
        self,
        connection: AIOKafkaConnection,
        *,
        node: int,
        client_id: str,
        timeout_s: float,
        failed: Callable[[], None],
    ) -> None:
        """Take over a connection. `failed` is called when a request gets no response."""
        self._connection = connection
        self._node = node
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(RESPONSE_BYTES_MAX)
        self._correlation_id = 0
        self._response: asyncio.Future[Mapping[int, ProduceResult]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # aiokafka has no public method that returns the transport.
        self._transport = cast(asyncio.Transport, connection._writer.transport)
        self._replaced = cast(asyncio.Protocol, self._transport.get_protocol())
        self._transport.set_protocol(self)

    def is_open_to(self, address: tuple[str, int] | None) -> bool:
        connection = self._connection
        return not self._transport.is_closing() and (connection.host, connection.port) == address

    def send(
        self, topic_id: bytes, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> "asyncio.Future[Mapping[int, ProduceResult]]":
        """Append one batch to each of these partitions, acks=all; the future may fail with NoResponse."""
        assert self._response is None, "one request is in flight at a time"
        body = produce.encode_request(produce_message(topic_id, batches, timeout_ms), produce.MAX_VERSION)
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        header = request_header.encode(
            RequestHeader(produce.API_KEY, produce.MAX_VERSION, self._correlation_id, self._client_id), 2
        )
        self._response = response = self._loop.create_future()
        self._timer = self._loop.call_later(
            self._timeout_s, self._fail_request, TimeoutError("request timeout")
        )
        self._transport.write(b"".join((_SIZE.pack(len(header) + len(body)), header, body)))
        return response

    def data_received(self, data: bytes) -> None:
        """Complete the request in flight; close the connection after anything else than its response."""
        if self._response is None:
            self._replaced.data_received(data)
            return
        try:
            for frame in self._frames.receive_data(data):
                header, offset = response_header.decode(frame, 0, 1)
                if header.correlation_id != self._correlation_id:
                    raise DecodeError(f"unexpected correlation id {header.correlation_id}")
                answer = produce.decode_response(frame, offset, produce.MAX_VERSION)
                self._complete_response(read_produce_response(answer))
        except (DecodeError, FrameError) as error:
            self._fail_request(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._replaced.connection_lost(exc)
        self._fail_request(exc or ConnectionError("the connection was closed"))

    def eof_received(self) -> bool:
        return False

    def _fail_request(self, error: Exception) -> None:
        """Close the connection: a late response would match no request."""
        self._connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
        self._transport.abort()
        if self._response is not None:
            self._failed()
            why = f"broker {self._node} did not answer: {error_text(error)}"
            self._complete_response(NoResponse(why, sent=True))

    def _complete_response(self, result: Mapping[int, ProduceResult] | NoResponse) -> None:
        response, self._response = self._response, None
        if response is None:
            raise DecodeError("a second response to a request")
        assert self._timer is not None
        self._timer.cancel()
        if response.done():
            # The caller cancelled the request.
            return
        if isinstance(result, NoResponse):
            response.set_exception(result)
        else:
            response.set_result(result)
