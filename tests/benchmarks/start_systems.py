"""Start the measured coordinators with local state: this project's, and Kafka's in a broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path

from tests.benchmarks.commits import CommitBuild
from tests.benchmarks.system_under_test import PARTITIONS, TOPICS, SystemUnderTest
from tests.kafka.built_in import prepare_coordinator
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import RELEASES, REPOSITORY, SHIPPED_BROKER_JVM, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.rig import built_in_rig
from tests.kafka.served_process import INSTALLED, ProgramBuild

NEWEST = RELEASES[-1]
TOPIC_IDS = tuple(md5(b"topic %d" % number).digest() for number in range(TOPICS))
# Runs the coordinator without its compiled module.
_PURE_PYTHON = {"SHARE_COORDINATOR_PURE_PYTHON": "1"}


@contextmanager
def start_coordinator(
    folder: Path, sync: str, *, commit: CommitBuild | None = None, pure_python: bool = False
) -> Iterator[SystemUnderTest]:
    """Run a coordinator of this tree or of another commit, with default settings except journal.sync."""
    build, package = (commit.build, commit.package) if commit else (INSTALLED, REPOSITORY / "coordinator")
    if pure_python:
        build = build._replace(environment={**build.environment, **_PURE_PYTHON})
    with coordinator_process(folder, {"journal.sync": sync}, build) as process:
        yield SystemUnderTest(
            f"{commit.name if commit else 'ours'}, sync={sync}",
            "127.0.0.1",
            process.port,
            TOPIC_IDS,
            pid=process.process.pid,
            log=sync,
            commit=commit.name if commit else "",
            package=package,
            settings=f"defaults, journal.sync={sync}",
        )


@contextmanager
def coordinator_process(
    folder: Path, settings: dict[str, str], build: ProgramBuild = INSTALLED
) -> Iterator[CoordinatorProcess]:
    """Run a coordinator with these settings."""
    port, http_port = free_ports(2)
    folder.mkdir(exist_ok=True)
    process = CoordinatorProcess(folder, port=port, http_port=http_port, settings=settings, build=build)
    process.start()
    try:
        yield process
    finally:
        if process.process.running:
            process.stop()


@contextmanager
def start_kafka(folder: Path) -> Iterator[SystemUnderTest]:
    """Run a broker with its own coordinator, with its defaults and the JVM options of its own scripts."""
    folder.mkdir()
    with built_in_rig(fetch_jars(NEWEST), folder, jvm=SHIPPED_BROKER_JVM) as rig:
        ready = [
            prepare_coordinator(rig, topic=f"bench-{number}", partitions=PARTITIONS)
            for number in range(TOPICS)
        ]
        # The client would take memory and CPU time from the measured systems.
        rig.client.close()
        yield SystemUnderTest(
            f"Kafka {NEWEST}",
            ready[0].host,
            ready[0].port,
            [each.topic_id for each in ready],
            pid=rig.broker.process.pid,
            settings="defaults, one broker, no fsync; JVM as its own scripts start it: "
            + " ".join(["-Xmx1g -Xms1g", *SHIPPED_BROKER_JVM.options[2:]]),
        )
