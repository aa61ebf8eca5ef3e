"""Routing of connections by the relay: to the coordinator, to the broker, or refused."""

import asyncio

import pytest
import uvloop

from protocol.frames import FrameReader
from tests.unit.relay.fake_peers import (
    ANSWER,
    API_VERSIONS,
    FETCH,
    FETCHER,
    HERE,
    LIMITS,
    METADATA,
    PERSISTER,
    WRITE,
    FrameStream,
    RelaySetup,
    encode_frame,
    encode_request,
    handshake_request,
    plain_token,
    run_relay,
    token_request,
    wait_until,
)

pytestmark = pytest.mark.run_with(function=uvloop.run)


async def check_coordinator_answers(here: RelaySetup, peer: FrameStream, asked: bytes) -> FrameStream:
    """Assert that the request reaches the coordinator and the response reaches the peer."""
    coordinator = await here.coordinator.next_connection()
    assert encode_frame(await coordinator.read_frame()) == asked
    coordinator.send_bytes(ANSWER)
    assert encode_frame(await peer.read_frame()) == ANSWER
    return coordinator


async def check_broker_answers(here: RelaySetup, peer: FrameStream, asked: bytes) -> FrameStream:
    broker = await here.broker.next_connection()
    assert await broker.read_exactly(len(asked)) == asked
    broker.send_bytes(ANSWER)
    assert encode_frame(await peer.read_frame()) == ANSWER
    return broker


async def test_authenticated_persister_is_routed_to_the_coordinator() -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.log_in()
        # The first request after the login: the coordinator answers with its own API versions.
        asked = encode_request(API_VERSIONS, PERSISTER, b"\x0dapache-kafka\x064.4.0\x00", version=4)
        peer.send_bytes(asked)
        await check_coordinator_answers(here, peer, asked)
        assert here.broker.describe_cluster_requests == 1
        await wait_until(lambda: here.broker.left == 1)
        write = encode_request(WRITE, PERSISTER, b"more")
        peer.send_bytes(write)
        assert here.figures.open == {"broker": 0, "coordinator": 1}


@pytest.mark.parametrize(
    ("client_id", "api_key"),
    [
        (FETCHER, FETCH),
        ("AddPartitionsManager-client-1", API_VERSIONS),
        ("NetworkPartitionMetadataClient-client-1", API_VERSIONS),
        ("a-persister: Persister-client-1", API_VERSIONS),
        ("Persister-client", WRITE),
        ("", FETCH),
        (None, FETCH),
    ],
)
async def test_other_clients_are_routed_to_the_broker(client_id: str | None, api_key: int) -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.log_in()
        asked = encode_request(api_key, client_id, b"a body")
        peer.send_bytes(asked)
        await check_broker_answers(here, peer, asked)
        assert here.coordinator.accepted == 0


async def test_request_in_single_bytes_is_routed_like_a_whole_one() -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()

        async def send_slowly(data: bytes) -> None:
            for at in range(len(data)):
                await peer.send_all(data[at : at + 1])
                await asyncio.sleep(0)

        for part in (
            encode_request(API_VERSIONS, None, version=4),
            handshake_request(),
            token_request(plain_token()),
        ):
            await send_slowly(part)
            await peer.read_frame()
        asked = encode_request(WRITE, PERSISTER, b"in pieces")
        await send_slowly(asked)
        await check_coordinator_answers(here, peer, asked)


@pytest.mark.parametrize("client_id", [PERSISTER, FETCHER])
async def test_pipelined_requests_are_routed_without_waiting_for_responses(client_id: str) -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        first, second = encode_request(WRITE, client_id, b"one"), encode_request(WRITE, client_id, b"two")
        peer.send_bytes(
            encode_request(API_VERSIONS, None)
            + handshake_request()
            + token_request(plain_token())
            + first
            + second
        )
        for _ in range(3):
            await peer.read_frame()
        place = here.coordinator if client_id == PERSISTER else here.broker
        speaker = await place.next_connection()
        assert await speaker.read_exactly(len(first + second)) == first + second


