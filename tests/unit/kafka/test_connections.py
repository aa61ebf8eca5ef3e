"""Connections to brokers: each error states whether the broker may have received the request."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka import connections
from coordinator.cluster.kafka.broker_results import NoResponse
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogUnavailable


def test_request_is_not_sent_if_the_token_file_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fetch_token(host: str, port: int, *, sasl_oauth_token_provider: Any, **options: Any) -> None:
        await sasl_oauth_token_provider.token()

    async def run_test() -> None:
        security = ClientSecurity(
            protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token_file=str(tmp_path / "token")
        )
        brokers = Brokers("broker:9092", "state", security=security)
        brokers._connections.add_address(1, "broker", 9092)
        with pytest.raises(NoResponse, match="no token in") as failed:
            await brokers.delete_records(1, {0: 5})
        assert not failed.value.sent
        with pytest.raises(LogUnavailable, match="no token in"):
            await brokers.connect()
        assert "no token in" in (brokers.unreachable_reason() or "")
        await brokers.close()

    monkeypatch.setattr(connections, "create_conn", fetch_token)
    asyncio.run(run_test())
