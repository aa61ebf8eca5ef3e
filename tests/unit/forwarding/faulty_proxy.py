"""A proxy in front of a coordinator that reads frames and injects faults.

The proxy listens at the address that the coordinator advertises, as HAProxy does in a deployment. The proxy
uses the simulated network.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.frames import FrameReader
from protocol.messages import request_header, request_header_version
from tests.simulation.net import Network

_FRAME_BYTES_MAX = 1 << 24
# A response body: no tagged fields in the header, an empty array of results, no tagged fields.
_NO_RESULTS = b"\0\1\0"


class ReceivedRequest(NamedTuple):
    """A request that the proxy received."""

    api_key: int
    version: int
    client_id: str | None


class FaultyProxy:
    """Forwards connections from `address` to `target`; tests inject faults."""

    def __init__(self, network: Network, address: tuple[str, int], target: tuple[str, int]) -> None:
        self.network = network
        self.target = target
        self.seen: list[ReceivedRequest] = []
        # The number of responses to drop. The proxy also aborts the connections of dropped responses.
        self.answers_lost = 0
        # Replace each response by one without results.
        self.emptying = False
        # Drop all frames in both directions; connections stay open.
        self.silent = False
        # Hold back responses until `resume_responses` is called.
        self.holding = False
        self.tunnels: list[_ProxiedConnection] = []
        self._address = address
        self._server: Any = None
        self.open()

    def open(self) -> None:
        """Accept connections."""
        self._server = self.network.listen(self._accept_client, *self._address)

    def abort_all(self) -> None:
        """Refuse new connections and abort the open ones, as if the coordinator had stopped."""
        self._server.close()
        for tunnel in self.open_connections:
            tunnel.abort_connections()

    def resume_responses(self) -> None:
        """Send the held responses, and hold back no more."""
        self.holding = False
        for tunnel in self.open_connections:
            tunnel.send_held_responses()

    def count_requests(self, api_key: int) -> int:
        """Return the number of received requests of an API."""
        return sum(seen.api_key == api_key for seen in self.seen)

    @property
    def open_connections(self) -> "list[_ProxiedConnection]":
        return [tunnel for tunnel in self.tunnels if not tunnel.closed]

    def _accept_client(self) -> "_ProxiedConnection":
        tunnel = _ProxiedConnection(self)
        self.tunnels.append(tunnel)
        return tunnel


class _ProxiedConnection(asyncio.Protocol):
    """A client connection and its connection to the target."""

    def __init__(self, relay: FaultyProxy) -> None:
        self._relay = relay
        self._reader = FrameReader(_FRAME_BYTES_MAX)
        self._here: Any = None
        self._there: Any = None
        self._early: list[bytes] = []
        self._held: list[bytes] = []
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._here = transport
        self._task = asyncio.get_running_loop().create_task(self._connect_upstream())

    async def _connect_upstream(self) -> None:
        try:
            self._there = await self._relay.network.open(
                _UpstreamProtocol(self._forward_response, self.abort_connections), *self._relay.target
            )
        except ConnectionRefusedError:
            self.abort_connections()
            return
        early, self._early = self._early, []
        for frame in early:
            self._there.write(frame)

    def data_received(self, data: bytes) -> None:
        relay = self._relay
        for frame in self._reader.receive_data(data):
            if relay.silent or self.closed:
                continue
            header, _ = request_header.decode(
                frame,
                0,
                request_header_version(int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")),
            )
            relay.seen.append(
                ReceivedRequest(header.request_api_key, header.request_api_version, header.client_id)
            )
            whole = len(frame).to_bytes(4, "big") + frame
            if self._there is None:
                self._early.append(whole)
            else:
                self._there.write(whole)

    def _forward_response(self, frame: bytes) -> None:
        relay = self._relay
        if relay.silent or self.closed:
            return
        # A response with correlation id 0 belongs to ApiVersions, the first request of each connection.
        if frame[:4] == bytes(4):
            self._here.write(len(frame).to_bytes(4, "big") + frame)
            return
        if relay.answers_lost:
            relay.answers_lost -= 1
            self.abort_connections()
            return
        elif relay.emptying:
            frame = frame[:4] + _NO_RESULTS
        self._held.append(len(frame).to_bytes(4, "big") + frame)
        if not relay.holding:
            self.send_held_responses()

    def send_held_responses(self) -> None:
        held, self._held = self._held, []
        for frame in held:
            self._here.write(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort_connections()

    def abort_connections(self) -> None:
        if not self.closed:
            self.closed = True
            self._here.abort()
            if self._there is not None:
                self._there.abort()


class _UpstreamProtocol(asyncio.Protocol):
    """The connection from the proxy to the coordinator."""

    def __init__(self, answered: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._reader = FrameReader(_FRAME_BYTES_MAX)
        self._answered = answered
        self._lost = lost

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.receive_data(data):
            self._answered(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
