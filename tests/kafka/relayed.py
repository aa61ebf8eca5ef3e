"""Run brokers that authenticate to each other, a relay in front of each, and one coordinator for all brokers.

The coordinator advertises the address of the first relay, so all requests of brokers to it pass that relay.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kafka.broker import Broker, new_cluster
from tests.kafka.client import KafkaClient
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.relay import RelayProcess
from tests.kafka.rig import start_brokers
from tests.kafka.secured import BrokerSecurity


@dataclass(frozen=True)
class RelayedRig:
    """Running brokers, each behind a relay, whose share-group state is stored in this coordinator."""

    brokers: Sequence[Broker]
    relays: Sequence[RelayProcess]
    coordinator: CoordinatorProcess
    client: KafkaClient

    @property
    def relay(self) -> RelayProcess:
        """The first relay, which is the only one of a single broker."""
        return self.relays[0]


@contextmanager
def relayed_rig(
    jars: KafkaJars,
    directory: Path,
    security: BrokerSecurity,
    settings: Mapping[str, str],
    *,
    brokers: int = 1,
) -> Iterator[RelayedRig]:
    """Start all processes, and kill them at the end. `settings` are settings of the relays."""
    with ExitStack() as stack:
        ports = free_ports(brokers)
        coordinator_port, coordinator_http_port = free_ports(2)
        coordinator = CoordinatorProcess(
            directory, port=coordinator_port, http_port=coordinator_http_port, advertised_port=ports[0]
        )
        stack.callback(coordinator.kill)
        coordinator.start()
        cluster = new_cluster(brokers)
        relays = []
        for member, port in zip(cluster.members, ports, strict=True):
            own = directory / f"relay-{member.node_id}"
            own.mkdir()
            (http_port,) = free_ports(1)
            relay = RelayProcess(
                own,
                port=port,
                http_port=http_port,
                broker_port=member.internal_port,
                coordinator_port=coordinator_port,
                settings=settings,
            )
            stack.callback(relay.kill)
            relay.start()
            relays.append(relay)
        all_brokers = start_brokers(
            stack,
            jars,
            directory,
            cluster,
            advertised_ports=ports,
            overrides=security.overrides,
            format_flags=security.format_flags,
        )
        client = KafkaClient(jars, cluster.bootstrap, directory)
        stack.callback(client.close)
        yield RelayedRig(all_brokers, relays, coordinator, client)
