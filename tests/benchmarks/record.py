"""Record the persister traffic of an unmodified broker under workloads of real share consumers.

    python -m tests.benchmarks.record [--broker 4.4.0] [WORKLOAD ...]

The broker advertises the address of a recording proxy to brokers. The broker's persister sends its requests
for Kafka's own coordinator through this proxy.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.java_clients import consumer_arguments, produce_records
from tests.benchmarks.recorder import TrafficRecorder
from tests.benchmarks.recording import (
    FOLDER,
    RequestRecording,
    RequestShape,
    load_recordings,
    recording_path,
    save_recording,
)
from tests.kafka.broker import new_cluster
from tests.kafka.built_in import STATE_PARTITIONS, STATE_TOPIC
from tests.kafka.client import KafkaClient
from tests.kafka.jars import RELEASES, SHIPPED_BROKER_JVM, SHIPPED_CLIENT_JVM, KafkaJars, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess, wait_until
from tests.kafka.rig import start_brokers
from tests.kafka.tcp_proxy import TcpProxy


class ConsumerWorkload(NamedTuple):
    """The share consumers during a recording, and the records that they consume."""

    name: str
    commit: str
    partitions: int
    consumers: int = 1
    groups: int = 1
    topics: int = 1
    records: int = 60_000
    seconds: float = 12.0
    types: str = "A"
    requests_max: int = 2_500
    brokers: int = 1

    @property
    def topic_names(self) -> list[str]:
        return [f"{self._name_prefix}-topic-{number}" for number in range(self.topics)]

    @property
    def _name_prefix(self) -> str:
        return self.name.replace(",", "").replace(" ", "-")

    @property
    def group_names(self) -> list[str]:
        return [f"{self._name_prefix}-group-{number}" for number in range(self.groups)]

    def description(self) -> str:
        """Return a description of the workload."""
        return (
            f"share groups: {self.groups}, consumers in each: {self.consumers}, topics: {self.topics}, "
            f"partitions of each: {self.partitions}, commit: {self.commit}, acknowledgements in turn: "
            f"{self.types}, brokers: {self.brokers}"
        )


WORKLOADS = {
    workload.name: workload
    for workload in (
        ConsumerWorkload("bulk", "auto", partitions=6, consumers=2, records=600_000),
        ConsumerWorkload("commit each poll", "poll", partitions=6, consumers=2, records=600_000),
        ConsumerWorkload("commit each record, 1 consumer", "record", partitions=1),
        ConsumerWorkload("commit each record, 8 consumers", "record", partitions=1, consumers=8),
        ConsumerWorkload("commit each record, 32 consumers", "record", partitions=1, consumers=32),
        ConsumerWorkload("release and reject", "record", partitions=2, consumers=4, types="AAARAAJ"),
        ConsumerWorkload("many groups", "poll", partitions=4, groups=20),
        ConsumerWorkload("leader changes", "poll", partitions=6, consumers=2, brokers=3, seconds=30.0),
        ConsumerWorkload(
            "cold start", "poll", partitions=200, groups=10, topics=5, records=0, requests_max=30_000
        ),
    )
}


_UNLIMITED = 10**12
# After this number of seconds without a request, the recording is complete.
_QUIET_S = 15.0
_RECORDING_S_MAX = 400.0
# The recording of leader changes begins to restart brokers after this number of requests.
_REQUESTS_MIN = 20


class RecordingRig:
    """Brokers behind recording proxies."""

    def __init__(self, stack: ExitStack, jars: KafkaJars, folder: Path, brokers: int) -> None:
        """Start the brokers; they stop when the stack is closed."""
        self.jars = jars
        self.recorder = TrafficRecorder()
        self._folder = folder
        self._cluster = new_cluster(brokers)
        ports = free_ports(brokers)
        for member, port in zip(self._cluster.members, ports, strict=True):
            proxy = TcpProxy(port, member.internal_port, self.recorder.record_connection)
            stack.callback(proxy.close)
        self.brokers = start_brokers(
            stack, jars, folder, self._cluster, advertised_ports=ports, jvm=SHIPPED_BROKER_JVM
        )
        self.client = KafkaClient(jars, self._cluster.bootstrap, folder)
        stack.callback(self.client.close)
        # If this topic exists, brokers send requests to its leaders without FindCoordinator.
        self.client.create_topic(STATE_TOPIC, partitions=STATE_PARTITIONS)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def prepare(self, workload: ConsumerWorkload) -> None:
        """Create topics and groups, and produce the records."""
        for topic in workload.topic_names:
            self.client.create_topic(topic, partitions=workload.partitions)
            if workload.records:
                small_batches = workload.commit == "record"
                produce_records(
                    self.jars, self.bootstrap, topic, workload.records, small_batches=small_batches
                )
        for group in workload.group_names:
            self.client.set_group_config(group, {"share.auto.offset.reset": "earliest"})

    def record(self, workload: ConsumerWorkload) -> list[RequestShape]:
        """Run a workload and return the requests of the brokers."""
        self.prepare(workload)
        consumers = self._start_consumers(workload)
        self.recorder.begin(workload.requests_max)
        consumers.start()
        try:
            wait_until(
                lambda: self.recorder.count >= _REQUESTS_MIN, seconds=120, what="the brokers send requests"
            )
            if workload.brokers > 1:
                self.change_leaders()
            wait_until(
                lambda: not consumers.running or self._is_done(),
                seconds=_RECORDING_S_MAX,
                what=f"the end of {workload.name}",
            )
        finally:
            consumers.kill()
        return self.recorder.shapes()

    def _is_done(self) -> bool:
        return self.recorder.full or self.recorder.seconds_since_last() > _QUIET_S

    def _start_consumers(self, workload: ConsumerWorkload) -> ChildProcess:
        arguments = consumer_arguments(
            self.bootstrap,
            workload.topic_names,
            workload.group_names,
            consumers=workload.consumers,
            records=_UNLIMITED,
            seconds=workload.seconds,
            commit=workload.commit,
            types=workload.types,
        )
        command = self.jars.java_command(*arguments, jvm=SHIPPED_CLIENT_JVM)
        return ChildProcess("share consumers", command, self._folder / "consumers.log")

    def change_leaders(self) -> None:
        """Restart all brokers except the first, so that their partitions' leaders change twice."""
        for broker in self.brokers[1:]:
            broker.stop()
            broker.start()


