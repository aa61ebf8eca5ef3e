"""HAProxy, from deploy/haproxy/haproxy.cfg as it is, on ports that a test chose."""

import socket
from collections.abc import Sequence
from pathlib import Path

from tests.kafka.jars import REPOSITORY
from tests.kafka.processes import ChildProcess
from tests.kafka.toolchain import program_path

HAPROXY_CFG = REPOSITORY / "deploy" / "haproxy" / "haproxy.cfg"


class HAProxy:
    """An HAProxy in front of one broker. Its log has a line for each connection that ended."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        broker_port: int,
        coordinator_port: int,
        other_coordinator_ports: Sequence[int] = (),
    ) -> None:
        """Prepare to listen at `port`; nothing is started."""
        self.port = port
        program = program_path("haproxy")
        assert program is not None, "haproxy is not installed"
        self.process = ChildProcess(
            "HAProxy",
            # -db: in the foreground, so that it is ours to end.
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
        """Start and wait until it listens."""
        self.process.start()
        self.process.wait_ready(lambda: accepts_connections(self.port), seconds=60)

    def kill(self) -> None:
        self.process.kill()


def accepts_connections(port: int) -> bool:
    """Tell whether somebody listens at `port` of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
