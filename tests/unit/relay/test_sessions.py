"""Sessions with a limited lifetime and re-authentication of persisters (KIP-368)."""

import errno

import pytest

from coordinator.relay import connection, upstream
from tests.unit.relay.fake_peers import (
    ANSWER,
    PERSISTER,
    WRITE,
    async_test,
    fetcher,
    framed,
    handshake,
    past,
    persister,
    plain,
    request,
    token,
    until,
    world,
)


@async_test
async def test_reauthenticated_persister_continues() -> None:
    async with world() as here:
        here.broker.session_lifetime_ms = 60_000
        peer, coordinator = await persister(here)
        # The response to the write must precede those of the authentication.
        peer.send_bytes(request(WRITE, PERSISTER, b"before") + handshake() + token(plain()))
        await coordinator.frame()
        # A complete login of another connection gives the relay time to read the SASL requests.
        await fetcher(here)
        coordinator.send_bytes(ANSWER)
        assert framed(await peer.frame()) == ANSWER
        await peer.frame()
        await peer.frame()
        asked = request(WRITE, PERSISTER, b"after")
        peer.send_bytes(asked)
        assert framed(await coordinator.frame()) == asked
        coordinator.send_bytes(ANSWER)
        assert framed(await peer.frame()) == ANSWER
        assert here.figures.reauthentications == 1
        # The relay sent one DescribeCluster for each login, to check that the broker accepts the peer.
        assert (here.broker.accepted, here.broker.questions) == (3, 2)


@async_test
async def test_session_expires_without_reauthentication() -> None:
    async with world() as here:
        here.broker.session_lifetime_ms = 100
        peer, coordinator = await persister(here)
        await past(0.1)
        peer.send_bytes(request(WRITE, PERSISTER, b"too late"))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        assert here.figures.refused == {"session": 1}


@async_test
async def test_last_authentication_sets_the_session_lifetime() -> None:
    async with world() as here:
        here.broker.session_lifetime_ms = 150
        peer, coordinator = await persister(here)
        here.broker.session_lifetime_ms = 60_000
        await peer.ask(handshake())
        await peer.ask(token(plain()))
        await past(0.15)
        peer.send_bytes(request(WRITE, PERSISTER))
        await coordinator.frame()


@pytest.mark.parametrize(
    ("mechanism", "auth_bytes"), [("PLAIN", plain("eve")), ("SCRAM-SHA-512", b"n,,n=kafka,r=a-nonce")]
)
@async_test
async def test_reauthentication_cannot_change_principal_or_mechanism(
    mechanism: str, auth_bytes: bytes
) -> None:
    async with world(allowed="User:kafka;User:eve") as here:
        peer, coordinator = await persister(here)
        await peer.ask(handshake(mechanism))
        await peer.ask(token(auth_bytes))
        if mechanism != "PLAIN":
            await peer.ask(token(b"proof"))
        peer.send_bytes(request(WRITE, PERSISTER))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()


@async_test
async def test_incomplete_reauthentication_closes_the_connection() -> None:
    async with world() as here:
        peer = await here.peer()
        await peer.log_in(b"n,,n=kafka,r=a-nonce", "SCRAM-SHA-512")
        await peer.ask(token(b"proof"))
        peer.send_bytes(request(WRITE, PERSISTER))
        coordinator = await here.coordinator.connection()
        await coordinator.frame()
        coordinator.send_bytes(ANSWER)
        await peer.frame()
        await peer.ask(handshake("SCRAM-SHA-512"))
        await peer.ask(token(b"n,,n=kafka,r=a-nonce"))
        peer.send_bytes(request(WRITE, PERSISTER, b"not to be read"))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()


@async_test
async def test_wrong_password_on_reauthentication_is_answered_and_closes() -> None:
    async with world() as here:
        peer, _ = await persister(here)
        await peer.ask(handshake())
        assert b"no" in await peer.ask(token(plain(password="guessed")))
        assert await peer.wait_until_closed()


@async_test
async def test_unreachable_broker_on_reauthentication_counts_as_no_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as here:
        peer, coordinator = await persister(here)
        monkeypatch.setattr(upstream, "connect", _timed_out)
        peer.send_bytes(handshake())
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        assert here.figures.refused == {"no_broker": 1}
        assert f"the broker cannot be reached at {here.broker.address}: TimeoutError" in caplog.text


@async_test
async def test_broken_connection_on_reauthentication_is_not_counted_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as here:
        peer, coordinator = await persister(here)
        monkeypatch.setattr(connection, "authenticate", _broken)
        peer.send_bytes(handshake())
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        await until(lambda: here.figures.open["coordinator"] == 0)
        assert here.figures.refused == {}


async def _timed_out(*_: object) -> None:
    raise TimeoutError


async def _broken(*_: object) -> None:
    raise OSError(errno.ETIMEDOUT, "Connection timed out")
