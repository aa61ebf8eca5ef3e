"""Start and stop a broker, its clients and a coordinator together.

`BuiltInRig` is Kafka alone, with the share coordinator that is built into the broker. Tests use this rig as
the control: it shows Kafka's own behaviour. In `StandaloneRig`, the same broker uses this coordinator:

    share consumer --> broker --persister--> HAProxy --> share-coordinator

`ReplicatedRig` is three brokers, each behind its own HAProxy, and one coordinator for each broker. The
coordinators store state in a topic of that cluster, and a consumer group assigns the shards to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kafka.broker import Broker, ClusterLayout, new_cluster
from tests.kafka.client import KafkaClient
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.haproxy import HAProxy
from tests.kafka.jars import QUICK_BROKER_JVM, Jvm, KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess
from tests.kafka.share_group_tool import ShareGroupTool


@dataclass(frozen=True)
class BuiltInRig:
    """A running broker that uses its built-in share coordinator."""

    broker: Broker
    client: KafkaClient
    share_groups: ShareGroupTool

    @property
    def processes(self) -> list[ChildProcess]:
        return [self.broker.process, self.client.process]


@dataclass(frozen=True)
class StandaloneRig(BuiltInRig):
    """A running broker whose share-group state is stored in this coordinator."""

    haproxy: HAProxy
    coordinator: CoordinatorProcess

    @property
    def processes(self) -> list[ChildProcess]:
        return [*super().processes, self.haproxy.process, self.coordinator.process]


@dataclass(frozen=True)
class ReplicatedRig:
    """Three running brokers with one coordinator for each. The fixture does not start the coordinators."""

    brokers: Sequence[Broker]
    client: KafkaClient
    haproxies: Sequence[HAProxy]
    coordinators: Sequence[CoordinatorProcess]

    @property
    def processes(self) -> list[ChildProcess]:
        return [
            *(broker.process for broker in self.brokers),
            *(haproxy.process for haproxy in self.haproxies),
            *(coordinator.process for coordinator in self.coordinators),
            self.client.process,
        ]


def end_of_logs(rig: BuiltInRig | ReplicatedRig) -> str:
    """Return the end of the log of every process of `rig`."""
    return "\n".join(f"--- {process.log}\n{process.log_tail()}" for process in rig.processes)


@contextmanager
def built_in_rig(
    jars: KafkaJars,
    directory: Path,
    *,
    jvm: Jvm = QUICK_BROKER_JVM,
    overrides: Mapping[str, str] | None = None,
) -> Iterator[BuiltInRig]:
    """Start a broker with its built-in share coordinator; kill it at the end.

    `overrides` are broker settings.
    """
    with ExitStack() as stack:
        broker = Broker(jars, directory, jvm=jvm, overrides=overrides)
        stack.callback(broker.kill)
        broker.start()
        client = _start_client(stack, broker, directory)
        yield BuiltInRig(broker, client, ShareGroupTool(jars, broker.bootstrap))


@contextmanager
def standalone_rig(
    jars: KafkaJars,
    directory: Path,
    *,
    jvm: Jvm = QUICK_BROKER_JVM,
    settings: Mapping[str, str] | None = None,
    with_cluster: bool = False,
) -> Iterator[StandaloneRig]:
    """Start a coordinator, HAProxy and a broker that uses the coordinator; kill all of them at the end.

    With `with_cluster`, the coordinator has the setting bootstrap.servers, so it knows lag and group members.
    """
    cluster = new_cluster()
    if with_cluster:
        settings = {"bootstrap.servers": cluster.bootstrap, **(settings or {})}
    with ExitStack() as stack:
        coordinator = _make_coordinator(stack, directory, settings)
        (broker,), (haproxy,) = _start_cluster_behind_haproxy(
            stack, jars, directory, [coordinator], cluster, jvm
        )
        client = _start_client(stack, broker, directory)
        yield StandaloneRig(broker, client, ShareGroupTool(jars, broker.bootstrap), haproxy, coordinator)


@contextmanager
def replicated_rig(jars: KafkaJars, directory: Path, settings: Mapping[str, str]) -> Iterator[ReplicatedRig]:
    """Start three brokers, and prepare a coordinator for each; kill all of them at the end."""
    with ExitStack() as stack:
        cluster = new_cluster(brokers=3)
        coordinators = [
            _make_replica(stack, directory, cluster, member.node_id, settings) for member in cluster.members
        ]
        brokers, haproxies = _start_cluster_behind_haproxy(stack, jars, directory, coordinators, cluster)
        yield ReplicatedRig(brokers, _start_client(stack, brokers[0], directory), haproxies, coordinators)


def _make_replica(
    stack: ExitStack, directory: Path, cluster: ClusterLayout, node_id: int, settings: Mapping[str, str]
) -> CoordinatorProcess:
    """Return a coordinator, not started yet, for the broker with this id."""
    own = directory / f"coordinator-{node_id}"
    own.mkdir()
    port, http_port = free_ports(2)
    own_settings = {
        "bootstrap.servers": cluster.bootstrap,
        "ownership": "group",
        "broker.id": str(node_id),
        **settings,
    }
    coordinator = CoordinatorProcess(own, port=port, http_port=http_port, log="kafka", settings=own_settings)
    stack.callback(coordinator.kill)
    return coordinator


def _make_coordinator(
    stack: ExitStack, directory: Path, settings: Mapping[str, str] | None = None
) -> CoordinatorProcess:
    port, http_port = free_ports(2)
    coordinator = CoordinatorProcess(directory, port=port, http_port=http_port, settings=settings)
    stack.callback(coordinator.kill)
    coordinator.start()
    return coordinator


def _start_cluster_behind_haproxy(
    stack: ExitStack,
    jars: KafkaJars,
    directory: Path,
    coordinators: Sequence[CoordinatorProcess],
    cluster: ClusterLayout,
    jvm: Jvm = QUICK_BROKER_JVM,
) -> tuple[list[Broker], list[HAProxy]]:
    """Start the brokers of a cluster, each behind an HAProxy for the coordinator of the same index."""
    ports = free_ports(len(cluster.members))
    haproxies = []
    for member, port, coordinator in zip(cluster.members, ports, coordinators, strict=True):
        own = directory / f"haproxy-{member.node_id}"
        own.mkdir()
        haproxy = HAProxy(own, port=port, broker_port=member.internal_port, coordinator_port=coordinator.port)
        stack.callback(haproxy.kill)
        haproxy.start()
        haproxies.append(haproxy)
    return start_brokers(stack, jars, directory, cluster, advertised_ports=ports, jvm=jvm), haproxies


def start_brokers(
    stack: ExitStack,
    jars: KafkaJars,
    directory: Path,
    cluster: ClusterLayout,
    *,
    advertised_ports: Sequence[int] | None = None,
    jvm: Jvm = QUICK_BROKER_JVM,
    overrides: Mapping[str, str] | None = None,
    format_flags: Sequence[str] = (),
) -> list[Broker]:
    """Start all brokers of a cluster, and wait until they are ready; `stack` kills them.

    Brokers advertise `advertised_ports` to each other: the ports of proxies in front of them.
    """
    brokers = []
    for place, member in enumerate(cluster.members):
        own = directory / f"broker-{member.node_id}"
        own.mkdir()
        broker = Broker(
            jars,
            own,
            interbroker_port=None if advertised_ports is None else advertised_ports[place],
            cluster=cluster,
            node_id=member.node_id,
            jvm=jvm,
            overrides=overrides,
            format_flags=format_flags,
        )
        stack.callback(broker.kill)
        # No broker is ready before a majority of brokers runs.
        broker.process.start()
        brokers.append(broker)
    for broker in brokers:
        broker.wait_ready()
    return brokers


def _start_client(stack: ExitStack, broker: Broker, directory: Path) -> KafkaClient:
    client = KafkaClient(broker.jars, broker.bootstrap, directory)
    stack.callback(client.close)
    return client
