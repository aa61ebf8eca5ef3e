"""Share the event loop between client addresses: one unit of work per iteration, the addresses in turn.

Each iteration of the event loop also serves every authorized client that is ready, so the delay that hostile
clients can cause is one unit of work. An address with many connections delays only its own requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from ipaddress import IPv6Address

Work = Callable[[], None]

# An IPv6 client can use all 2^64 addresses of its network, so the whole network counts as one address.
_IPV6_NETWORK_BITS = 64


class FairQueue:
    """Runs units of work, the addresses in turn. A unit should take about a millisecond at most."""

    def __init__(self) -> None:
        # The units of work by address, in the order in which the addresses are served next.
        self._work: dict[str, deque[Work]] = {}

    def add(self, address: str, work: Work) -> None:
        """Queue a unit of work for an address, after the earlier work of this address."""
        if not self._work:
            asyncio.get_running_loop().call_soon(self._run_next_work_unit)
        self._work.setdefault(address, deque()).append(work)

    async def wait_for_turn(self, address: str) -> None:
        """Wait for the turn of this address; the caller's next step is then the unit of work."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant_turn() -> None:
            if not granted.done():
                granted.set_result(None)

        self.add(address, grant_turn)
        await granted

    def _run_next_work_unit(self) -> None:
        address = next(iter(self._work))
        queued = self._work.pop(address)
        work = queued.popleft()
        if queued:
            self._work[address] = queued
        if self._work:
            asyncio.get_running_loop().call_soon(self._run_next_work_unit)
        work()


def client_network(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of a transport's client without the port; for IPv6, that of its network."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return address_network(peer)


def address_network(peer: object) -> str:
    """Return the host of a socket address; for IPv6, the address of its network."""
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0])
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = int(address) >> (128 - _IPV6_NETWORK_BITS) << (128 - _IPV6_NETWORK_BITS)
    return str(IPv6Address(network))
