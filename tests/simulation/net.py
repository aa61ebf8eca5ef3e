"""Simulate TCP connections between clients and the real listener, with delays, splits and losses.

* Bytes arrive in chunks of any size and after any delay; connections may overtake each other.
* A connection is cut between any two bytes. Client and server detect the cut at different times, or one of
them never detects it (half open). * A client stops reading for a while. * The whole network is blocked for a
while.

As with TCP, the bytes of one direction arrive unchanged and in order while both ends are connected.
"""

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import SimLoop
from tests.simulation.pipes import FIN, RESET, RETRANSMISSION_TIMEOUT_S, NetFaults, Pipe, ServerTransport

if TYPE_CHECKING:
    from tests.simulation.kafka.connections import BrokerNetwork


class ClientEnd:
    """The client's end of a connection.

    The client must set `on_data` and `on_lost` before the next iteration of the event loop.
    """

    def __init__(self, link: "SimConnection") -> None:
        self._link = link
        self.number = link.number
        self.closed = False
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[], None] = lambda: None

    @property
    def is_unaffected_by_faults(self) -> bool:
        """Whether no fault has affected this connection."""
        link = self._link
        return not (
            self.closed or link.to_client.vanished or link.to_client.paused or link.to_server.vanished
        )

    def send(self, data: bytes) -> None:
        if not self.closed:
            self._link.to_server.send(data)

    def close(self, *, reset: bool = False) -> None:
        if self.closed:
            return
        self.closed = True
        link = self._link
        link.to_server.finish(RESET if reset else FIN)
        link.to_client.vanished = True
        if not link.to_server.vanished:
            link.run_at_server(link.network.faults.latency_s, link.transport.on_client_closed)

    def read_slowly(self, pause_s: float) -> None:
        """Stop reading for `pause_s` seconds."""
        self._link.to_client.paused = True
        self._link.run_at_client(pause_s, self._link.to_client.resume)

    def deliver_data(self, item: Any) -> None:
        """Pass bytes from the server, or the end of the connection, to the client."""
        if self.closed:
            return
        if isinstance(item, bytes):
            self.on_data(item)
        else:
            self.closed = True
            self.on_lost()


