"""SASL on a real socket: responses, errors and closed connections."""

import asyncio
import logging

import pytest
from scramp import ScramClient

from coordinator.security.receive_buffer import UNTRUSTED_BYTES
from coordinator.security.sasl import SaslStep
from coordinator.serve.server import ServerLimits
from protocol.errors import ErrorCode
from protocol.messages import find_coordinator, sasl_authenticate
from protocol.messages import initialize_share_group_state as initialize_api
from tests.unit import clock_skipping
from tests.unit.server.sasl_clients import (
    FIND_BODY,
    ServeWithSasl,
    authenticate_frame,
    fetch_api_versions,
    find_coordinator_error_code,
    get_only_connection,
    log_in,
    receive_buffer_bytes,
    send_authenticate,
    send_handshake,
)
from tests.unit.server.test_server import INITIALIZE_FRAME_BODY
from tests.unit.server.wire import request_frame, serve_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)


async def test_authenticated_client_is_served(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        apis = await fetch_api_versions(client)
        connection = await get_only_connection(served)
        assert receive_buffer_bytes(connection) == 2 * UNTRUSTED_BYTES
        assert apis[17] == (0, 1)
        assert apis[36] == (0, 2)
        handshake = await send_handshake(client, "PLAIN")
        assert (handshake.error_code, handshake.mechanisms) == (0, ["PLAIN", "SCRAM-SHA-256"])
        answer = await send_authenticate(client, b"\0alice\0alice-secret")
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
        assert receive_buffer_bytes(connection) > 2 * UNTRUSTED_BYTES
        assert await find_coordinator_error_code(client) == 0
        client.send(request_frame(83, 0, 1, INITIALIZE_FRAME_BODY))
        _, rest = await client.read_frame()
        response = initialize_api.decode_response(rest, 1, 0)
        assert [result.error_code for result in response.results[0].partitions] == [0, 0]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_scram_login_takes_two_tokens(serve_with_sasl: ServeWithSasl, version: int) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        await send_handshake(client, "SCRAM-SHA-256")
        scram = ScramClient(["SCRAM-SHA-256"], "alice", "alice-secret")
        first = await send_authenticate(client, scram.get_client_first().encode(), version)
        assert first.error_code == 0
        scram.set_server_first(first.auth_bytes.decode())
        final = await send_authenticate(client, scram.get_client_final().encode(), version)
        scram.set_server_final(final.auth_bytes.decode())
        assert await find_coordinator_error_code(client) == 0


async def test_tokens_have_no_header_after_handshake_version_0(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        assert (await send_handshake(client, "PLAIN", version=0)).error_code == 0
        token = b"\0alice\0alice-secret"
        client.send(len(token).to_bytes(4, "big") + token)
        assert await client.reader.readexactly(4) == b"\0\0\0\0"
        assert await find_coordinator_error_code(client) == 0

        # After SaslHandshake version 0, a failed login closes the connection without an error message.
        client = await served.connect()
        await send_handshake(client, "PLAIN", version=0)
        client.send(b"\0\0\0\5\0a\0b\0")
        assert await client.wait_until_closed()


async def test_second_token_sent_before_a_response_closes_the_connection(
    serve_with_sasl: ServeWithSasl,
) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        await send_handshake(client, "PLAIN")
        client.send(authenticate_frame(b"\0alice\0wrong") + authenticate_frame(b"\0alice\0alice-secret"))
        assert await client.wait_until_closed()


async def test_unknown_mechanism_is_answered_with_the_enabled_ones(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        response = await send_handshake(client, "GSSAPI")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
        assert await client.wait_until_closed()


@pytest.mark.parametrize("version", [0, 2])
async def test_wrong_password_returns_an_error_and_closes_the_connection(
    serve_with_sasl: ServeWithSasl, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve_with_sasl() as served:
        for _ in range(3):
            client = await served.connect()
            await send_handshake(client, "PLAIN")
            answer = await send_authenticate(client, b"\0alice\0guess-1234", version)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == "Authentication failed: Invalid username or password"
            assert await client.wait_until_closed()
        await served.wait_until(
            lambda: served.metrics.counter_value("connections_closed", "authentication_failed") == 3
        )
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in warnings] == ["A login failed."]
    assert "guess-1234" not in caplog.text


async def test_failed_login_is_answered_after_a_delay(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl(failed_delay_s=0.2) as served:
        loop = asyncio.get_running_loop()
        client = await served.connect()
        await send_handshake(client, "PLAIN")
        began_s = loop.time()
        client.send(authenticate_frame(b"\0alice\0wrong"))
        _, rest = await client.read_frame()
        assert sasl_authenticate.decode_response(rest, 1, 2).error_code == 58
        assert loop.time() - began_s >= 0.2
        assert await client.wait_until_closed()


async def test_refused_token_is_counted_logged_and_answered_after_a_delay(
    serve_with_sasl: ServeWithSasl, caplog: pytest.LogCaptureFixture
) -> None:
    class RefusingMechanism:
        async def process_token(self, token: bytes) -> SaslStep:
            return SaslStep(b'{"status":"invalid_token"}', refusal="expired " + "x" * 10_000)

    async with serve_with_sasl(failed_delay_s=0.2, mechanisms={"OAUTHBEARER": RefusingMechanism}) as served:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            client = await served.connect()
            await send_handshake(client, "OAUTHBEARER")
            began_s = loop.time()
            answer = await send_authenticate(client, b"n,,\x01auth=Bearer abc\x01\x01")
            assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
            assert loop.time() - began_s >= 0.2
        await served.wait_until(lambda: served.metrics._requests[36, 58] == 3)
        assert served.metrics._requests[36, 0] == 0
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.getMessage() == "A login failed."
    assert line.__dict__["reason"].startswith("expired xxx")
    assert len(line.__dict__["reason"]) < 300


async def test_another_request_does_not_shorten_the_failure_delay(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl(failed_delay_s=0.2) as served:
        client = await served.connect()
        await send_handshake(client, "PLAIN")
        client.send(authenticate_frame(b"\0alice\0wrong"))
        connection = await get_only_connection(served)
        await served.wait_until(lambda: connection._draining)
        client.send(request_frame(10, 6, 3, FIND_BODY))
        _, rest = await client.read_frame()
        answer = sasl_authenticate.decode_response(rest, 1, 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.wait_until_closed()


@pytest.mark.parametrize(
    "frame",
    [
        request_frame(10, 6, 1, FIND_BODY),
        request_frame(83, 0, 1, INITIALIZE_FRAME_BODY),
        authenticate_frame(b"\0alice\0alice-secret"),
        request_frame(3, 12, 1, b""),
        b"\0\0\0\2ab",
        b"\0\0\0\x0a\0\x11\0\x01\0\0\0\x01\xff\xff",
    ],
)
async def test_request_before_login_closes_the_connection(
    serve_with_sasl: ServeWithSasl, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        client.send(frame)
        assert await client.wait_until_closed()
    is_handshake = frame[4:6] == b"\0\x11"
    assert caplog.messages == ([] if is_handshake else ["A client sent a request before its login."])


async def test_api_versions_is_answered_once_before_the_handshake(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        client.send(request_frame(18, 99, 4, b"", flexible=True))
        _, rest = await client.read_frame()
        assert rest[:2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
        assert 36 in await fetch_api_versions(client)
        client.send(request_frame(18, 0, 0, b"", flexible=False))
        assert await client.wait_until_closed()


async def test_other_request_instead_of_a_token_returns_illegal_sasl_state(
    serve_with_sasl: ServeWithSasl,
) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        await send_handshake(client, "PLAIN")
        assert await find_coordinator_error_code(client) == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.wait_until_closed()
        client = await served.connect()
        await send_handshake(client, "PLAIN")
        assert (await send_handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.wait_until_closed()


async def test_sasl_request_after_login_returns_illegal_sasl_state(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        await log_in(client)
        answer = await send_authenticate(client, b"\0alice\0alice-secret")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert answer.error_message == "SaslAuthenticate request received after successful authentication"
        assert (await send_handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await find_coordinator_error_code(client) == 0


async def test_handshake_on_a_port_without_sasl_returns_illegal_sasl_state() -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        assert 17 not in await fetch_api_versions(client)
        assert (await send_handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await find_coordinator_error_code(client) == 0


async def test_unlisted_principal_may_only_request_api_versions(
    serve_with_sasl: ServeWithSasl, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_with_sasl() as served:
        client = await served.connect()
        assert (await log_in(client, "bob")).error_code == 0
        for version in range(7):
            key = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
            request = find_coordinator.FindCoordinatorRequest(
                key="" if version >= 4 else key,
                key_type=2 if version else 0,
                coordinator_keys=[key] if version >= 4 else [],
            )
            body = find_coordinator.encode_request(request, version)
            client.send(request_frame(10, version, 3, body, flexible=version >= 3))
            _, rest = await client.read_frame()
            response = find_coordinator.decode_response(rest, 1 if version >= 3 else 0, version)
            answers = response.coordinators if version >= 4 else [response]
            assert [(each.error_code, each.node_id, each.host, each.port) for each in answers] == [
                (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1, "", -1)
            ]
        client.send(request_frame(83, 0, 1, INITIALIZE_FRAME_BODY))
        _, rest = await client.read_frame()
        response = initialize_api.decode_response(rest, 1, 0)
        assert [
            (result.partition, result.error_code, result.error_message)
            for result in response.results[0].partitions
        ] == [(0, 31, "Cluster authorization failed."), (1, 31, "Cluster authorization failed.")]
        assert 83 in await fetch_api_versions(client)
    assert [record.getMessage() for record in caplog.records] == [
        "A client is not allowed by listen.allowed.principals."
    ]


async def test_connections_of_unauthorized_clients_are_closed_for_a_broker(
    serve_with_sasl: ServeWithSasl,
) -> None:
    async with serve_with_sasl(limits=ServerLimits(connections_max=2)) as served:
        # One client has not logged in, and one is not allowed.
        unauthenticated, refused = await served.connect(), await served.connect()
        await send_handshake(unauthenticated, "PLAIN")
        await log_in(refused, "bob")
        brokers = [await served.connect(), await served.connect()]
        for broker in brokers:
            await log_in(broker)
        assert await unauthenticated.wait_until_closed()
        assert await refused.wait_until_closed()
        # Connections of authorized clients are not closed for other clients.
        late = await served.connect()
        assert await late.wait_until_closed()
        assert [await find_coordinator_error_code(broker) for broker in brokers] == [0, 0]


async def test_login_that_takes_too_long_is_closed(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl(handshake_s=30) as served:
        silent, slow, known = await served.connect(), await served.connect(), await served.connect()
        await log_in(known)
        await send_handshake(slow, "PLAIN")
        clock_skipping.skip_time(31)
        assert await silent.wait_until_closed()
        assert await slow.wait_until_closed()
        assert served.metrics.counter_value("connections_closed", "authentication_timeout") == 2
        assert await find_coordinator_error_code(known) == 0


async def test_large_frame_before_login_closes_the_connection(serve_with_sasl: ServeWithSasl) -> None:
    async with serve_with_sasl() as served:
        stranger = await served.connect()
        stranger.send((64 * 1024 + 1).to_bytes(4, "big"))
        assert await stranger.wait_until_closed()
        # The connection was closed because of the size, not by a timeout.
        assert served.metrics.counter_value("connections_closed", "bad_frame") == 1
        known = await served.connect()
        await log_in(known)
        keys = [f"{'x' * 1000}:AAAAAAAAAAAAAAAAAAAAAQ:{number}" for number in range(100)]
        request = find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=keys)
        known.send(request_frame(10, 6, 3, find_coordinator.encode_request(request, 6)))
        _, rest = await known.read_frame()
        assert len(find_coordinator.decode_response(rest, 1, 6).coordinators) == 100
