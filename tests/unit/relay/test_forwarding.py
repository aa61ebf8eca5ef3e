"""Forwarding after routing: unchanged bytes, backpressure, closed or unreachable peers, and stops."""

import asyncio
import hashlib
from functools import partial

import pytest
import uvloop

from coordinator.serve.relay import connection as connection_module
from tests.unit.relay.fake_peers import (
    ANSWER,
    LIMITS,
    PERSISTER,
    WRITE,
    FrameStream,
    connect_fetcher,
    connect_persister,
    encode_frame,
    encode_request,
    handshake_request,
    run_relay,
    wait_seconds,
    wait_until,
)

pytestmark = pytest.mark.run_with(function=uvloop.run)

MIB = 1 << 20


async def read_and_hash(stream: FrameStream, count: int) -> bytes:
    seen = hashlib.sha256()
    while count:
        step = min(count, MIB)
        seen.update(await stream.read_exactly(step))
        count -= step
    return seen.digest()


async def test_bytes_are_forwarded_unchanged_in_both_directions() -> None:
    there, back = bytes(range(256)) * 4096 * 16, bytes(range(255, -1, -1)) * 4096 * 16
    async with run_relay() as here:
        peer, broker = await connect_fetcher(here)
        _, _, seen_there, seen_back = await asyncio.gather(
            peer.send_all(there),
            broker.send_all(back),
            read_and_hash(broker, len(there)),
            read_and_hash(peer, len(back)),
        )
        assert seen_there == hashlib.sha256(there).digest()
        assert seen_back == hashlib.sha256(back).digest()
        assert here.figures.bytes_to["broker"] >= len(there)
        assert here.figures.bytes_from["broker"] >= len(back)


async def test_relay_stops_reading_while_the_other_side_reads_slowly() -> None:
    async with run_relay() as here:
        peer, broker = await connect_fetcher(here)
        flood = asyncio.ensure_future(broker.send_all(b"x" * (64 * MIB)))
        moved, stood_still = -1, 0
        while stood_still < 20:
            await asyncio.sleep(0.01)
            stood_still = stood_still + 1 if here.figures.bytes_from["broker"] == moved else 0
            moved = here.figures.bytes_from["broker"]
        # Almost all bytes in flight are in socket buffers of the system.
        assert moved < 32 * MIB
        # Other connections are still served.
        other, other_broker = await connect_fetcher(here)
        other_broker.send_bytes(ANSWER)
        await other.read_frame()
        await read_and_hash(peer, 64 * MIB)
        await flood


async def test_bytes_in_flight_arrive_after_the_broker_closes() -> None:
    async with run_relay() as here:
        peer, broker = await connect_fetcher(here)
        broker.send_bytes(b"y" * (4 * MIB))
        broker.close_connection()
        assert await peer.read_exactly(4 * MIB) == b"y" * (4 * MIB)
        assert await peer.wait_until_closed()
        peer.close_connection()
        await wait_until(lambda: here.figures.open["broker"] == 0)


async def test_half_closed_peer_still_receives_the_response() -> None:
    async with run_relay() as here:
        peer, broker = await connect_fetcher(here)
        peer.close_sending()
        assert await broker.wait_until_closed()
        await connect_fetcher(here)
        broker.send_bytes(ANSWER)
        assert encode_frame(await peer.read_frame()) == ANSWER
        broker.close_connection()
        assert await peer.wait_until_closed()


async def test_half_closed_connection_times_out() -> None:
    async with run_relay(limits=LIMITS._replace(half_closed_s=0.1)) as here:
        peer, broker = await connect_fetcher(here)
        peer.close_sending()
        assert await broker.wait_until_closed()
        await wait_until(lambda: here.figures.open["broker"] == 0)
        assert await peer.wait_until_closed()


@pytest.mark.slow
async def test_idle_connection_is_closed() -> None:
    async with run_relay(limits=LIMITS._replace(idle_s=3.0)) as here:
        (idle, _), (held, _) = await connect_fetcher(here), await connect_persister(here)
        busy, broker = await connect_fetcher(here)

        async def send_continuously() -> None:
            while True:
                broker.send_bytes(ANSWER)
                await busy.read_frame()
                await asyncio.sleep(0.05)

        keeping = asyncio.ensure_future(send_continuously())
        assert await idle.wait_until_closed()
        assert await held.wait_until_closed()
        assert not keeping.done()
        keeping.cancel()
        assert here.figures.refused == {"idle": 2}


async def test_persister_waits_while_the_coordinator_restarts() -> None:
    async with run_relay() as here:
        await here.coordinator.stop()
        peer = await here.connect_peer()
        await peer.log_in()
        asked = encode_request(WRITE, PERSISTER)
        peer.send_bytes(asked)
        await wait_until(lambda: here.figures.failed_connects["coordinator"] >= 2)
        assert here.figures.awaiting_coordinator == 1
        # Other connections do not wait.
        await connect_fetcher(here)
        await here.coordinator.start()
        coordinator = await here.coordinator.next_connection()
        assert encode_frame(await coordinator.read_frame()) == asked
        assert here.figures.awaiting_coordinator == 0