class ClientTransport(asyncio.Transport):
    """A client's end as an asyncio transport."""

    def __init__(self, end: ClientEnd, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._end = end
        self._protocol = protocol
        end.on_data = protocol.data_received
        end.on_lost = lambda: protocol.connection_lost(None)

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Send bytes, unless closed."""
        self._end.send(data)

    def is_closing(self) -> bool:
        """Return whether the connection is closed or lost."""
        return self._end.closed

    def close(self) -> None:
        """Close the connection."""
        self._close(reset=False)

    def abort(self) -> None:
        """Reset the connection."""
        self._close(reset=True)

    def _close(self, *, reset: bool) -> None:
        if not self._end.closed:
            self._end.close(reset=reset)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class SimConnection:
    """One TCP connection: a pipe for each direction, both ends, and the faults that the seed determines."""

    def __init__(self, network: "Network", rng: Random, number: int, address: tuple[str, int]) -> None:
        self.network = network
        self.rng = rng
        self.number = number
        self.address = address
        self.client = ClientEnd(self)
        faults = network.faults
        cut_up, cut_down = None, None
        self._half_open = rng.random() < faults.half_open_rate
        if self._half_open or rng.random() < faults.cut_rate:
            after = 1 + int(rng.expovariate(1 / faults.cut_after_bytes))
            if rng.random() < 0.5:
                cut_up = after
            else:
                cut_down = after
        self._cut_up = cut_up
        self._client_context = contextvars.copy_context()
        self._server_context = self._client_context
        self.to_client = Pipe(self, self._client_context, self.client.deliver_data, cut_down)
        self.to_server: Pipe
        self.transport: ServerTransport

    def accept(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Create the listener's end.

        Accept the connection; the caller runs this method in the context of the listener.
        """
        protocol = factory()
        self._server_context = contextvars.copy_context()
        self.transport = ServerTransport(self, protocol)
        self.to_server = Pipe(self, self._server_context, self.transport.deliver_data, self._cut_up)
        self.to_client.on_delivered = self.transport.on_bytes_received
        protocol.connection_made(self.transport)

    def run_at_client(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        self.network.loop.call_later(delay_s, callback, *args, context=self._client_context)

    def run_at_server(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Schedule a callback in the context of the listener's process."""
        self.network.loop.call_later(delay_s, callback, *args, context=self._server_context)

    def cut_connection(self) -> None:
        """Cut the connection. Cut the connection; if it becomes half open, one end never detects the cut."""
        client_unaware = self._half_open and self.rng.random() < 0.5
        server_unaware = self._half_open and not client_unaware
        if not client_unaware:
            self.run_at_client(self.rng.expovariate(20), self.client.deliver_data, RESET)
        self.to_client.vanished = True
        if server_unaware:
            self.to_server.vanished = True
            self.run_at_server(RETRANSMISSION_TIMEOUT_S, self.transport.on_retransmission_timeout)
        else:
            self.to_server.finish(RESET)
            self.run_at_server(self.rng.expovariate(20), self.transport.on_client_closed)


class Network:
    """All connections and listeners of the simulation."""

    def __init__(self, loop: SimLoop, rng: Random, faults: NetFaults) -> None:
        self.loop = loop
        self.faults = faults
        self.blocked_until_s = 0.0
        self.links: set[SimConnection] = set()
        # The simulated clusters, by the addresses of their brokers.
        self.brokers: dict[tuple[str, int], BrokerNetwork] = {}
        self._rng = rng
        self._numbers = 0
        self._listening: dict[tuple[str, int], _SimServer] = {}

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> "_SimServer":
        """Accept connections to an address, in the context of the caller."""
        if (host, port) in self._listening:
            raise OSError(98, "address in use")
        server = _SimServer(self, (host, port), factory, contextvars.copy_context())
        self._listening[host, port] = server
        return server

    def stop_listening(self, address: tuple[str, int]) -> None:
        """Stop accepting connections to an address."""
        self._listening.pop(address, None)

    async def connect(self, host: str, port: int) -> ClientEnd:
        """Open a connection. Raises ConnectionRefusedError if no process listens on the address."""
        self._numbers += 1
        link = SimConnection(self, Random(self._rng.getrandbits(64)), self._numbers, (host, port))
        await asyncio.sleep(self.faults.latency_s + max(0.0, self.blocked_until_s - self.loop.time()))
        server = self._listening.get((host, port))
        if server is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        self.links.add(link)
        server.context.copy().run(link.accept, server.factory)
        return link.client

    async def open(self, protocol: asyncio.Protocol, host: str, port: int) -> asyncio.Transport:
        """Open a connection for an asyncio protocol, to a listener or a broker.

        Raises ConnectionRefusedError if no process listens on the address.
        """
        brokers = self.brokers.get((host, port))
        if brokers is not None:
            return await brokers.open(protocol, (host, port))
        return ClientTransport(await self.connect(host, port), protocol)

    def drop_connections(self, address: tuple[str, int]) -> None:
        """Drop the connections of a dead process; clients detect that soon, but never in 10 % of cases."""
        rng = self._rng
        self._listening.pop(address, None)
        links = {link for link in self.links if link.address == address}
        self.links -= links
        for link in sorted(links, key=lambda link: link.number):
            link.to_server.vanished = True
            if rng.random() < 0.9:
                link.run_at_client(rng.expovariate(20), link.client.deliver_data, RESET)
            else:
                link.to_client.vanished = True

    def block_traffic(self, seconds: float) -> None:
        """Block all traffic for `seconds`; data that is sent in the meantime arrives afterwards."""
        self.blocked_until_s = max(self.blocked_until_s, self.loop.time() + seconds)


@dataclass
class _SimServer:
    """The methods of asyncio.Server that the listener uses."""

    network: Network
    address: tuple[str, int]
    factory: Callable[[], asyncio.Protocol]
    context: contextvars.Context

    def close(self) -> None:
        """Stop accepting connections."""
        self.network.stop_listening(self.address)
