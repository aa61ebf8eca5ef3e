"""Our relay as a process, started as a user starts it."""

import http.client
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.kafka.processes import ChildProcess


class RelayProcess:
    """A `share-coordinator relay` in front of one broker. It keeps its ports over kills and starts."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        http_port: int,
        broker_port: int,
        coordinator_port: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare to listen at `port`; nothing is started."""
        self.port = port
        self.http_port = http_port
        program = Path(sys.executable).with_name("share-coordinator")
        self.process = ChildProcess(
            "share-coordinator relay",
            [
                str(program),
                "relay",
                *("--relay-listen", f"127.0.0.1:{port}"),
                *("--relay-http", f"127.0.0.1:{http_port}"),
                *("--relay-broker", f"127.0.0.1:{broker_port}"),
                *("--relay-coordinator", f"127.0.0.1:{coordinator_port}"),
                *(f"--set={name}={value}" for name, value in (settings or {}).items()),
            ],
            directory / "relay.log",
        )

    def start(self) -> None:
        """Start and wait until it says that it is ready."""
        self.process.start()
        self.process.wait_ready(lambda: self.get("/readyz")[0] == 200, seconds=30)

    def kill(self) -> None:
        """End it as a power cut would (kill -9)."""
        self.process.kill()

    def stop(self) -> None:
        """End it in good order (SIGTERM)."""
        self.process.stop(seconds=20)

    def figure(self, name: str) -> float:
        """Return a metric of its own: `name` without prefix, with labels as written. 0: not there."""
        for line in self.get("/metrics")[1].decode().splitlines():
            metric, _, value = line.rpartition(" ")
            if metric == f"sharecoord_relay_{name}":
                return float(value)
        return 0.0

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of its answer over HTTP; (0, b"") while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()
