"""Run the relay as a process, with the installed command."""

from collections.abc import Mapping
from pathlib import Path

from tests.kafka.served_process import INSTALLED, ProgramBuild, ServedProcess


class RelayProcess(ServedProcess):
    """A `share-coordinator relay` in front of one broker."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        http_port: int,
        broker_port: int,
        coordinator_port: int,
        settings: Mapping[str, str] | None = None,
        build: ProgramBuild = INSTALLED,
    ) -> None:
        """Prepare a relay that listens at `port`, without starting it."""
        self.port = port
        arguments = [
            "relay",
            *("--relay-listen", f"127.0.0.1:{port}"),
            *("--relay-http", f"127.0.0.1:{http_port}"),
            *("--relay-broker", f"127.0.0.1:{broker_port}"),
            *("--relay-coordinator", f"127.0.0.1:{coordinator_port}"),
        ]
        log = directory / "relay.log"
        super().__init__("share-coordinator relay", arguments, settings or {}, log, http_port, build)

    def metric(self, name: str) -> float:
        """Return the value of a relay metric, or 0 if the metric is missing.

        `name` is the metric's name without the prefix `share_coordinator_relay_`, with labels as in the
        exposition format.
        """
        for line in self.get("/metrics")[1].decode().splitlines():
            metric, _, value = line.rpartition(" ")
            if metric == f"share_coordinator_relay_{name}":
                return float(value)
        return 0.0
