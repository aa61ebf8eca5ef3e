"""Run a process that audits or archives a coordinator's journal periodically and serves metrics."""

from pathlib import Path

from tests.kafka.ports import free_ports
from tests.kafka.processes import PROGRAM, ChildProcess


class RecoveryProcess(ChildProcess):
    """A process of `share-coordinator recovery JOB --every`, which serves its metrics at `port`."""

    def __init__(self, job: str, journal: Path, *, every: str, log: Path) -> None:
        """Prepare a process that runs `audit` or `archive` at intervals such as "1s", without starting it."""
        (self.port,) = free_ports(1)
        command = [PROGRAM, "recovery", job, "--from", f"journal:{journal}", "--every", every]
        command += ["--to", str(log.with_suffix(".results")), "--metrics-listen", f"127.0.0.1:{self.port}"]
        super().__init__(job, command, log)