def main() -> int:
    """Record the workloads that the command line names, by default all workloads."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.record", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {'; '.join(WORKLOADS)}")
    parser.add_argument("--broker", choices=RELEASES, default=RELEASES[-1])
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    wanted = [WORKLOADS[name] for name in options.workloads or WORKLOADS]
    jars = fetch_jars(options.broker)
    # Workloads with the same number of brokers share a cluster.
    for brokers in sorted({workload.brokers for workload in wanted}):
        with (
            tempfile.TemporaryDirectory(prefix="share-coordinator-record-") as folder,
            ExitStack() as stack,
        ):
            rig = RecordingRig(stack, jars, Path(folder), brokers)
            for workload in wanted:
                if workload.brokers == brokers:
                    _save_recording(workload, rig.record(workload), options.broker)
    return 0


def _save_recording(workload: ConsumerWorkload, shapes: list[RequestShape], release: str) -> None:
    about = {
        "workload": workload.name,
        "broker": release,
        "coordinator": f"Kafka {release}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "requests": len(shapes),
        "how": workload.description(),
    }
    recording = RequestRecording(about, shapes)
    path = recording_path(workload.name, release)
    save_recording(recording, path)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {format_counts(recording)}", flush=True)
    (FOLDER / "README.md").write_text(readme_text(load_recordings()))


def readme_text(recordings: Sequence[RequestRecording]) -> str:
    """Return the text of the README, with the origin of each recording."""
    lines = [
        "# Recorded traffic",
        "",
        "Requests that the persister of an unmodified broker sent while real share consumers worked, without",
        "names and payload; [recording.py](../recording.py) describes the format.",
        "`make bench ARGS='--rows recorded'` replays them.",
        "",
        "Made by `python -m tests.benchmarks.record --broker RELEASE [WORKLOAD ...]`, which also writes this",
        "page. It needs Java and Maven.",
        "",
        "| workload | broker | coordinator | date | recorded | how |",
        "|---|---|---|---|---|---|",
    ]
    for each in recordings:
        about = each.about
        cells = (about[name] for name in ("workload", "broker", "coordinator", "date"))
        lines.append(f"| {' | '.join(cells)} | {format_counts(each)} | {about['how']} |")
    return "\n".join(lines) + "\n"


def format_counts(recording: RequestRecording) -> str:
    """Return a text with three counts: requests, share-partitions, requests that repeat a share-partition."""
    keys = {key for shape in recording.shapes for key, _ in shape.keyed_entries()}
    repeated = sum(
        1
        for shape in recording.shapes
        if len(named := [key for key, _ in shape.keyed_entries()]) > len(set(named))
    )
    return f"{len(recording.shapes):,} requests, {len(keys):,} share-partitions, {repeated:,} with repetition"


if __name__ == "__main__":
    raise SystemExit(main())
