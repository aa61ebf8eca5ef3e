"""Run the share coordinator as a process, with the installed command."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.kafka.ports import free_ports
from tests.kafka.served_process import INSTALLED, ProgramBuild, ServedProcess


class CoordinatorProcess(ServedProcess):
    """A `share-coordinator serve` process. It keeps its ports and data when it is killed or restarted."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        http_port: int | None = None,
        advertised_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        log: str = "journal",
        build: ProgramBuild = INSTALLED,
    ) -> None:
        """Prepare a coordinator that serves brokers at `port` and HTTP at `http_port`, without starting it.

        By default, free ports are chosen. The coordinator advertises `advertised_port` to brokers, by default
        `port`. The directory is created if it is missing.
        """
        port, http_port = port or free_ports(1)[0], http_port or free_ports(1)[0]
        directory.mkdir(exist_ok=True)
        self.port = port
        self.data = directory / "journal"
        arguments = [
            "serve",
            *("--listen", f"127.0.0.1:{port}"),
            *("--http", f"127.0.0.1:{http_port}"),
            *("--advertise", f"127.0.0.1:{advertised_port or port}"),
            *("--data-dir", str(self.data)),
            *("--log", log),
        ]
        output = directory / "coordinator.log"
        super().__init__("share-coordinator", arguments, settings or {}, output, http_port, build)

    def share_partition(self, group: str, topic_id: str, partition: int) -> dict[str, Any] | None:
        """Return the state of a share-partition as the HTTP API shows it; None if it has no state."""
        query = urlencode({"group": group, "topic": topic_id, "partition": partition})
        status, body = self.get(f"/api/v1/share-partition?{query}")
        assert status in (200, 404), body
        return json.loads(body) if status == 200 else None
