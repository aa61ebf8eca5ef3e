"""Run a broker that advertises the coordinator's secured port as its inter-broker listener.

A single broker uses its inter-broker listener only for requests to the share coordinator. Therefore, the
broker can advertise the coordinator's own port as this listener, and no proxy is needed. Kafka's own
client connects to the coordinator with the broker's certificate or login.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kafka.broker import Broker
from tests.kafka.client import KafkaClient
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.secured import BrokerSecurity


@dataclass(frozen=True)
class SecuredRig:
    """A running broker whose share-group state is stored in this coordinator, which authenticates the
    broker.
    """

    broker: Broker
    coordinator: CoordinatorProcess
    client: KafkaClient


@contextmanager
def secured_rig(
    jars: KafkaJars, directory: Path, security: BrokerSecurity, settings: Mapping[str, str]
) -> Iterator[SecuredRig]:
    """Start all processes, and kill them at the end. `settings` are settings of the coordinator."""
    with ExitStack() as stack:
        port, http_port = free_ports(2)
        coordinator = CoordinatorProcess(directory, port=port, http_port=http_port, settings=settings)
        stack.callback(coordinator.kill)
        coordinator.start()
        broker = Broker(
            jars,
            directory,
            interbroker_port=port,
            overrides=security.overrides,
            format_flags=security.format_flags,
        )
        stack.callback(broker.kill)
        broker.start()
        client = KafkaClient(jars, broker.bootstrap, directory)
        stack.callback(client.close)
        yield SecuredRig(broker, coordinator, client)
