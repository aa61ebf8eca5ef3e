"""A TCP proxy between processes of a test, which simulates network faults on its connections."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Flag, auto

_HERE = "127.0.0.1"


class Direction(Flag):
    """The directions of a connection, from its client to its server and back."""

    REQUESTS = auto()
    RESPONSES = auto()
    BOTH = REQUESTS | RESPONSES


class _ProxyDirection:
    """One direction of a proxy; while `open` is set, data is forwarded `delay_s` after arrival."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.delay_s = 0.0


class TcpProxy:
    """A proxy that forwards connections from one port to another, and can cut or delay them.

    While a direction is cut, data and FINs are not forwarded, as if a firewall dropped packets. New
    connections succeed, but their data is not forwarded either.
    """

    def __init__(
        self, port: int, to_port: int, observe: Callable[[], Callable[[bytes], None]] | None = None
    ) -> None:
        """Listen at `port` and forward connections to `to_port`, both on the loopback address.

        `observe` is called for each connection, and returns a function that gets the data from the client.
        """
        self.port = port
        self._to_port = to_port
        self._observe = observe
        self._ways = {Direction.REQUESTS: _ProxyDirection(), Direction.RESPONSES: _ProxyDirection()}
        self._closing = threading.Event()
        self._lock = threading.Lock()
        # The sockets of the client's end and the server's end of each connection.
        self._connections: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server((_HERE, port), backlog=100)
        self._start_thread(self._accept_clients)

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Stop forwarding."""
        for each in direction:
            self._ways[each].open.clear()

    def delay(self, seconds: float, direction: Direction = Direction.BOTH) -> None:
        """Delay the forwarding of each received chunk by `seconds`."""
        for each in direction:
            self._ways[each].delay_s = seconds

    def half_open(self) -> None:
        """Cut both directions, and close the server's end of each connection. The client's end stays open."""
        self.cut()
        with self._lock:
            for _, there in self._connections:
                with suppress(OSError):
                    there.shutdown(socket.SHUT_RDWR)

    def end_faults(self) -> None:
        """Forward without faults; data that arrived during the faults is forwarded now."""
        for way in self._ways.values():
            way.delay_s = 0.0
            way.open.set()

    def close(self) -> None:
        """Stop accepting, and wait until all connections have ended.

        The client or the server must close each connection before.
        """
        self._closing.set()
        self.end_faults()
        # Only a shutdown of the listening socket interrupts `accept`.
        self._listening.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        self._listening.close()

    def _start_thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            thread.start()
            self._threads.append(thread)
        return thread

    def _accept_clients(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                self._start_thread(self._connect_target, here)

    def _connect_target(self, here: socket.socket) -> None:
        with here, suppress(OSError), socket.create_connection((_HERE, self._to_port)) as there:
            with self._lock:
                self._connections.add((here, there))
            back = self._start_thread(self._copy_stream, there, here, self._ways[Direction.RESPONSES])
            receive = self._observe() if self._observe is not None else None
            self._copy_stream(here, there, self._ways[Direction.REQUESTS], receive)
            back.join()
            with self._lock:
                self._connections.discard((here, there))

    def _copy_stream(
        self,
        source: socket.socket,
        sink: socket.socket,
        way: _ProxyDirection,
        receive: Callable[[bytes], None] | None = None,
    ) -> None:
        with suppress(OSError):
            data = b"-"
            while data:
                data = source.recv(1 << 16)
                way.open.wait()
                if way.delay_s:
                    self._closing.wait(way.delay_s)
                if data:
                    if receive is not None:
                        receive(data)
                    sink.sendall(data)
        way.open.wait()
        # When one direction of a connection ends, end the other direction too.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
