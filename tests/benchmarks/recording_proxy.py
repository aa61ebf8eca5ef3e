"""Record a persister's requests with a TCP proxy at a broker's advertised inter-broker address.

Like deploy/haproxy, the proxy routes persister connections to the coordinator, and others to the broker.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tests.benchmarks.recorder import TrafficRecorder

_HERE = "127.0.0.1"
# The client id follows the frame size, API key, version, correlation id and length of the client id.
_CLIENT_ID_AT = 14
_PERSISTER = b"Persister-client-"
_CHUNK_BYTES = 1 << 16


class RecordingProxy:
    """Forwards connections until it is closed. Each connection has two threads."""

    def __init__(
        self, port: int, *, broker_port: int, coordinator_port: int, recorder: TrafficRecorder
    ) -> None:
        """Listen at `port`; route persister connections to `coordinator_port`, others to `broker_port`."""
        self._broker_port = broker_port
        self._coordinator_port = coordinator_port
        self._recorder = recorder
        self._listening = socket.create_server((_HERE, port), backlog=100)
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections. Open connections end when a peer closes them."""
        self._listening.close()

    def _accept_connections(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._forward_connection, args=(client,), daemon=True).start()

    def _forward_connection(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = b""
            while len(head) < _CLIENT_ID_AT + len(_PERSISTER) and (data := client.recv(_CHUNK_BYTES)):
                head += data
            is_persister = head[_CLIENT_ID_AT:].startswith(_PERSISTER)
            port = self._coordinator_port if is_persister else self._broker_port
            receive = self._recorder.connection() if is_persister else None
            with socket.create_connection((_HERE, port)) as server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=_copy_stream, args=(server, client, None), daemon=True)
                back.start()
                if receive is not None:
                    receive(head, time.monotonic())
                server.sendall(head)
                _copy_stream(client, server, receive)
                back.join()


def _copy_stream(
    source: socket.socket, sink: socket.socket, receive: Callable[[bytes, float], None] | None
) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            if receive is not None:
                receive(data, time.monotonic())
            sink.sendall(data)
    # If one direction is closed, close the other direction too.
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
