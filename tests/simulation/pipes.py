"""The two directions of a simulated connection, and the end of it that a protocol of asyncio talks to."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.net import Link

# How long TCP sends again what nobody confirms before it gives a connection up.
TCP_GIVES_UP_S = 900.0

FIN = object()
RESET = object()


@dataclass(frozen=True)
class NetFaults:
    """Rates are per connection. Times in seconds, means of exponential delays where they are random."""

    latency_s: float = 0.001
    jitter_s: float = 0.0
    split_rate: float = 0.0
    cut_rate: float = 0.0
    half_open_rate: float = 0.0
    cut_after_bytes: int = 4_000
    stall_rate: float = 0.0
    stall_s: float = 1.0
    # What the system's send buffer takes before the transport has to hold bytes itself, and how many it holds
    # before it asks its protocol to pause.
    send_buffer_bytes: int = 65_536
    high_water_bytes: int = 65_536


class Pipe:
    """One direction of a connection: chunks in order, each delivered at its time, into `sink`."""

    def __init__(
        self, link: "Link", context: contextvars.Context, sink: Callable[[Any], None], cut_after: int | None
    ) -> None:
        self.link = link
        self.in_flight = 0
        # Nothing arrives any more, and the sender does not know.
        self.vanished = False
        # The reader has gone: nothing that is sent takes room any more.
        self.discarding = False
        self.paused = False
        self.on_delivered: Callable[[], None] | None = None
        self._context = context
        self._sink = sink
        self._cut_after = cut_after
        self._was_cut = False
        self._arrived: deque[Any] = deque()
        self._last_s = 0.0

    def send(self, data: bytes) -> None:
        """Take bytes; pieces of them arrive later."""
        if self.discarding:
            return
        self.in_flight += len(data)
        rng, faults = self.link.rng, self.link.network.faults
        while data:
            piece = len(data)
            if piece > 1 and rng.random() < faults.split_rate:
                piece = rng.randrange(1, piece)
            self._schedule(data[:piece])
            data = data[piece:]

    def finish(self, item: object = FIN) -> None:
        """Let the other end know, behind the last byte, that nothing more comes."""
        self._schedule(item)

    def discard(self) -> None:
        """Drop what is under way and all that is sent from now on: the reader has gone."""
        self.discarding = True
        self.in_flight = 0

    def _schedule(self, item: Any) -> None:
        network = self.link.network
        loop, rng, faults = network.loop, self.link.rng, network.faults
        # Never quite the same: what happens to several connections at one instant happens in the order of a
        # set, which is another one each time.
        delay_s = faults.latency_s * rng.uniform(0.9, 1.1) + (
            rng.expovariate(1 / faults.jitter_s) if faults.jitter_s else 0.0
        )
        if rng.random() < faults.stall_rate:
            delay_s += rng.expovariate(1 / faults.stall_s)
        # A hair later than the chunk before: the order on a connection is fixed.
        self._last_s = max(self._last_s + 1e-7, loop.time() + delay_s, network.clogged_until_s + delay_s)
        loop.call_at(self._last_s, self._arrive, item, context=self._context)

    def _arrive(self, item: Any) -> None:
        if self.vanished or self.discarding:
            return
        self._arrived.append(item)
        if not self.paused:
            self.deliver()

    def resume(self) -> None:
        """Hand over what arrived while nobody read."""
        self.paused = False
        self.link.network.loop.call_soon(self.deliver, context=self._context)

    def deliver(self) -> None:
        """Hand over what has arrived, unless the reader pauses in between."""
        while self._arrived and not (self.paused or self.vanished or self.discarding):
            item = self._arrived.popleft()
            if isinstance(item, bytes):
                self.in_flight -= len(item)
                if come_through := self._cut(item):
                    self._sink(come_through)
                if self.on_delivered is not None:
                    self.on_delivered()
            else:
                self._sink(item)

    def _cut(self, item: bytes) -> bytes:
        """Return what of a chunk comes through: nothing behind the place where the connection is cut."""
        if self._was_cut:
            return b""
        if self._cut_after is None:
            return item
        left = self._cut_after
        self._cut_after = left - len(item)
        if self._cut_after <= 0:
            self._was_cut = True
            self.link.break_off()
            return item[:left]
        return item


class ServerTransport(asyncio.Transport):
    """The listener's end: what its protocol sees as a TCP transport."""

    def __init__(self, link: "Link", protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._link = link
        self._protocol = protocol
        self._closing = False
        self._lost = False
        self._writing_paused = False
        self._peer_gone = False

    # What a protocol calls.

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Send bytes, unless closing."""
        if self._closing or self._lost:
            return
        if self._peer_gone:
            self._lose_soon(BrokenPipeError("the client has gone"))
            return
        self._link.to_client.send(data)
        if not self._writing_paused and self.get_write_buffer_size() > self._faults.high_water_bytes:
            self._writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the system has not taken yet."""
        return max(0, self._link.to_client.in_flight - self._faults.send_buffer_bytes)

    def is_closing(self) -> bool:
        """Tell whether close was called or the connection lost."""
        return self._closing or self._lost

    def close(self) -> None:
        """Read no more; be lost when what was written has gone out."""
        if self._closing or self._lost:
            return
        self._closing = True
        if not self.get_write_buffer_size():
            self._lose_soon(None)

    def abort(self) -> None:
        """Be lost at once."""
        self._closing = True
        self._lose_soon(None)

    def pause_reading(self) -> None:
        """Hold back what arrives."""
        assert not self._closing
        assert not self._link.to_server.paused, "reading is paused twice"
        self._link.to_server.paused = True

    def resume_reading(self) -> None:
        """Hand on what arrived."""
        assert not self._closing
        assert self._link.to_server.paused, "reading is resumed twice"
        self._link.to_server.resume()

    # What the network calls.

    @property
    def _faults(self) -> NetFaults:
        return self._link.network.faults

    def arrive(self, item: Any) -> None:
        """Give the protocol what the client sent."""
        if self._closing or self._lost:
            return
        if item is RESET:
            self._lose(ConnectionResetError("reset by the client"))
        elif item is FIN:
            if not self._protocol.eof_received():
                self.close()
        else:
            self._protocol.data_received(item)

    def delivered(self) -> None:
        """Note that the client has taken bytes."""
        if self._lost:
            return
        if self._writing_paused and self.get_write_buffer_size() <= self._faults.high_water_bytes // 4:
            self._writing_paused = False
            self._protocol.resume_writing()
        if self._closing and not self.get_write_buffer_size():
            self._lose_soon(None)

    def peer_gone(self) -> None:
        """Note that the client's socket is gone: writes fail from now on, those under way too."""
        if self.get_write_buffer_size():
            self._lose(ConnectionResetError("reset by the client"))
        self._peer_gone = True
        self._link.to_client.discard()

    def give_up(self) -> None:
        """Be lost if TCP has sent in vain; called from time to time on a half-open connection."""
        if self._link.to_client.in_flight or self._closing:
            self._lose(TimeoutError("the client confirms nothing"))
        elif not self._lost:
            self._link.at_server(TCP_GIVES_UP_S, self.give_up)

    def _lose_soon(self, error: Exception | None) -> None:
        self._link.at_server(0.0, self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._link.to_client.finish()
        self._link.network.links.discard(self._link)
        self._protocol.connection_lost(error)
