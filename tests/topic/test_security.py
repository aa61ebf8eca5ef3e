"""Test the state log in a topic of a broker that requires TLS and a password."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogRefused
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.process.clock import SystemClock
from tests.kafka import wait_until
from tests.kafka.broker import Broker
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.toolchain import program_path
from tests.unit.log.environments import append_durably, read_all

pytestmark = [pytest.mark.broker, pytest.mark.slow]

USER, PASSWORD, STORE_PASSWORD = "coordinator", "not-told", "of-the-store"


def run_keytool(*arguments: str) -> str:
    """Run keytool of the JDK. Return its output."""
    program = program_path("keytool")
    assert program is not None, "keytool comes with Java"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def secure_listener(broker: Broker, directory: Path) -> Path:
    """Make the broker's client listener require TLS and a password. Return the file with the signer of
    its certificate.
    """
    store = directory / "broker.p12"
    in_store = ("-alias", "broker", "-keystore", str(store), "-storepass", STORE_PASSWORD)
    run_keytool("-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1", *in_store)
    signer = directory / "signer.pem"
    signer.write_text(run_keytool("-exportcert", "-rfc", *in_store))
    login = f'PlainLoginModule required username="x" password="x" user_{USER}="{PASSWORD}";'
    for override in (
        "listener.security.protocol.map=CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms=PLAIN",
        f"listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.{login}",
        f"listener.name.client.ssl.keystore.location={store}",
        "listener.name.client.ssl.keystore.type=PKCS12",
        f"listener.name.client.ssl.keystore.password={STORE_PASSWORD}",
    ):
        broker.process.command += ["--override", override]
    return signer


def make_secured_log(broker: Broker, security: ClientSecurity) -> KafkaLog:
    return KafkaLog(
        Brokers(broker.bootstrap, "secured", security=security),
        TopicConfig("secured", 1, replication_factor=1, min_isr=1),
        owner="test",
        clock=SystemClock(),
    )


def check_wrong_password_ends_coordinator(broker: Broker, signer: Path, directory: Path) -> None:
    port, http_port = free_ports(2)
    coordinator = CoordinatorProcess(
        directory,
        port=port,
        http_port=http_port,
        log="kafka",
        settings={
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.username": USER,
            "sasl.password": "wrong",
            "ssl.ca.location": str(signer),
        },
    )
    coordinator.process.start()
    try:
        wait_until(lambda: not coordinator.process.running, seconds=120, what="the coordinator exits")
    finally:
        coordinator.kill()
    (said,) = [line for line in coordinator.process.log.read_text().splitlines() if '"ERROR"' in line]
    assert "cannot start" in said
    assert "Authentication failed" in said


@pytest.mark.timeout(600)
def test_log_connects_with_tls_and_password_only(newest_jars: KafkaJars, tmp_path: Path) -> None:
    broker = Broker(newest_jars, tmp_path)
    signer = secure_listener(broker, tmp_path)
    right = ClientSecurity("SASL_SSL", "PLAIN", USER, PASSWORD, ca_file=str(signer))

    async def run_test() -> None:
        log = make_secured_log(broker, right)
        await log.open()
        await log.own(0)
        await read_all(log, range(1))
        assert await append_durably(log, 0, [(b"k", b"v")]) == 1
        await log.close()
        for wrong, why in (
            (right._replace(password="wrong"), "Authentication failed"),
            (right._replace(ca_file=""), "certificate verify failed"),
        ):
            log = make_secured_log(broker, wrong)
            with pytest.raises(LogRefused, match=why):
                await log.open()
            await log.close()

    try:
        broker.start()
        asyncio.run(run_test())
        check_wrong_password_ends_coordinator(broker, signer, tmp_path)
    finally:
        broker.kill()