async def test_unlisted_principal_cannot_reach_the_coordinator() -> None:
    async with run_relay() as here:
        persister, fetcher = await here.connect_peer(), await here.connect_peer()
        await persister.log_in(plain_token("eve"))
        persister.send_bytes(encode_request(WRITE, PERSISTER))
        assert await persister.wait_until_closed()
        assert here.figures.refused == {"principal": 1}
        # The relay does not restrict requests to the broker; the broker authorizes them.
        await fetcher.log_in(plain_token("eve"))
        asked = encode_request(FETCH, FETCHER)
        fetcher.send_bytes(asked)
        await check_broker_answers(here, fetcher, asked)
        assert here.coordinator.accepted == 0


async def test_wrong_password_is_answered_by_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.exchange_frame(handshake_request())
        assert b"no" in await peer.exchange_frame(token_request(plain_token(password="guessed")))
        assert await peer.wait_until_closed()
        # The broker sees only the address of the relay.
        assert here.figures.refused == {"login_failed": 1}
        assert f"The broker refused a login from {HERE}." in caplog.messages


async def test_unknown_mechanism_is_answered_by_the_broker() -> None:
    async with run_relay() as here:
        other = await here.connect_peer()
        assert b"PLAIN" in await other.exchange_frame(handshake_request("MAGIC"))
        assert await other.wait_until_closed()


SCRAM_FIRST = b"n,,n=kafka,r=a-nonce"


async def test_scram_login_takes_two_messages() -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.log_in(SCRAM_FIRST, "SCRAM-SHA-512")
        await peer.exchange_frame(token_request(b"proof"))
        asked = encode_request(WRITE, PERSISTER)
        peer.send_bytes(asked)
        await check_coordinator_answers(here, peer, asked)


async def test_incomplete_scram_login_is_unauthenticated() -> None:
    """The broker's response within SCRAM has no error, but DescribeCluster before its end is refused."""
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.log_in(SCRAM_FIRST, "SCRAM-SHA-512")
        peer.send_bytes(encode_request(WRITE, PERSISTER))
        assert await peer.wait_until_closed()
        assert here.coordinator.accepted == 0
        assert here.figures.refused == {"unauthenticated": 1}


@pytest.mark.parametrize(
    "before",
    [
        b"",
        encode_request(API_VERSIONS, None, version=4),
        handshake_request(),
        encode_request(API_VERSIONS, None) + handshake_request(),
    ],
    ids=["nothing", "versions", "handshake", "both"],
)
async def test_persister_without_a_login_is_refused(before: bytes) -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        peer.send_bytes(before + encode_request(WRITE, PERSISTER))
        for _ in FrameReader(1 << 20).receive_data(before):
            await peer.read_frame()
        assert await peer.wait_until_closed()
        assert here.coordinator.accepted == 0
        assert here.figures.refused == {"unauthenticated": 1}


async def test_second_handshake_does_not_change_the_principal() -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.log_in(plain_token("eve"))
        # A broker answers these requests with errors. The second user name is an allowed principal.
        peer.send_bytes(
            handshake_request()
            + token_request(plain_token("kafka", "guessed"))
            + encode_request(WRITE, PERSISTER)
        )
        asked = handshake_request()
        await check_broker_answers(here, peer, asked)
        assert here.coordinator.accepted == 0


async def test_second_sasl_message_does_not_change_the_principal() -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.log_in(plain_token("eve"))
        peer.send_bytes(token_request(plain_token("kafka", "guessed")) + encode_request(WRITE, PERSISTER))
        # The relay waits for the broker's response, which is an error.
        broker = await here.broker.next_connection()
        assert await broker.read_frame() == token_request(plain_token("kafka", "guessed"))[4:]
        broker.send_bytes(encode_frame(b"\0\0\0\x08\0\0\x22\0\x01\0\0\0\0\0\0\0\0\0"))
        await peer.read_frame()
        assert await peer.wait_until_closed()
        assert here.coordinator.accepted == 0


async def test_bare_sasl_tokens_are_routed_to_the_broker() -> None:
    """Before KIP-152, tokens followed the handshake without a request header."""
    async with run_relay() as here:
        peer = await here.connect_peer()
        said = handshake_request(version=0) + encode_frame(plain_token()) + encode_request(WRITE, PERSISTER)
        peer.send_bytes(said)
        broker = await here.broker.next_connection()
        assert await broker.read_exactly(len(said)) == said
        assert here.coordinator.accepted == 0


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff\xff\xff\xff" + b"x" * 40,
        b"\0\0\0\0" * 10,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500,
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        handshake_request()[:4] + b"\0\x11\0\x01\0\0\0\0\xff\xff\x7f\xff",
        encode_frame(b"\0\x24\0\x02\0\0\0\0\xff\xff\0\x7f"),
    ],
    ids=["negative", "empty", "tls", "http", "handshake", "token"],
)
async def test_malformed_bytes_close_the_connection(noise: bytes) -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        peer.send_bytes(noise)
        peer.close_sending()
        assert await peer.wait_until_closed()
        # Other connections are not affected.
        other = await here.connect_peer()
        await other.log_in()
        asked = encode_request(WRITE, PERSISTER)
        other.send_bytes(asked)
        await check_coordinator_answers(here, other, asked)


