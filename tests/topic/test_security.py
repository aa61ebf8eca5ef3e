"""Test the state log in a topic of a broker that requires TLS and a password."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogRefused
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.process.clock import SystemClock
from tests.kafka import wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import KafkaJars
from tests.topic.secured_broker import SecuredBroker, run_secured_broker
from tests.unit.log.environments import append_durably, read_all

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def make_secured_log(broker: SecuredBroker, security: ClientSecurity) -> KafkaLog:
    return KafkaLog(
        Brokers(broker.bootstrap, "secured", security=security),
        TopicConfig("secured", 1, replication_factor=1, min_isr=1),
        owner="test",
        clock=SystemClock(),
    )


def check_wrong_password_ends_coordinator(broker: SecuredBroker, directory: Path) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, **broker.settings("wrong")}
    coordinator = CoordinatorProcess(directory, log="kafka", settings=settings)
    coordinator.process.start()
    try:
        wait_until(lambda: not coordinator.process.running, seconds=120, what="the coordinator exits")
    finally:
        coordinator.kill()
    (error_line,) = [line for line in coordinator.process.log.read_text().splitlines() if '"ERROR"' in line]
    assert "cannot start" in error_line
    assert "Authentication failed" in error_line


@pytest.mark.timeout(600)
async def test_log_connects_with_tls_and_password_only(newest_jars: KafkaJars, tmp_path: Path) -> None:
    with run_secured_broker(newest_jars, tmp_path, deny_all=False) as broker:
        log = make_secured_log(broker, broker.security)
        await log.open()
        await log.acquire_ownership(0)
        await read_all(log, range(1))
        assert await append_durably(log, 0, [(b"k", b"v")]) == 1
        await log.close()
        for wrong, message in (
            (broker.security._replace(password="wrong"), "Authentication failed"),
            (broker.security._replace(ca_file=""), "certificate verify failed"),
        ):
            log = make_secured_log(broker, wrong)
            with pytest.raises(LogRefused, match=message):
                await log.open()
            await log.close()
        await asyncio.to_thread(check_wrong_password_ends_coordinator, broker, tmp_path)
