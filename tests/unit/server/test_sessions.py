"""SASL sessions: lifetime, re-authentication (KIP-368), revoked users and failing mechanisms."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.security.principals import AllowedPrincipals
from coordinator.security.sasl import Identity, SaslStep
from coordinator.serve.server import ServerLimits
from protocol.errors import ErrorCode
from protocol.messages import sasl_handshake
from tests.unit import clock_skipping
from tests.unit.server.sasl_clients import (
    FIND_BODY,
    USERS,
    ServeWithSasl,
    authenticate_frame,
    find_coordinator_error_code,
    get_only_connection,
    log_in,
    password_security,
    send_authenticate,
    send_handshake,
)
from tests.unit.server.wire import request_frame, serve_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)


async def test_session_expires_without_reauthentication(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl(reauth_max_ms=60000) as served:
        client, idle = await served.connect(), await served.connect()
        for each in (client, idle):
            assert (await log_in(each)).session_lifetime_ms == 60_000
        # Requests in flight are answered before a SaslHandshake that follows them.
        client.send(request_frame(10, 6, 3, FIND_BODY))
        body = sasl_handshake.encode_request(sasl_handshake.SaslHandshakeRequest("PLAIN"), 1)
        client.send(request_frame(17, 1, 1, body, flexible=False))
        assert (await client.read_frame())[0] == 3
        assert (await client.read_frame())[0] == 1
        assert (await send_authenticate(client, b"\0alice\0alice-secret")).session_lifetime_ms == 60_000
        # Re-authentication is allowed at most once a second.
        assert (await send_handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        clock_skipping.skip_time(61)
        # Re-authentication after the expiry is accepted before the next request.
        assert (await log_in(client)).error_code == 0
        assert await find_coordinator_error_code(client) == 0
        idle.send(request_frame(10, 6, 3, FIND_BODY))
        assert await idle.wait_until_closed()
        assert served.metrics.counter_value("connections_closed", "session_expired") == 1


@pytest.mark.parametrize(
    ("mechanism", "token", "message"),
    [
        (
            "PLAIN",
            b"\0bob\0bob-secret",
            "Cannot change principals during re-authentication from User.alice: User.bob",
        ),
        (
            "SCRAM-SHA-256",
            b"n,,n=alice,r=abc",
            "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of "
            "mechanism 'PLAIN'",
        ),
        ("PLAIN", b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
    ],
)
async def test_reauthentication_cannot_change_principal_or_mechanism(
    serve_with_sasl: ServeWithSasl, mechanism: str, token: bytes, message: str
) -> None:
    async with serve_with_sasl(reauth_max_ms=60000) as served:
        client = await served.connect()
        await log_in(client)
        assert (await send_handshake(client, mechanism)).error_code == 0
        answer = await send_authenticate(client, token)
        assert (answer.error_code, answer.error_message) == (58, message)
        assert await client.wait_until_closed()


class _FixedMechanism:
    """A mechanism that returns the given step for each token; if it is None, it raises."""

    def __init__(self, turn: SaslStep | None) -> None:
        self._turn = turn

    async def process_token(self, token: bytes) -> SaslStep:
        if self._turn is None:
            raise ZeroDivisionError
        return self._turn


async def test_session_ends_when_its_token_expires(serve_with_sasl: ServeWithSasl) -> None:
    ended = SaslStep(b"", Identity("alice", expires_ms=1))
    async with serve_with_sasl(
        mechanisms={"PLAIN": lambda: _FixedMechanism(ended)}, reauth_max_ms=60000
    ) as served:
        client = await served.connect()
        await send_handshake(client, "PLAIN")
        assert (await send_authenticate(client, b"token")).session_lifetime_ms == 0
        connection = await get_only_connection(served)
        assert connection.timeout_reason(asyncio.get_running_loop().time(), 0) is None
        client.send(request_frame(10, 6, 3, FIND_BODY))
        assert await client.wait_until_closed()
        assert served.metrics.counter_value("connections_closed", "session_expired") == 1


async def test_failing_mechanism_closes_the_connection(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl(mechanisms={"PLAIN": lambda: _FixedMechanism(None)}) as served:
        client = await served.connect()
        await send_handshake(client, "PLAIN")
        client.send(authenticate_frame(b"token"))
        assert await client.wait_until_closed()
        assert served.metrics.counter_value("connections_closed", "internal_error") == 1


async def test_reauthentication_has_the_full_handshake_timeout(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl(ServerLimits(sweep_s=600.0), reauth_max_ms=60000, handshake_s=30.0) as served:
        client, loop = await served.connect(), asyncio.get_running_loop()
        await log_in(client)
        connection = await get_only_connection(served)
        assert connection.sasl_authenticator is not None
        # Pretend that the deadline of the first login has passed.
        connection.sasl_authenticator._deadline_s = loop.time() - 1.0
        await send_handshake(client, "PLAIN")
        assert connection.timeout_reason(loop.time(), 0) is None
        assert connection.timeout_reason(loop.time() + 31.0, 0) == "authentication_timeout"


async def test_empty_list_of_principals_allows_no_client(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl(allowed=AllowedPrincipals.parse(";")) as served:
        client = await served.connect()
        await log_in(client)
        assert await find_coordinator_error_code(client) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("change", ["alice=another\n", "bob=bob-secret\n"])
async def test_removed_user_or_changed_password_closes_its_connections(tmp_path: Path, change: str) -> None:
    security = password_security(tmp_path, handshake_s=600.0)
    async with serve_coordinator(ServerLimits(sweep_s=0.01), security) as served:
        exchange: Any = security.mechanisms["PLAIN"]
        users = exchange.args[0]
        client = await served.connect()
        await log_in(client)
        (tmp_path / "users.properties").write_text(USERS + "# read again\n")
        assert users.reload_if_changed()
        await asyncio.sleep(0.05)
        assert await find_coordinator_error_code(client) == 0, "nothing has changed for alice"
        (tmp_path / "users.properties").write_text(change)
        assert users.reload_if_changed()
        assert await client.wait_until_closed()
        await served.wait_until(
            lambda: served.metrics.counter_value("connections_closed", "credentials_revoked") == 1
        )
