"""Fixtures of the log tests."""

import pytest

from tests.unit.log.kafka_logs import KafkaLogs


@pytest.fixture
def kafka_logs() -> KafkaLogs:
    return KafkaLogs()
