"""Test that the simulated network behaves like TCP, with and without faults."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from tests.simulation.loop import SimLoop
from tests.simulation.net import ClientEnd, Network
from tests.simulation.pipes import TCP_GIVES_UP_S, NetFaults

QUIET = NetFaults()
ROUGH = NetFaults(jitter_s=0.05, split_rate=0.5, stall_rate=0.1)


class RecordingProtocol(asyncio.Protocol):
    """A protocol that records the events of its transport, and echoes data if `echoes` is set."""

    def __init__(self) -> None:
        self.received = b""
        self.events: list[str] = []
        self.echoes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.echoes:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else type(exc).__name__)


Scene = Callable[[Network, RecordingProtocol, ClientEnd], Awaitable[None]]
RunScenario = Callable[..., tuple[RecordingProtocol, bytes, list[str]]]


@pytest.fixture
def run_scene() -> Iterator[RunScenario]:
    loops: list[SimLoop] = []

    def run(faults: NetFaults, scene: Scene, seed: int = 7) -> tuple[RecordingProtocol, bytes, list[str]]:
        loop = SimLoop()
        loops.append(loop)
        server = RecordingProtocol()
        received: list[bytes] = []
        lost: list[str] = []

        async def main() -> None:
            network = Network(loop, Random(seed), faults)
            loop.network = network
            await loop.create_server(lambda: server, "here", 1)
            client = await network.connect("here", 1)
            client.on_data = received.append
            client.on_lost = lambda: lost.append("lost")
            await scene(network, server, client)

        loop.run_until_complete(main())
        return server, b"".join(received), lost

    yield run
    for loop in loops:
        loop.close()


MESSAGE = bytes(range(256)) * 4


def test_fragmented_bytes_arrive_in_order(run_scene: RunScenario) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        server.echoes = True
        for begin in range(0, len(MESSAGE), 100):
            client.send(MESSAGE[begin : begin + 100])
            await asyncio.sleep(0.01)
        await asyncio.sleep(100)

    server, received, lost = run_scene(ROUGH, scenario)
    assert (server.received, received, server.events, lost) == (MESSAGE, MESSAGE, [], [])


def test_connect_without_listener_is_refused(run_scene: RunScenario) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        network.stop_listening(("here", 1))
        with pytest.raises(ConnectionRefusedError):
            await network.connect("here", 1)

    run_scene(QUIET, scenario)


@pytest.mark.parametrize(("reset", "event"), [(False, "lost"), (True, "ConnectionResetError")])
def test_server_detects_close_or_reset_by_client(run_scene: RunScenario, reset: bool, event: str) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        client.send(b"last words")
        client.close(reset=reset)
        await asyncio.sleep(1)

    server, _, _ = run_scene(QUIET, scenario)
    assert (server.received, server.events) == (b"last words", [event])


def test_server_close_follows_its_last_byte(run_scene: RunScenario) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        server.transport.write(b"last words")
        server.transport.close()
        await asyncio.sleep(1)

    server, received, lost = run_scene(QUIET, scenario)
    assert (received, lost, server.events) == (b"last words", ["lost"], ["lost"])


@pytest.mark.parametrize("seed", range(8))
def test_connection_can_be_cut_between_any_two_bytes(run_scene: RunScenario, seed: int) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        server.echoes = True
        for begin in range(0, len(MESSAGE), 100):
            client.send(MESSAGE[begin : begin + 100])
        await asyncio.sleep(100)

    server, received, lost = run_scene(replace(ROUGH, cut_rate=1.0, cut_after_bytes=100), scenario, seed)
    assert len(received) < len(MESSAGE)
    # No data after the cut arrives, in either direction.
    assert (MESSAGE.startswith(server.received), MESSAGE.startswith(received)) == (True, True)
    assert server.events in (["ConnectionResetError"], ["BrokenPipeError"])
    assert lost == ["lost"]


def test_one_end_may_never_detect_a_cut(run_scene: RunScenario) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        server.echoes = True
        client.send(MESSAGE)
        await asyncio.sleep(TCP_GIVES_UP_S / 2)
        told.append((list(server.events), client.closed))
        await asyncio.sleep(2 * TCP_GIVES_UP_S)

    told: list[tuple[list[str], bool]] = []
    run_scene(replace(QUIET, half_open_rate=1.0, cut_after_bytes=100), scenario)
    assert told in ([([], True)], [(["ConnectionResetError"], False)])


def test_slow_reader_pauses_writer(run_scene: RunScenario) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        client.read_slowly(10.0)
        server.transport.write(MESSAGE)
        await asyncio.sleep(1)
        told.append((list(server.events), server.transport.get_write_buffer_size()))
        await asyncio.sleep(100)

    told: list[tuple[list[str], int]] = []
    server, received, _ = run_scene(replace(QUIET, send_buffer_bytes=24, high_water_bytes=100), scenario)
    assert told == [(["pause"], 1_000)]
    assert (server.events, received) == (["pause", "resume"], MESSAGE)


def test_paused_server_defers_arriving_data(run_scene: RunScenario) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        server.transport.pause_reading()
        client.send(MESSAGE)
        await asyncio.sleep(1)
        told.append(server.received)
        server.transport.resume_reading()
        await asyncio.sleep(1)

    told: list[bytes] = []
    server, _, _ = run_scene(QUIET, scenario)
    assert (told, server.received) == ([b""], MESSAGE)


def test_client_detects_death_of_server_process(run_scene: RunScenario) -> None:
    async def scenario(network: Network, server: RecordingProtocol, client: ClientEnd) -> None:
        network.drop_connections(("here", 1))
        client.send(MESSAGE)
        await asyncio.sleep(100)

    server, _, lost = run_scene(QUIET, scenario)
    assert (server.received, server.events, lost) == (b"", [], ["lost"])
