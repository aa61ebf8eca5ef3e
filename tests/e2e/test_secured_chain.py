"""Test a broker with SASL and the relay, with mutual TLS between the relay and the coordinator."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.certificates import CertificateAuthority, IssuedCertificate
from tests.e2e.ledger import consume_with_group
from tests.kafka import KafkaJars
from tests.kafka.broker import Broker
from tests.kafka.client import KafkaClient
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.ports import free_ports
from tests.kafka.relay import RelayProcess
from tests.kafka.secured import SCRAM, LoginCredentials, sasl_between_brokers

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

BROKERS = LoginCredentials("kafka", "between-brokers")


def port_for_the_relay(authority: CertificateAuthority, ours: IssuedCertificate) -> dict[str, str]:
    """Return the settings of a coordinator's listener that only the relay may use."""
    return {
        "listen.security.protocol": "SSL",
        "listen.ssl.certificate.location": str(ours.certificate),
        "listen.ssl.key.location": str(ours.key),
        "listen.ssl.ca.location": str(authority.certificate),
        "listen.ssl.client.auth": "required",
        "listen.allowed.principals": "User:CN=relay",
    }


def test_share_group_works_through_secured_relay(newest_jars: KafkaJars, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    ours, relays = authority.issue_certificate("coordinator"), authority.issue_certificate("relay")
    port, http_port, relay_port, relay_http_port = free_ports(4)
    with ExitStack() as stack:
        coordinator = CoordinatorProcess(
            tmp_path,
            port=port,
            http_port=http_port,
            # Brokers reach the coordinator only through the relay.
            advertised_port=relay_port,
            settings=port_for_the_relay(authority, ours),
        )
        stack.callback(coordinator.kill)
        coordinator.start()
        security = sasl_between_brokers(SCRAM, BROKERS)
        broker = Broker(
            newest_jars,
            tmp_path,
            interbroker_port=relay_port,
            overrides=security.overrides,
            format_flags=security.format_flags,
        )
        relay = RelayProcess(
            tmp_path,
            port=relay_port,
            http_port=relay_http_port,
            broker_port=broker.internal_port,
            coordinator_port=port,
            settings={
                "relay.allowed.principals": f"User:{BROKERS.user}",
                "relay.coordinator.security.protocol": "SSL",
                "relay.coordinator.ssl.ca.location": str(authority.certificate),
                "relay.coordinator.ssl.certificate.location": str(relays.certificate),
                "relay.coordinator.ssl.key.location": str(relays.key),
            },
        )
        stack.callback(relay.kill)
        relay.start()
        stack.callback(broker.kill)
        broker.start()
        client = KafkaClient(newest_jars, broker.bootstrap, tmp_path)
        stack.callback(client.close)

        consume_with_group(client, coordinator, "all-the-way")
        assert BROKERS.password not in coordinator.process.log.read_text() + relay.process.log.read_text()
