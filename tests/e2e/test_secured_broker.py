"""Test brokers with a secured inter-broker listener, whose persister authenticates to the coordinator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import CertificateAuthority, make_subject
from tests.e2e.delivery_recorder import (
    SMALL_COMMITS,
    DeliveryRecorder,
    consume_every_second,
    consume_in_thread,
    consume_with_group,
    mixed_acknowledgements,
    new_topic,
    produce_records,
)
from tests.kafka import KafkaJars, wait_until
from tests.kafka.secured import (
    SCRAM,
    BrokerSecurity,
    LoginCredentials,
    sasl_between_brokers,
    tls_between_brokers,
)
from tests.kafka.secured_rig import SecuredRig, secured_rig

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

BROKERS = LoginCredentials("kafka", "between-brokers")


def read_log(rig: SecuredRig) -> str:
    return rig.coordinator.process.log.read_text()


def read_metric(rig: SecuredRig, name: str) -> float:
    """Return a metric of the coordinator; 0 if it does not exist yet."""
    status, body = rig.coordinator.get("/metrics")
    assert status == 200
    lines = (line.rpartition(" ") for line in body.decode().splitlines())
    return next((float(value) for found, _, value in lines if found == f"share_coordinator_{name}"), 0.0)


class ClusterCertificates:
    """The files of a cluster whose brokers and coordinator authenticate by certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder)
        self.broker = self.authority.issue_certificate(
            "broker",
            subject=make_subject("broker-1", ORGANIZATION_NAME="Example", ORGANIZATIONAL_UNIT_NAME="Kafka"),
        )
        self.coordinator = self.authority.issue_certificate("coordinator")
        self.tool = self.authority.issue_certificate("tool")

    @property
    def inter_broker_settings(self) -> BrokerSecurity:
        return BrokerSecurity(
            {
                "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:SSL,CONTROLLER:PLAINTEXT",
                **tls_between_brokers(
                    str(self.broker.combined_file), str(self.authority.certificate), client_auth="required"
                ),
            }
        )

    @property
    def coordinator_settings(self) -> dict[str, str]:
        return {
            "listen.security.protocol": "SSL",
            "listen.ssl.certificate.location": str(self.coordinator.certificate),
            "listen.ssl.key.location": str(self.coordinator.key),
            "listen.ssl.ca.location": str(self.authority.certificate),
            "listen.ssl.client.auth": "required",
            "listen.allowed.principals": "User:CN=broker-1,OU=Kafka,O=Example",
            "listen.reload.interval.ms": "200",
        }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> ClusterCertificates:
    return ClusterCertificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mutual_tls_rig(
    newest_jars: KafkaJars, certificates: ClusterCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredRig]:
    """A broker and a coordinator with TLS client authentication in both directions."""
    folder = tmp_path_factory.mktemp("mutual-tls")
    with secured_rig(
        newest_jars, folder, certificates.inter_broker_settings, certificates.coordinator_settings
    ) as rig:
        yield rig


def test_share_group_works_over_mutual_tls(mutual_tls_rig: SecuredRig) -> None:
    consume_with_group(mutual_tls_rig.client, mutual_tls_rig.coordinator, "mutual-tls", partitions=2)
    assert "WARNING" not in read_log(mutual_tls_rig)


def test_certificates_are_reloaded_while_group_consumes(
    mutual_tls_rig: SecuredRig, certificates: ClusterCertificates
) -> None:
    topic, group, _ = new_topic(mutual_tls_rig.client, "renewed")
    recorder = DeliveryRecorder()
    consumer = mutual_tls_rig.client.share_consumer(group, topic, SMALL_COMMITS)
    with consume_in_thread(recorder, consumer, mixed_acknowledgements):
        for renewal in range(3):
            produce_records(mutual_tls_rig.client, topic, 1, first=renewal * 40, count=40)
            recorder.wait_until_acknowledged(renewal * 40 + 20, seconds=120)
            opened = read_metric(mutual_tls_rig, "connections_opened_total")
            told = "Reloaded the TLS files." if renewal < 2 else "the previous ones stay in use"
            before = read_log(mutual_tls_rig).count(told)
            if renewal < 2:
                certificates.authority.issue_certificate("coordinator")
            else:
                # An invalid certificate file must leave the previous certificate in use.
                certificates.coordinator.certificate.write_text("no certificate")
            wait_until(
                lambda told=told, before=before: read_log(mutual_tls_rig).count(told) > before,  # type: ignore[misc]
                seconds=120,
                what="the coordinator checks the certificate files",
            )
            recorder.wait_until_acknowledged((renewal + 1) * 40, seconds=120)
            assert read_metric(mutual_tls_rig, "connections_opened_total") == opened
    consumer.close()
    assert recorder.violations == []


@pytest.fixture(scope="module")
def scram_rig(
    newest_jars: KafkaJars, certificates: ClusterCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredRig]:
    """A broker that authenticates by SCRAM over TLS, and reauthenticates twice a minute."""
    folder = tmp_path_factory.mktemp("scram")
    (folder / "users.properties").write_text(f"{BROKERS.user}={BROKERS.password}\neve=hers\n")
    tls = tls_between_brokers(str(certificates.broker.combined_file), str(certificates.authority.certificate))
    settings = {
        "listen.security.protocol": "SASL_SSL",
        "listen.ssl.certificate.location": str(certificates.tool.combined_file),
        "listen.sasl.enabled.mechanisms": SCRAM,
        "listen.sasl.users.file": str(folder / "users.properties"),
        "listen.allowed.principals": f"User:{BROKERS.user}",
        # Kafka's clients reauthenticate in the last 15 % of a session, which must suffice on a slow machine.
        "listen.connections.max.reauth.ms": "30000",
        "listen.reload.interval.ms": "200",
    }
    security = sasl_between_brokers(SCRAM, BROKERS, tls=tls)
    with secured_rig(newest_jars, folder, security, settings) as rig:
        yield rig


def test_share_group_works_across_reauthentication(scram_rig: SecuredRig) -> None:
    logins = 'rpc_requests_total{api="SaslAuthenticate",code="NONE"}'
    topic, group, _ = new_topic(scram_rig.client, "anew")
    recorder = DeliveryRecorder()
    consumer = scram_rig.client.share_consumer(group, topic, SMALL_COMMITS)
    with consume_in_thread(recorder, consumer, mixed_acknowledgements):
        produce_records(scram_rig.client, topic, 1, first=0, count=20)
        recorder.wait_until_acknowledged(20, seconds=120)
        opened, before = read_metric(scram_rig, "connections_opened_total"), read_metric(scram_rig, logins)
        # SCRAM needs two SaslAuthenticate requests, so this count includes at least three reauthentications.
        count = 20
        while read_metric(scram_rig, logins) < before + 6:
            count = consume_every_second(scram_rig.client, recorder, topic, count)
    consumer.close()
    assert recorder.violations == []
    assert read_metric(scram_rig, "connections_opened_total") == opened
    assert read_metric(scram_rig, 'connections_closed_total{reason="session_expired"}') == 0
    assert BROKERS.password not in read_log(scram_rig)
