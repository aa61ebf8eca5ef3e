"""The connections that a server closes for a new client when it has reached its connection limit."""

from dataclasses import dataclass

from coordinator.security.connection_eviction import evict_oldest


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
