"""Run a Kafka broker in combined mode (broker and controller) with the files in deploy/kafka.

The shipped configuration file is used unchanged. Settings that a test must change (ports, directories,
timeouts) are passed with Kafka's option `--override`.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kafka.jars import QUICK_BROKER_JVM, QUICK_JVM, REPOSITORY, Jvm, KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess

SINGLE = REPOSITORY / "deploy" / "kafka" / "single" / "server.properties"
# A template of a configuration file: @K@ stands for the node id of the broker.
ONE_OF_THREE = REPOSITORY / "deploy" / "kafka" / "three" / "broker-K.properties"

_HERE = "127.0.0.1"

# Shorter timeouts than the defaults, and a delivery count limit that records do not reach when tests kill
# processes. The broker session is short enough that a killed broker can register again soon, and long enough
# for a slow broker. Short heartbeat intervals make the group assign partitions to members soon. A short
# record lock makes unacknowledged records available again soon. With a short retry interval, share-partitions
# are initialized soon after a failure.
_TEST_SETTINGS = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    # By default, an idle controller appends a record twice a second, which causes a third of the CPU time
    # of an idle broker.
    "metadata.max.idle.interval.ms": "5000",
    # Three brokers that start at the same time on a busy machine can take longer than a minute.
    "initial.broker.registration.timeout.ms": "300000",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.record.lock.duration.ms": "5000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.initialize.retry.interval.ms": "1000",
    "group.share.delivery.count.limit": "10",
    "offsets.topic.num.partitions": "1",
}


def _random_id() -> str:
    """Return an id in Kafka's format.

    The first character is fixed, because an id that begins with a dash would look like an option.
    """
    return "k" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:]


class ClusterNode(NamedTuple):
    """The node id, ports and directory id of a broker in its cluster."""

    node_id: int
    client_port: int
    internal_port: int
    controller_port: int
    directory_id: str


class ClusterLayout(NamedTuple):
    """The cluster id and all members of a cluster. All brokers of a cluster get the same ClusterLayout."""

    cluster_id: str
    members: Sequence[ClusterNode]

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients: host:port of each member."""
        return ",".join(f"{_HERE}:{member.client_port}" for member in self.members)


def new_cluster(brokers: int = 1) -> ClusterLayout:
    """Return a cluster of `brokers` members, each with its own free ports."""
    members = []
    for node_id in range(1, brokers + 1):
        client_port, internal_port, controller_port = free_ports(3)
        members.append(ClusterNode(node_id, client_port, internal_port, controller_port, _random_id()))
    return ClusterLayout(_random_id(), members)


class Broker:
    """A broker process with its data directory. Ports and data survive kills and restarts."""

    def __init__(
        self,
        jars: KafkaJars,
        directory: Path,
        *,
        interbroker_port: int | None = None,
        cluster: ClusterLayout | None = None,
        node_id: int = 1,
        jvm: Jvm = QUICK_BROKER_JVM,
        overrides: Mapping[str, str] | None = None,
        format_flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Format a data directory below `directory`, without starting the broker.

        The broker advertises `interbroker_port` to brokers: the port of an HAProxy in front of a share
        coordinator. If `interbroker_port` is None, the broker advertises its own port and uses its built-in
        share coordinator. `cluster` is None for a single broker. `overrides` are additional broker settings,
        and `format_flags` are additional arguments of Kafka's storage tool. `environment` are additional
        environment variables of the broker.
        """
        self.jars = jars
        self.directory = directory
        self._cluster = cluster or new_cluster()
        self._member = self._cluster.members[node_id - 1]
        self._overrides = {
            **_TEST_SETTINGS,
            **self._addresses(interbroker_port or self._member.internal_port),
            "log.dirs": str(directory / "data"),
            **({"share.coordinator.state.topic.replication.factor": "1"} if interbroker_port is None else {}),
            **(overrides or {}),
        }
        self._format_flags = format_flags
        self._format_jvm = QUICK_JVM._replace(archived_classes=jvm.archived_classes)
        self._settings = self._settings_file()
        flags = []
        for name, value in self._overrides.items():
            flags += ["--override", f"{name}={value}"]
        self.process = ChildProcess(
            f"Kafka {jars.release}, broker {node_id}",
            jars.java_command("kafka.Kafka", str(self._settings), *flags, jvm=jvm),
            directory / "broker.log",
            environment=environment,
        )
        self._format()

    @property
    def client_port(self) -> int:
        return self._member.client_port

    @property
    def internal_port(self) -> int:
        """The port on which the broker accepts inter-broker connections, regardless of the advertised
        port.
        """
        return self._member.internal_port

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients: host:port of each member."""
        return self._cluster.bootstrap

    def start(self) -> None:
        """Start the broker and wait until it is ready."""
        self.process.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the broker is ready.

        In a cluster, no broker is ready before a majority of the brokers is started.
        """
        self.process.wait_ready(lambda: self.process.count_logged("Kafka Server started"), seconds=180)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as in a power failure."""
        self.process.kill()

    def stop(self) -> None:
        """Stop the broker with a controlled shutdown."""
        self.process.stop(seconds=120)

    def _settings_file(self) -> Path:
        if len(self._cluster.members) == 1:
            return SINGLE
        settings = self.directory / f"broker-{self._member.node_id}.properties"
        settings.write_text(ONE_OF_THREE.read_text().replace("@K@", str(self._member.node_id)))
        return settings

    def _addresses(self, advertised_port: int) -> dict[str, str]:
        member = self._member
        controllers = [f"{_HERE}:{other.controller_port}" for other in self._cluster.members]
        return {
            "controller.quorum.bootstrap.servers": ",".join(controllers),
            "listeners": f"CLIENT://{_HERE}:{member.client_port},INTERNAL://{_HERE}:{member.internal_port},"
            f"CONTROLLER://{_HERE}:{member.controller_port}",
            "advertised.listeners": f"CLIENT://{_HERE}:{member.client_port},"
            f"INTERNAL://{_HERE}:{advertised_port},CONTROLLER://{_HERE}:{member.controller_port}",
        }

    def _format(self) -> None:
        """Format the data directory as `kafka-storage.sh` does, because the script has no `--override`
        option.
        """
        settings = self.directory / "formatted-with.properties"
        overrides = "".join(f"{name}={value}\n" for name, value in self._overrides.items())
        settings.write_text(f"{self._settings.read_text()}\n{overrides}")
        controllers = ",".join(
            f"{member.node_id}@{_HERE}:{member.controller_port}:{member.directory_id}"
            for member in self._cluster.members
        )
        arguments = ["-t", self._cluster.cluster_id, "-c", str(settings), "--feature", "share.version=1"]
        done = self.jars.run(
            "kafka.tools.StorageTool",
            "format",
            "--initial-controllers",
            controllers,
            *arguments,
            *self._format_flags,
            jvm=self._format_jvm,
        )
        assert done.returncode == 0, f"format failed:\n{done.stdout}{done.stderr}"
