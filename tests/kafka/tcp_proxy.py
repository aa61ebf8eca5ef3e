"""A TCP way between processes of a test that can be cut, as by a rule of a firewall: nobody is told."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_HERE = "127.0.0.1"


class TcpProxy:
    """Leads connections from one port to another. While it is cut, what is sent waits, in both directions."""

    def __init__(self, port: int, to_port: int) -> None:
        """Listen at `port`; whoever is there is led to `to_port`, both on this machine."""
        self._to_port = to_port
        self._open = threading.Event()
        self._open.set()
        self._listening = socket.create_server((_HERE, port), backlog=100)
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def cut(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything through, also what waited."""
        self._open.set()

    def close(self) -> None:
        """Accept nobody any more, and wait until all connections are over: one end of each must be gone."""
        self.mend()
        # Only that wakes up who waits for the next one.
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
        # The other direction ends with this one.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
