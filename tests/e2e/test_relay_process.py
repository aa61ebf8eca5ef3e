"""Test that a restart of the relay refuses no connection under socket activation, as with systemd."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.kafka import ChildProcess, free_ports
from tests.kafka.processes import PROGRAM
from tests.unit.relay.fake_peers import FETCH, FETCHER, PERSISTER, WRITE, encode_request

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HERE = "127.0.0.1"

# Holds a listening socket and starts the program with it as file descriptor 3, repeatedly, like systemd.
SYSTEMD = """
import os, socket, sys
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    child = os.fork()
    if child == 0:
        os.dup2(held.fileno(), 3)
        os.set_inheritable(3, True)
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
        os.execv(sys.argv[2], sys.argv[2:])
    print("started", child, flush=True)
    os.waitpid(child, 0)
"""


def open_listener(port: int) -> socket.socket:
    listener = socket.create_server((HERE, port))
    listener.settimeout(60)
    return listener


class RestartedRelay:
    """A relay that inherits its listening socket and is restarted when it ends."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.port, broker_port, coordinator_port, http_port = free_ports(4)
        self.broker = stack.enter_context(open_listener(broker_port))
        self.coordinator = stack.enter_context(open_listener(coordinator_port))
        settings = {
            "listen": f"{HERE}:1",
            "http": f"{HERE}:{http_port}",
            "security-protocol": "PLAINTEXT",
            "broker": f"{HERE}:{broker_port}",
            "coordinator": f"{HERE}:{coordinator_port}",
        }
        flags = [word for name, value in settings.items() for word in (f"--relay-{name}", value)]
        self.process = ChildProcess(
            "systemd",
            [sys.executable, "-c", SYSTEMD, str(self.port), PROGRAM, "relay", *flags],
            directory / "relay.log",
        )
        stack.callback(self.process.kill)

    def start(self) -> None:
        self.process.start()
        self.wait_until_logged("relay on", 1)

    def wait_until_logged(self, text: str, times: int) -> None:
        self.process.wait_ready(lambda: self.process.count_logged(text) >= times, seconds=120)

    def send_signal(self, how: signal.Signals) -> None:
        """End the running relay with a signal; the parent process restarts it at once."""
        log = self.process.log.read_text()
        os.kill(int(log.rpartition("started ")[2].split()[0]), how)

    def connect(self) -> socket.socket:
        return socket.create_connection((HERE, self.port), timeout=120)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RestartedRelay]:
    with ExitStack() as stack:
        yield RestartedRelay(tmp_path, stack)


def receives_bytes(said: bytes, at: socket.socket) -> bool:
    connection, _ = at.accept()
    with closing(connection), connection.makefile("rb") as stream:
        connection.settimeout(60)
        return stream.read(len(said)) == said


def test_connection_during_relay_restart_waits_and_is_forwarded(relay: RestartedRelay) -> None:
    relay.start()
    fetch, write = encode_request(FETCH, FETCHER, b"a body"), encode_request(WRITE, PERSISTER, b"a body")
    for times, how in enumerate((signal.SIGKILL, signal.SIGTERM), 2):
        with relay.connect() as fetcher, relay.connect() as persister:
            fetcher.sendall(fetch)
            persister.sendall(write)
            assert receives_bytes(fetch, relay.broker)
            assert receives_bytes(write, relay.coordinator)
        relay.send_signal(how)
        # The old process is gone, and the new process has not loaded yet.
        relay.wait_until_logged("started", times)
        with relay.connect() as early:
            early.sendall(fetch)
            assert receives_bytes(fetch, relay.broker)
        relay.wait_until_logged("relay on", times)
    assert relay.process.count_logged("stopped") == 1
