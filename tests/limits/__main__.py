"""`python -m tests.limits`: what hostile connections cost other clients, kind by kind.

A coordinator with TLS and SASL is attacked over its Kafka port and its HTTP port. Measured: the latency of a
broker and of a probe, the memory of the process, and how much of it is left 30 s after the attack.
"""

import argparse
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection
from typing import NamedTuple

from tests.benchmarks.machine import resident_bytes
from tests.benchmarks.start_systems import our_process
from tests.certificates import Authority
from tests.kafka.coordinator import CoordinatorProcess
from tests.limits import frames
from tests.limits.attacks import HTTP, KAFKA, LISTED, handshake_frames, untrusting_context

P999_MS_MAX = 50.0
GROWTH_MB_MAX = 256.0
RELEASED_MB_MAX = 32.0
RELEASE_S = 30.0
_PAUSE_S = 0.002
_HEADINGS = (
    f"{'kind':18}{'requests':>9}{'broker p99.9':>14}{'probe p99.9':>14}{'growth MB':>12}{'left MB':>10}"
)
_USERS = "broker=broker-secret\nguest=guest-secret\n"


class Cost(NamedTuple):
    """What an attack of one kind cost."""

    kind: str
    requests: int
    broker_p999_ms: float
    probe_p999_ms: float
    growth_mb: float
    left_mb: float

    def faults(self) -> list[str]:
        """Return which bounds it broke."""
        found = []
        if self.broker_p999_ms > P999_MS_MAX:
            found.append(f"p99.9 of a broker is {self.broker_p999_ms:.0f} ms")
        if self.probe_p999_ms > P999_MS_MAX:
            found.append(f"p99.9 of a probe is {self.probe_p999_ms:.0f} ms")
        if self.growth_mb > GROWTH_MB_MAX:
            found.append(f"memory grew by {self.growth_mb:.0f} MB")
        if self.left_mb > RELEASED_MB_MAX:
            found.append(f"{self.left_mb:.0f} MB were not released")
        return found

    def line(self) -> str:
        """Return a row of the table."""
        return (
            f"{self.kind:18}{self.requests:9}{self.broker_p999_ms:14.1f}{self.probe_p999_ms:14.1f}"
            f"{self.growth_mb:12.0f}{self.left_mb:10.0f}"
        )


class Clients:
    """A broker that stays connected, and a probe that connects anew for each request."""

    def __init__(self, process: CoordinatorProcess) -> None:
        self._process = process
        self._running = True
        self.broker_ms: list[float] = []
        self.probe_ms: list[float] = []
        self._threads = [threading.Thread(target=run) for run in (self._broker, self._probe)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both."""
        self._running = False
        for thread in self._threads:
            thread.join()

    def _broker(self) -> None:
        plain = create_connection(("127.0.0.1", self._process.port), timeout=60)
        with untrusting_context().wrap_socket(plain) as connection:
            login = handshake_frames(LISTED)
            first = 4 + int.from_bytes(login[:4], "big")
            for part in (login[:first], login[first:]):
                connection.sendall(part)
                read_response(connection)
            request = frames.with_keys([b"g:AAECAwQFBgcICQoLDA0ODw:0"])
            while self._running:
                began_s = time.perf_counter()
                connection.sendall(request)
                read_response(connection)
                self.broker_ms.append((time.perf_counter() - began_s) * 1000)
                time.sleep(_PAUSE_S)

    def _probe(self) -> None:
        while self._running:
            began_s = time.perf_counter()
            connection = HTTPConnection("127.0.0.1", self._process.http_port, timeout=10)
            try:
                connection.request("GET", "/livez")
                answered = connection.getresponse().status == 200
            except OSError:
                answered = False
            finally:
                connection.close()
            # A probe without an answer is as bad as a late one.
            self.probe_ms.append((time.perf_counter() - began_s) * 1000 if answered else 10_000.0)
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


def settings_of(folder: Path) -> dict[str, str]:
    """Return the settings of a coordinator with TLS, logins and tokens."""
    server = Authority(folder / "authority").issue("coordinator")
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


def measure(process: CoordinatorProcess, kind: str, count: int, seconds: float) -> Cost:
    """Attack, and return what it cost."""
    pid = process.process.pid
    port = process.http_port if kind in HTTP else process.port
    before = highest = resident_bytes(pid)
    clients = Clients(process)
    command = [sys.executable, "-m", "tests.limits.attacks", kind, str(port), str(count), str(seconds)]
    with subprocess.Popen(command) as attacker:
        while attacker.poll() is None:
            highest = max(highest, resident_bytes(pid))
            time.sleep(0.1)
    clients.stop()
    released_by_s = time.monotonic() + RELEASE_S
    while (left := resident_bytes(pid) - before) > RELEASED_MB_MAX * 1e6 and time.monotonic() < released_by_s:
        time.sleep(0.5)
    return Cost(
        kind,
        len(clients.broker_ms),
        p999(clients.broker_ms),
        p999(clients.probe_ms),
        (highest - before) / 1e6,
        left / 1e6,
    )


def p999(values: list[float]) -> float:
    """Return the 99.9th percentile."""
    return sorted(values)[int(len(values) * 0.999)]


def main() -> int:
    """Measure all kinds, print a table, and return 1 if a bound was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.limits", description=__doc__)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("kinds", nargs="*", default=[*KAFKA, *HTTP])
    options = parser.parse_args()
    print(f"{options.connections} connections of each kind, {options.seconds:g} s")
    print(_HEADINGS)
    faults = []
    with tempfile.TemporaryDirectory(prefix="share-coordinator-limits-") as name:
        folder = Path(name)
        with our_process(folder / "attacked", settings_of(folder)) as process:
            for kind in options.kinds:
                cost = measure(process, kind, options.connections, options.seconds)
                print(cost.line(), flush=True)
                faults += [f"{kind}: {fault}" for fault in cost.faults()]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
