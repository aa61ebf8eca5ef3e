"""Three brokers that each coordinator reaches over a separate link, with a proxy in it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.kafka.broker import Broker, Member, new_cluster
from tests.kafka.jars import KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.tcp_proxy import TcpProxy

# A place is where a coordinator runs. Brokers advertise one listener for each.
PLACES = 3


class LinkedBrokers:
    """Three brokers, and a proxy between each place and each broker: `links[place][node id]`.

    Clients at `bootstrap` use no proxies. Clients at `bootstraps[place]` use the proxies of that place.
    """

    def __init__(
        self,
        jars: KafkaJars,
        directory: Path,
        stack: ExitStack,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the brokers. They are killed when `stack` closes. `settings` are broker settings."""
        cluster = new_cluster(brokers=3)
        self.bootstrap = cluster.bootstrap
        self.links: list[dict[int, TcpProxy]] = [{} for _ in range(PLACES)]
        link_ports: list[list[int]] = [[] for _ in range(PLACES)]
        self.brokers: list[Broker] = []
        for member in cluster.members:
            ports, proxy_ports = free_ports(PLACES), free_ports(PLACES)
            for place, (port, proxy_port) in enumerate(zip(ports, proxy_ports, strict=True)):
                self.links[place][member.node_id] = TcpProxy(proxy_port, port)
                stack.callback(self.links[place][member.node_id].close)
                link_ports[place].append(proxy_port)
            own = directory / f"broker-{member.node_id}"
            own.mkdir()
            overrides = {**_listeners(member, ports, proxy_ports), **(settings or {})}
            broker = Broker(jars, own, cluster=cluster, node_id=member.node_id, overrides=overrides)
            stack.callback(broker.kill)
            broker.process.start()
            self.brokers.append(broker)
        self.bootstraps = [",".join(f"127.0.0.1:{port}" for port in ports) for ports in link_ports]
        for broker in self.brokers:
            broker.wait_ready()

    def mend(self) -> None:
        """End all faults of the links."""
        for links in self.links:
            for link in links.values():
                link.mend()


def _listeners(member: Member, ports: Sequence[int], proxy_ports: Sequence[int]) -> dict[str, str]:
    """Return the settings of a broker with a listener for each place, which is advertised at its proxy."""
    own = {
        "CLIENT": member.client_port,
        "INTERNAL": member.internal_port,
        "CONTROLLER": member.controller_port,
    }
    places = [f"PLACE{place}" for place in range(PLACES)]

    def urls(ports_of_places: Sequence[int]) -> str:
        all_ports = {**own, **dict(zip(places, ports_of_places, strict=True))}
        return ",".join(f"{name}://127.0.0.1:{port}" for name, port in all_ports.items())

    return {
        "listeners": urls(ports),
        "advertised.listeners": urls(proxy_ports),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in [*own, *places]),
    }
