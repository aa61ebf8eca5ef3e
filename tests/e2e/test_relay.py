"""The relay between a broker and itself: brokers that log in to each other, and a coordinator behind them.

The coordinator is advertised at the relay, so everything that a broker says to it comes that way.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.ledger import FEW_AT_A_TIME, Ledger, new_topic, of_each_kind, produce, what_is_left
from tests.kafka import Broker, CoordinatorProcess, KafkaClient, KafkaJars, free_ports
from tests.kafka.relay import RelayProcess
from tests.kafka.secured import PLAIN, SCRAM, BrokerSecurity, Login, sasl_between_brokers

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

BROKERS = Login("kafka", "between-brokers")
STATE_TOPIC = "__share_group_state"


@dataclass(frozen=True)
class RelayRig:
    """One broker, the relay in front of it, and the coordinator."""

    broker: Broker
    relay: RelayProcess
    coordinator: CoordinatorProcess
    client: KafkaClient


@contextmanager
def relay_rig(
    jars: KafkaJars,
    directory: Path,
    security: BrokerSecurity,
    settings: Mapping[str, str],
) -> Iterator[RelayRig]:
    """Start all of it, and kill it at the end."""
    with ExitStack() as stack:
        port, http_port, coordinator_port, coordinator_http_port = free_ports(4)
        coordinator = CoordinatorProcess(
            directory, port=coordinator_port, http_port=coordinator_http_port, advertised_port=port
        )
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
        relay = RelayProcess(
            directory,
            port=port,
            http_port=http_port,
            broker_port=broker.internal_port,
            coordinator_port=coordinator_port,
            settings=settings,
        )
        stack.callback(relay.kill)
        relay.start()
        broker.start()
        client = KafkaClient(jars, broker.bootstrap, directory)
        stack.callback(client.close)
        yield RelayRig(broker, relay, coordinator, client)


ALLOWED = {"relay.allowed.principals": f"User:{BROKERS.user}"}


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM])
def test_a_share_group_behind_a_login(newest_jars: KafkaJars, tmp_path: Path, mechanism: str) -> None:
    security = sasl_between_brokers(mechanism, BROKERS)
    with relay_rig(newest_jars, tmp_path, security, ALLOWED) as rig:
        topic, group, topic_id = new_topic(rig.client, "behind-a-login")
        produce(rig.client, topic, 1, first=0, count=50)
        ledger = Ledger()
        consumer = rig.client.share_consumer(group, topic, FEW_AT_A_TIME)
        ledger.consume_until_settled(consumer, of_each_kind, 50, seconds=60)
        consumer.close()
        assert what_is_left(rig.client, group, topic, 1, end=50) == []
        assert ledger.broken_promises == []
        state = rig.coordinator.share_partition(group, topic_id, 0)
        assert state is not None
        assert state["start_offset"] > 0
        assert STATE_TOPIC not in rig.client.topics()
        assert rig.relay.figure('connections{destination="coordinator"}') >= 1
