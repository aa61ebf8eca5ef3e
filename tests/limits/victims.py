"""Measure the latency of regular clients of a coordinator that is under attack.

The regular clients have another IP address than the attackers, because the coordinator divides its time
between client addresses.
"""

import ssl
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection

from tests.certificates import CertificateAuthority
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.relay import RelayProcess
from tests.limits import frames
from tests.limits.attacks import ALLOWED_TOKEN, handshake_frames, insecure_tls_context

_ADDRESS = ("127.0.0.2", 0)
_PAUSE_S = 0.002
# The latency that is recorded for a probe without a response, in milliseconds.
NO_ANSWER_MS = 10_000.0
_USERS = "broker=broker-secret\nguest=guest-secret\n"


class MeasuredClients:
    """A broker with one connection, and a liveness probe that opens a connection for each request."""

    def __init__(self, process: CoordinatorProcess | RelayProcess) -> None:
        self._process = process
        self._running = True
        self.broker_ms: list[float] = []
        self.probe_ms: list[float] = []
        self._threads = [threading.Thread(target=run) for run in (self._run_broker, self._run_probe)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop both clients."""
        self._running = False
        for thread in self._threads:
            thread.join()

    def _run_broker(self) -> None:
        plain = create_connection(("127.0.0.1", self._process.port), 60, _ADDRESS)
        with insecure_tls_context().wrap_socket(plain) as connection:
            login = handshake_frames(ALLOWED_TOKEN)
            first = 4 + int.from_bytes(login[:4], "big")
            for part in (login[:first], login[first:]):
                connection.sendall(part)
                read_response(connection)
            # A relay recognizes a broker's persister by its client id.
            request = frames.make_find_with_keys([b"g:AAECAwQFBgcICQoLDA0ODw:0"], b"Persister-client-1")
            while self._running:
                began_s = time.perf_counter()
                connection.sendall(request)
                read_response(connection)
                self.broker_ms.append((time.perf_counter() - began_s) * 1000)
                time.sleep(_PAUSE_S)

    def _run_probe(self) -> None:
        while self._running:
            began_s = time.perf_counter()
            connection = HTTPConnection(
                "127.0.0.1", self._process.http_port, NO_ANSWER_MS / 1000, source_address=_ADDRESS
            )
            try:
                connection.request("GET", "/livez")
                answered = connection.getresponse().status == 200
            except OSError:
                answered = False
            finally:
                connection.close()
            self.probe_ms.append((time.perf_counter() - began_s) * 1000 if answered else NO_ANSWER_MS)
            time.sleep(5 * _PAUSE_S)


def read_response(connection: ssl.SSLSocket) -> bytes:
    """Read one response frame."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        received = connection.recv(1 << 16)
        if not received:
            raise ConnectionError("the server closed the connection")
        data += received
    return data


def coordinator_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a coordinator with TLS, logins and tokens."""
    server = CertificateAuthority(folder / "authority").issue_certificate("coordinator")
    users, tokens = folder / "users.properties", folder / "tokens"
    users.write_text(_USERS, "utf-8")
    tokens.write_text("reader read 0123456789abcdef0123456789abcdef\n", "utf-8")
    return {
        "journal.sync": "os",
        "listen.security.protocol": "SASL_SSL",
        "listen.ssl.certificate.location": str(server.certificate),
        "listen.ssl.key.location": str(server.key),
        "listen.sasl.enabled.mechanisms": "PLAIN",
        "listen.sasl.users.file": str(users),
        "listen.allowed.principals": "User:broker",
    }
