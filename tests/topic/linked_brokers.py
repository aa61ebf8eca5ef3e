"""Three brokers whose links to each other and to the coordinators can fail."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.kafka.broker import Broker, new_cluster
from tests.kafka.jars import KafkaJars
from tests.kafka.network import Network

BROKERS = (1, 2, 3)


def broker_name(node: int) -> str:
    """Return the name of a broker in the network."""
    return f"broker-{node}"


class BrokersWithFaultyLinks:
    """Three brokers and their network. Clients at `bootstrap` use links only if they are in the network."""

    def __init__(
        self,
        jars: KafkaJars,
        directory: Path,
        stack: ExitStack,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the brokers. The brokers are killed when `stack` closes. `settings` are broker settings."""
        cluster = new_cluster(brokers=len(BROKERS))
        self.bootstrap = cluster.bootstrap
        self.network = Network(directory, stack)
        self.brokers: dict[int, Broker] = {}
        for member in cluster.members:
            ports = (member.client_port, member.internal_port, member.controller_port)
            self.network.add_process(broker_name(member.node_id), ports)
        for node in BROKERS:
            name = broker_name(node)
            broker_directory = directory / name
            broker_directory.mkdir()
            broker = Broker(
                jars,
                broker_directory,
                cluster=cluster,
                node_id=node,
                overrides=settings,
                environment=self.network.environment(name),
            )
            stack.callback(broker.kill)
            broker.process.start()
            self.brokers[node] = broker
        for broker in self.brokers.values():
            broker.wait_ready()
