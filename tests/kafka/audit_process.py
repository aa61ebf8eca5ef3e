"""Run a process that audits a coordinator's journal periodically and serves the results as metrics."""

from pathlib import Path

from tests.kafka.ports import free_ports
from tests.kafka.processes import PROGRAM, ChildProcess


class AuditProcess(ChildProcess):
    """`share-coordinator recovery audit --every`, which serves its metrics at `port`."""

    def __init__(self, journal: Path, *, every: str, log: Path) -> None:
        """Prepare audits of `journal` in intervals of `every`, such as "1s"; nothing is started."""
        (self.port,) = free_ports(1)
        command = [PROGRAM, "recovery", "audit", "--from", f"journal:{journal}", "--every", every]
        command += [
            "--to",
            str(log.with_suffix(".results")),
            "--metrics-listen",
            f"127.0.0.1:{self.port}",
            "--processes",
            "1",
        ]
        super().__init__("audits", command, log)
