"""Our coordinator as a process, started as a user starts it."""

import http.client
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.kafka.processes import ChildProcess


class CoordinatorProcess:
    """A `share-coordinator serve`. It keeps its ports and its data over kills and starts."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        http_port: int,
        advertised_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        log: str = "journal",
    ) -> None:
        """Prepare to serve brokers at `port` and people at `http_port`; nothing is started.

        Brokers are sent to `advertised_port`, if that is another one than `port`.
        """
        self.port = port
        self.http_port = http_port
        self.data = directory / "journal"
        program = Path(sys.executable).with_name("share-coordinator")
        self.process = ChildProcess(
            "share-coordinator",
            [
                str(program),
                "serve",
                *("--listen", f"127.0.0.1:{port}"),
                *("--http", f"127.0.0.1:{http_port}"),
                *("--advertise", f"127.0.0.1:{advertised_port or port}"),
                *("--data-dir", str(self.data)),
                *("--log", log),
                *(f"--set={name}={value}" for name, value in (settings or {}).items()),
            ],
            directory / "coordinator.log",
        )

    def start(self) -> None:
        """Start and wait until it says that it is ready."""
        self.process.start()
        self.process.wait_ready(lambda: self.get("/readyz")[0] == 200, seconds=30)

    def kill(self) -> None:
        """End it as a power cut would (kill -9)."""
        self.process.kill()

    def stop(self) -> None:
        """End it in good order (SIGTERM), which must take less than 30 s."""
        self.process.stop(seconds=30)

    def share_partition(self, group: str, topic_id: str, partition: int) -> dict[str, Any] | None:
        """Return the state that it keeps of a share-partition, as its API shows it; None if it has none."""
        status, body = self.get(f"/api/v1/groups/{quote(group, safe='')}/{topic_id}/{partition}")
        assert status in (200, 404), body
        return json.loads(body) if status == 200 else None

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
