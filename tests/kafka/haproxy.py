"""Run HAProxy with deploy/haproxy/haproxy.cfg unchanged, on ports chosen by a test."""

import socket
from collections.abc import Sequence
from pathlib import Path

from tests.kafka.jars import REPOSITORY
from tests.kafka.processes import ChildProcess
from tests.kafka.toolchain import program_path

HAPROXY_CFG = REPOSITORY / "deploy" / "haproxy" / "haproxy.cfg"


class HAProxy:
    """An HAProxy in front of one broker. HAProxy logs a line for each closed connection."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        broker_port: int,
        coordinator_port: int,
        other_coordinator_ports: Sequence[int] = (),
    ) -> None:
        """Prepare an HAProxy that listens at `port`, without starting it."""
        self.port = port
        program = program_path("haproxy")
        assert program is not None, "haproxy is not installed"
        self.process = ChildProcess(
            "HAProxy",
            # -db keeps HAProxy in the foreground, so that the test can end the process.
            [program, "-db", "-f", str(HAPROXY_CFG)],
            directory / "haproxy.log",
            environment={
                "INTERBROKER_BIND": f"127.0.0.1:{port}",
                "BROKER_ADDRESS": f"127.0.0.1:{broker_port}",
                "COORDINATOR_ADDRESS": f"127.0.0.1:{coordinator_port}",
                **{
                    f"OTHER_COORDINATOR_ADDRESS_{number}": f"127.0.0.1:{other_port}"
                    for number, other_port in enumerate(other_coordinator_ports, 1)
                },
            },
        )

    def start(self) -> None:
        """Start HAProxy and wait until it listens."""
        self.process.start()
        self.process.wait_ready(lambda: accepts_connections(self.port), seconds=60)

    def kill(self) -> None:
        self.process.kill()


def accepts_connections(port: int) -> bool:
    """Return whether a process listens on TCP port `port` of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
