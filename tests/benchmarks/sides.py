"""Starts what is measured with state on its own disk: ours, and a broker with Kafka's own coordinator.

And what has no state, and answers all the same: the most that any server on this machine could reach.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.side import Side
from tests.kafka.built_in import ready_coordinator
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import RELEASES, SHIPPED_BROKER_JVM, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess
from tests.kafka.rig import built_in_rig

NEWEST = RELEASES[-1]
# The most that any load asks for in one request.
PARTITIONS = 200
TOPIC_ID = bytes(range(16))


@contextmanager
def ours(folder: Path, sync: str) -> Iterator[Side]:
    """Run a coordinator of ours, with its defaults but for journal.sync."""
    with our_process(folder, {"journal.sync": sync}) as process:
        yield our_side(process, sync)


def our_side(process: CoordinatorProcess, sync: str) -> Side:
    """Return the side that a coordinator is."""
    return Side(
        f"ours, sync={sync}",
        "127.0.0.1",
        process.port,
        TOPIC_ID,
        sync=sync,
        settings=f"defaults, journal.sync={sync}",
    )


@contextmanager
def our_process(folder: Path, settings: dict[str, str]) -> Iterator[CoordinatorProcess]:
    """Run a coordinator with these settings."""
    port, http_port = free_ports(2)
    folder.mkdir(exist_ok=True)
    process = CoordinatorProcess(folder, port=port, http_port=http_port, settings=settings)
    process.start()
    try:
        yield process
    finally:
        if process.process.running:
            process.stop()


@contextmanager
def echo(folder: Path) -> Iterator[Side]:
    """Run a server that answers and does nothing else."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.benchmarks.echo", str(port)]
    process = ChildProcess("echo", command, folder / "echo.log")
    process.start()
    try:
        process.wait_ready(lambda: _accepts(port), seconds=20)
        yield Side("echo", "127.0.0.1", port, TOPIC_ID, settings="answers, and does nothing else")
    finally:
        process.kill()


def _accepts(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def kafka(folder: Path) -> Iterator[Side]:
    """Run a broker with its own coordinator, with its defaults and the JVM options of its own scripts."""
    folder.mkdir()
    with built_in_rig(fetch_jars(NEWEST), folder, jvm=SHIPPED_BROKER_JVM) as rig:
        ready = ready_coordinator(rig, topic="bench", partitions=PARTITIONS)
        # The client has done its part; it would only take memory and time from what is measured.
        rig.client.close()
        yield Side(
            f"Kafka {NEWEST}",
            ready.host,
            ready.port,
            ready.topic_id,
            settings="defaults, one broker, no fsync; JVM as its own scripts start it: "
            + " ".join(["-Xmx1g -Xms1g", *SHIPPED_BROKER_JVM.options[2:]]),
        )
