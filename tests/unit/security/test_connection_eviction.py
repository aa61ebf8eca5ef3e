"""The connections that a server closes for a new client when it has reached its connection limit."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from coordinator.process import event_loop
from coordinator.process.fair_queue import FairQueue
from coordinator.security.connection_eviction import evict_oldest
from coordinator.security.tls_acceptor import FairAcceptor


@dataclass
class OpenConnection:
    network: str
    last_active_s: float
    is_open: bool = True

    def evict(self) -> None:
        assert self.is_open, "a connection is evicted once"
        self.is_open = False


def make_connections(network: str, count: int) -> list[OpenConnection]:
    return [OpenConnection(network, count - number) for number in range(count)]


def test_oldest_sixteenth_of_the_connections_of_the_busiest_address_is_evicted() -> None:
    attacker, probe = make_connections("192.0.2.1", 32), make_connections("192.0.2.2", 1)
    assert evict_oldest(probe + attacker) == 3
    assert all(each.is_open for each in probe)
    assert [each.last_active_s for each in attacker if not each.is_open] == [3, 2, 1]


def test_connections_of_other_addresses_are_evicted_if_more_are_needed() -> None:
    small, large = make_connections("192.0.2.1", 2), make_connections("192.0.2.2", 3)
    assert evict_oldest(small + large, at_least=4) == 4
    assert [each.is_open for each in large] == [False, False, False]
    assert [each.is_open for each in small] == [True, False]


def test_nothing_is_evicted_without_candidates() -> None:
    assert evict_oldest([], at_least=1) == 0


class EvictingTurns(FairQueue):
    """Runs each setup at once, and evicts the connection before the event loop reports it."""

    def add(self, address: str, work: Callable[[], None]) -> None:
        work()
        asyncio.get_running_loop().call_soon(self.acceptor.stop)

    acceptor: FairAcceptor


def test_connection_that_is_evicted_during_its_setup_gets_no_protocol() -> None:
    made: list[asyncio.Protocol] = []

    def make_protocol(_: asyncio.Transport) -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    async def run_test() -> None:
        turns = EvictingTurns()
        turns.acceptor = FairAcceptor(
            None, 60.0, lambda: 1, list, make_protocol, lambda reason, sentence, peer: None, turns
        )
        await turns.acceptor.start("127.0.0.1", 0, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", turns.acceptor.port)
        writer.write(b"x")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    event_loop.run(run_test())
    assert made == []
