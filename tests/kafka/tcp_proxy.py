"""Run a TCP proxy between processes of a test, which can stop forwarding silently, like a firewall rule."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_HERE = "127.0.0.1"


class TcpProxy:
    """Forwards connections from one port to another. After `cut()`, sent data waits in both directions."""

    def __init__(self, port: int, to_port: int) -> None:
        """Listen at `port` and forward connections to `to_port`, both on the loopback address."""
        self._to_port = to_port
        self._open = threading.Event()
        self._open.set()
        self._listening = socket.create_server((_HERE, port), backlog=100)
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def cut(self) -> None:
        """Stop forwarding in both directions."""
        self._open.clear()

    def mend(self) -> None:
        """Continue forwarding, including the data that waited."""
        self._open.set()

    def close(self) -> None:
        """Stop accepting, and wait until all connections have ended.

        The client or the server of each connection must have closed it before.
        """
        self.mend()
        # Only a shutdown of the listening socket interrupts `accept`.
        self._listening.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        self._listening.close()

    def _begin(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                self._begin(self._lead, here)

    def _lead(self, here: socket.socket) -> None:
        with here, suppress(OSError), socket.create_connection((_HERE, self._to_port)) as there:
            back = self._begin(self._pump, there, here)
            self._pump(here, there)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        # If one direction is closed, close the other direction too.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
