"""A persister whose session ends after a time, and who has to authenticate again (KIP-368)."""

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
async def test_a_persister_that_authenticates_again_goes_on() -> None:
    async with world() as here:
        here.broker.session_lifetime_ms = 60_000
        peer, coordinator = await persister(here)
        # An answer is due, which has to come before those of the authentication.
        peer.send_bytes(request(WRITE, PERSISTER, b"before") + handshake() + token(plain()))
        await coordinator.frame()
        # Time enough for another one to log in.
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
        # Each time it was asked whether it had let the peer in.
        assert (here.broker.accepted, here.broker.questions) == (3, 2)


@async_test
async def test_who_does_not_authenticate_again_in_time_is_cut_off() -> None:
    async with world() as here:
        here.broker.session_lifetime_ms = 100
        peer, coordinator = await persister(here)
        await past(0.1)
        peer.send_bytes(request(WRITE, PERSISTER, b"too late"))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        assert here.figures.refused == {"session": 1}


@async_test
async def test_a_session_is_as_long_as_the_last_authentication_says() -> None:
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
async def test_nobody_becomes_somebody_else_on_the_way(mechanism: str, auth_bytes: bytes) -> None:
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
async def test_half_an_authentication_is_none_the_second_time_either() -> None:
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
async def test_a_wrong_password_the_second_time_is_answered_and_the_end() -> None:
    async with world() as here:
        peer, _ = await persister(here)
        await peer.ask(handshake())
        assert b"no" in await peer.ask(token(plain(password="guessed")))
        assert await peer.wait_until_closed()


@async_test
async def test_a_broker_that_does_not_answer_is_not_the_persisters_fault(
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
async def test_a_connection_that_breaks_meanwhile_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
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
    raise OSError(errno.ETIMEDOUT, "nothing is acknowledged any more")
