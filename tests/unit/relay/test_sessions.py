"""Sessions with a limited lifetime and re-authentication of persisters (KIP-368)."""

import errno

import pytest
import uvloop

from coordinator.serve.relay import connection, streams
from tests.unit.relay.fake_peers import (
    ANSWER,
    PERSISTER,
    WRITE,
    connect_fetcher,
    connect_persister,
    encode_frame,
    encode_request,
    handshake_request,
    plain_token,
    run_relay,
    token_request,
    wait_seconds,
    wait_until,
)

pytestmark = pytest.mark.run_with(function=uvloop.run)


async def test_reauthenticated_persister_continues() -> None:
    async with run_relay() as here:
        here.broker.session_lifetime_ms = 60_000
        peer, coordinator = await connect_persister(here)
        # The response to the write must precede those of the authentication.
        peer.send_bytes(
            encode_request(WRITE, PERSISTER, b"before") + handshake_request() + token_request(plain_token())
        )
        await coordinator.read_frame()
        # A complete login of another connection gives the relay time to read the SASL requests.
        await connect_fetcher(here)
        coordinator.send_bytes(ANSWER)
        assert encode_frame(await peer.read_frame()) == ANSWER
        await peer.read_frame()
        await peer.read_frame()
        # Coordinators re-authenticate before a session expires, also without a request to send.
        await wait_until(lambda: here.figures.reauthentications == 1)
        asked = encode_request(WRITE, PERSISTER, b"after")
        peer.send_bytes(asked)
        assert encode_frame(await coordinator.read_frame()) == asked
        coordinator.send_bytes(ANSWER)
        assert encode_frame(await peer.read_frame()) == ANSWER
        # The relay sent one DescribeCluster for each login, to check that the broker accepts the peer.
        assert (here.broker.accepted, here.broker.describe_cluster_requests) == (3, 2)


async def test_session_expires_without_reauthentication() -> None:
    async with run_relay() as here:
        here.broker.session_lifetime_ms = 100
        peer, coordinator = await connect_persister(here)
        await wait_seconds(0.1)
        peer.send_bytes(encode_request(WRITE, PERSISTER, b"too late"))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        assert here.figures.refused == {"session": 1}


async def test_last_authentication_sets_the_session_lifetime() -> None:
    async with run_relay() as here:
        here.broker.session_lifetime_ms = 150
        peer, coordinator = await connect_persister(here)
        here.broker.session_lifetime_ms = 60_000
        await peer.exchange_frame(handshake_request())
        await peer.exchange_frame(token_request(plain_token()))
        await wait_seconds(0.15)
        peer.send_bytes(encode_request(WRITE, PERSISTER))
        await coordinator.read_frame()


@pytest.mark.parametrize(
    ("mechanism", "auth_bytes"), [("PLAIN", plain_token("eve")), ("SCRAM-SHA-512", b"n,,n=kafka,r=a-nonce")]
)
async def test_reauthentication_cannot_change_principal_or_mechanism(
    mechanism: str, auth_bytes: bytes
) -> None:
    async with run_relay(allowed="User:kafka;User:eve") as here:
        peer, coordinator = await connect_persister(here)
        await peer.exchange_frame(handshake_request(mechanism))
        await peer.exchange_frame(token_request(auth_bytes))
        if mechanism != "PLAIN":
            await peer.exchange_frame(token_request(b"proof"))
        peer.send_bytes(encode_request(WRITE, PERSISTER))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()


async def test_incomplete_reauthentication_closes_the_connection() -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.log_in(b"n,,n=kafka,r=a-nonce", "SCRAM-SHA-512")
        await peer.exchange_frame(token_request(b"proof"))
        peer.send_bytes(encode_request(WRITE, PERSISTER))
        coordinator = await here.coordinator.next_connection()
        await coordinator.read_frame()
        coordinator.send_bytes(ANSWER)
        await peer.read_frame()
        await peer.exchange_frame(handshake_request("SCRAM-SHA-512"))
        await peer.exchange_frame(token_request(b"n,,n=kafka,r=a-nonce"))
        peer.send_bytes(encode_request(WRITE, PERSISTER, b"not to be read"))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()


async def test_wrong_password_on_reauthentication_is_answered_and_closes() -> None:
    async with run_relay() as here:
        peer, _ = await connect_persister(here)
        await peer.exchange_frame(handshake_request())
        assert b"no" in await peer.exchange_frame(token_request(plain_token(password="guessed")))
        assert await peer.wait_until_closed()


async def test_unreachable_broker_on_reauthentication_is_counted_as_no_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_relay() as here:
        peer, coordinator = await connect_persister(here)
        monkeypatch.setattr(streams, "connect_stream", _raise_timeout)
        peer.send_bytes(handshake_request())
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        assert here.figures.refused == {"no_broker": 1}
        assert f"the broker cannot be reached at {here.broker.address}: TimeoutError" in caplog.text


async def test_broken_connection_on_reauthentication_is_not_counted_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_relay() as here:
        peer, coordinator = await connect_persister(here)
        monkeypatch.setattr(connection, "authenticate", _raise_os_error)
        peer.send_bytes(handshake_request())
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        await wait_until(lambda: here.figures.open["coordinator"] == 0)
        assert here.figures.refused == {}


async def _raise_timeout(*_: object) -> None:
    raise TimeoutError


async def _raise_os_error(*_: object) -> None:
    raise OSError(errno.ETIMEDOUT, "Connection timed out")