async def test_wait_for_the_coordinator_times_out() -> None:
    async with run_relay(limits=LIMITS._replace(coordinator_wait_s=0.2)) as here:
        await here.coordinator.stop()
        peer = await here.connect_peer()
        await peer.log_in()
        peer.send_bytes(encode_request(WRITE, PERSISTER))
        assert await peer.wait_until_closed()
        assert here.figures.refused == {"no_coordinator": 1}


async def test_coordinator_failure_closes_only_its_persisters() -> None:
    async with run_relay() as here:
        (peer, _), (other, broker) = await connect_persister(here), await connect_fetcher(here)
        await here.coordinator.stop()
        assert await peer.wait_until_closed()
        broker.send_bytes(ANSWER)
        assert encode_frame(await other.read_frame()) == ANSWER


async def test_closed_persister_closes_its_coordinator_connection() -> None:
    async with run_relay() as here:
        peer, coordinator = await connect_persister(here)
        peer.send_bytes(encode_request(WRITE, PERSISTER))
        await coordinator.read_frame()
        peer.close_connection()
        assert await coordinator.wait_until_closed()


async def test_restarting_broker_is_retried_a_limited_number_of_times() -> None:
    async with run_relay(limits=LIMITS._replace(broker_attempts=20)) as here:
        await here.broker.stop()
        peer = await here.connect_peer()
        logging_in = asyncio.ensure_future(peer.log_in())
        await wait_until(lambda: here.figures.failed_connects["broker"] >= 2)
        await here.broker.start()
        await logging_in
        await here.broker.stop()
        disconnected = await here.connect_peer()
        disconnected.send_bytes(handshake_request())
        assert await disconnected.wait_until_closed()
        assert here.figures.refused == {"no_broker": 1}


async def test_many_and_large_requests_are_forwarded() -> None:
    async with run_relay() as here:
        peer, coordinator = await connect_persister(here)
        asked = [encode_request(WRITE, PERSISTER, b"z" * size) for size in (0, 5, MIB, 17, 3 * MIB)]
        peer.send_bytes(b"".join(asked))
        for frame in asked:
            assert encode_frame(await coordinator.read_frame()) == frame
        answers = [encode_frame(b"\0\0\0\7" + b"a" * size) for size in (2 * MIB, 0, 9)]
        coordinator.send_bytes(b"".join(answers))
        for frame in answers:
            assert encode_frame(await peer.read_frame()) == frame


async def test_partial_requests_are_forwarded_at_once() -> None:
    async with run_relay() as here:
        peer, coordinator = await connect_persister(here)
        asked = (
            encode_request(WRITE, PERSISTER, b"z")
            + encode_request(WRITE, PERSISTER)
            + encode_request(WRITE, PERSISTER, b"y" * 9)
        )
        for at in range(len(asked)):
            await peer.send_all(asked[at : at + 1])
            # The relay forwards most bytes before the frame is complete.
            if at % 7 == 0:
                await wait_until(lambda at=at: here.figures.bytes_to["coordinator"] > at - 6)
        assert await coordinator.read_exactly(len(asked)) == asked
        for byte in ANSWER * 3:
            await coordinator.send_all(bytes([byte]))
            await asyncio.sleep(0)
        assert await peer.read_exactly(len(ANSWER) * 3) == ANSWER * 3


async def test_malformed_request_closes_the_connection() -> None:
    async with run_relay() as here:
        peer, coordinator = await connect_persister(here)
        peer.send_bytes(encode_frame(b"\0"))
        assert await peer.wait_until_closed()
        assert await coordinator.wait_until_closed()
        assert here.figures.refused == {"bad_frame": 1}


# Stops and internal errors.


async def test_stop_waits_only_for_responses_of_the_coordinator() -> None:
    async with run_relay() as here:
        (peer, coordinator), (other, _) = await connect_persister(here), await connect_fetcher(here)
        peer.send_bytes(encode_request(WRITE, PERSISTER, b"the last one"))
        await coordinator.read_frame()
        stopping = asyncio.ensure_future(here.listener.stop())
        assert await other.wait_until_closed()
        with pytest.raises(OSError, match=r"."):
            await here.connect_peer()
        await wait_seconds(0.05)
        assert not stopping.done()
        coordinator.send_bytes(ANSWER)
        assert encode_frame(await peer.read_frame()) == ANSWER
        assert await peer.wait_until_closed()
        await stopping


async def test_relay_stop_times_out() -> None:
    async with run_relay(limits=LIMITS._replace(stop_s=0.1)) as here:
        peer, coordinator = await connect_persister(here)
        peer.send_bytes(encode_request(WRITE, PERSISTER, b"the last one"))
        await coordinator.read_frame()
        await here.listener.stop()
        assert await peer.wait_until_closed()


async def test_internal_error_closes_only_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_relay() as here:
        _, broker = await connect_fetcher(here)
        with monkeypatch.context() as patch:
            patch.setattr(connection_module, "authenticate", partial(_raise_defect))
            peer = await here.connect_peer()
            peer.send_bytes(handshake_request())
            assert await peer.wait_until_closed()
        assert "the relay closed a connection" in caplog.text
        assert here.figures.refused == {"internal_error": 1}
        broker.send_bytes(ANSWER)
        await connect_persister(here)


async def _raise_defect(*_: object) -> None:
    raise RuntimeError("a defect")