async def test_sasl_token_over_the_size_limit_is_not_read() -> None:
    async with run_relay() as here:
        peer = await here.connect_peer()
        await peer.exchange_frame(handshake_request())
        peer.send_bytes(token_request(b"x" * (600 << 10))[: 64 << 10])
        assert await peer.wait_until_closed()


async def test_only_a_sasl_token_frame_may_be_large() -> None:
    async with run_relay() as here:
        for before, asked in (
            (b"", encode_request(API_VERSIONS, "x" * 9_000)),
            (b"", handshake_request("x" * 9_000)),
            (encode_request(API_VERSIONS, None), handshake_request("x" * 9_000)),
        ):
            peer = await here.connect_peer()
            if before:
                await peer.exchange_frame(before)
            # The relay closes without waiting for the rest of the frame.
            peer.send_bytes(asked[:100])
            assert await peer.wait_until_closed()
        assert here.figures.refused == {"bad_frame": 3}


async def test_large_sasl_tokens_share_a_memory_limit() -> None:
    large = token_request(plain_token(password="x" * (100 << 10)))
    async with run_relay(limits=LIMITS._replace(large_frames_bytes_max=150 << 10)) as here:
        first, second, third = [await here.connect_peer() for _ in range(3)]
        for peer in (first, second, third):
            await peer.exchange_frame(handshake_request())
        first.send_bytes(large[:100])
        # The response to a later connection shows that the relay has read the first bytes.
        await (await here.connect_peer()).exchange_frame(handshake_request())
        second.send_bytes(large[:100])
        assert await second.wait_until_closed()
        assert here.figures.refused == {"no_room": 1}
        # A login with a token of ordinary size needs none of this memory.
        await (await here.connect_peer()).log_in()
        first.close_connection()
        await wait_until(lambda: here.figures.undecided == 3)
        assert b"no" in await third.exchange_frame(large)


@pytest.mark.slow
async def test_slow_authentication_times_out() -> None:
    async with run_relay(limits=LIMITS._replace(handshake_s=4.0)) as here:
        silent, halfway = await here.connect_peer(), await here.connect_peer()
        await halfway.exchange_frame(handshake_request())
        assert await silent.wait_until_closed()
        assert await halfway.wait_until_closed()
        assert here.figures.refused == {"slow_handshake": 2}
        assert here.figures.undecided == 0


async def test_unrouted_connections_are_closed_for_new_ones_at_the_connection_limit() -> None:
    async with run_relay(check="none", limits=LIMITS._replace(connections_max=1)) as here:
        silent, broker = await here.connect_peer(), await here.connect_peer()
        assert await silent.wait_until_closed()
        broker.send_bytes(encode_request(METADATA + 1, FETCHER, b"a body"))
        await wait_until(lambda: here.figures.open["broker"] == 1)
        late = await here.connect_peer()
        assert await late.wait_until_closed()
        assert here.figures.refused == {"too_many_connections": 2}
        broker.close_connection()
        await wait_until(lambda: here.figures.open["broker"] == 0)
        next_broker = await here.connect_peer()
        next_broker.send_bytes(encode_request(METADATA + 1, FETCHER, b"a body"))
        await wait_until(lambda: here.figures.open["broker"] == 1)


@pytest.mark.parametrize("client_id", [PERSISTER, FETCHER])
async def test_first_frame_determines_the_destination_if_logins_are_not_checked(client_id: str) -> None:
    async with run_relay(check="none") as here:
        peer = await here.connect_peer()
        asked = encode_request(METADATA + 1, client_id, b"a body")
        peer.send_bytes(asked)
        if client_id == PERSISTER:
            await check_coordinator_answers(here, peer, asked)
            assert here.broker.accepted == 0
        else:
            await wait_until(lambda: here.broker.accepted == 1)
            assert here.coordinator.accepted == 0
