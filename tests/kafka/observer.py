"""Run `share-coordinator observe` as a process."""

from collections.abc import Mapping
from pathlib import Path

from tests.kafka.ports import free_ports
from tests.kafka.served_process import ServedProcess


class ObserverProcess(ServedProcess):
    """A process of `share-coordinator observe`, which reads the state topic of a cluster.

    The log file of the process is in `directory`.
    """

    def __init__(self, directory: Path, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        """Prepare an observer of the cluster's own share coordinator, without starting it."""
        (http_port,) = free_ports(1)
        arguments = ["observe", "--bootstrap-servers", bootstrap, "--http", f"127.0.0.1:{http_port}"]
        super().__init__("observer", arguments, settings or {}, directory / "observer.log", http_port)
