"""Test that connections with and without the compiled module produce equal output with equal limits.

Two listeners receive the same bytes in the same chunks; one of them has no compiled module. The logs of the
listeners delay, refuse and complete appends. Clients pause reading and disconnect.
"""

import asyncio
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any, cast

import pytest

from coordinator import fastpath
from coordinator.errors import LogUnavailable
from coordinator.serve.server import ServerLimits
from tests.property.test_fastpath import compiled
from tests.unit.server.test_server import INITIALIZE_FRAME_BODY, read_state_body, write_state_body
from tests.unit.server.wire import ServedCoordinator, request_frame

SEEDS_AT_A_TIME = 10
STEPS_A_SEED = 80
CLIENTS = 3


@pytest.fixture(autouse=True)
def _compiled_module_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpath, "compiled", compiled)


class RecordingTransport(asyncio.Transport):
    """A transport that records writes and calls of pause, resume and close."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.closing = False

    def write(self, data: Any) -> None:
        """Record the bytes of a response."""
        self.seen.append(bytes(data))

    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        return self.closing

    def pause_reading(self) -> None:
        """Record that reading was paused."""
        self.seen.append("pause")

    def resume_reading(self) -> None:
        """Record that reading was resumed."""
        self.seen.append("resume")

    def close(self) -> None:
        """Record that the connection was closed."""
        self.closing = True
        self.seen.append("close")


class ConnectedListener:
    """A listener with the server side of its connections."""

    def __init__(self, limits: ServerLimits) -> None:
        self.one = ServedCoordinator(limits)
        self.wires: list[RecordingTransport] = []
        self.protocols: list[Any] = []

    async def start_and_initialize(self) -> None:
        """Wait until the shards are loaded, and connect the clients."""
        await self.one.runtime.start()
        while not self.one.runtime.initial_load_done:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(CLIENTS):
            self.connect()
        self.protocols[0].data_received(request_frame(83, 0, 0, INITIALIZE_FRAME_BODY))
        await run_pending_callbacks()
        self.one.log.blocking = True

    def connect(self) -> None:
        """Connect one more client."""
        self.wires.append(RecordingTransport())
        self.protocols.append(cast(Any, self.one.listener)._create_connection())
        self.protocols[-1].connection_made(self.wires[-1])

    def replace_connection(self, at: int) -> None:
        """Disconnect a client and replace it by a new one."""
        self.protocols[at].connection_lost(None)
        self.connect()
        self.wires[at], self.protocols[at] = self.wires.pop(), self.protocols.pop()

    def observed_results(self) -> Any:
        """Return all recorded output to the clients, and the listener's request memory in bytes."""
        return [wire.seen for wire in self.wires], self.one.listener.held_bytes


async def run_pending_callbacks() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def random_requests(random: Random) -> Iterator[bytes]:
    """Yield the requests of a client, mostly writes."""
    for number in count(1):
        kind = random.randrange(12)
        if kind == 0:
            yield request_frame(84, 0, number, read_state_body(random.randrange(2)))
        elif kind == 1:
            yield request_frame(85, 1, number, write_state_body(7))
        else:
            yield request_frame(85, 1, number, write_state_body(random.randrange(2)))


def perform_step(random: Random, sides: list[ConnectedListener], sent: list[Iterator[bytes]]) -> None:
    """Perform the same random action on both listeners."""
    at = random.randrange(CLIENTS)
    # A closed or paused connection receives no bytes.
    seen = sides[0].wires[at].seen
    is_read = [word for word in seen if word in ("pause", "resume")][-1:] != ["pause"]
    what = random.randrange(20)
    if "close" in seen or what == 0:
        for side in sides:
            side.replace_connection(at)
    elif what <= 9 and is_read:
        data = b"".join(next(sent[at]) for _ in range(random.choice([1, 1, 1, 1, 2, 5])))
        cut = random.choice([0, 0, 0, 3, len(data) - 1])
        for side in sides:
            for piece in filter(None, (data[:cut], data[cut:])):
                side.protocols[at].data_received(piece)
    elif what <= 11:
        pausing = random.randrange(2)
        for side in sides:
            side.protocols[at].pause_writing()
            if pausing:
                side.protocols[at].resume_writing()
    elif what == 12:
        for side in sides:
            side.protocols[at].resume_writing()
    elif what == 13:
        for side in sides:
            side.wires[at].closing = True
    elif what == 14:
        for side in sides:
            side.one.log.fail_appends(LogUnavailable("as the test has it"))
    else:
        for side in sides:
            side.one.log.release_appends()


async def compare_with_seed(seed: int) -> None:
    """Run a random sequence of actions on both sides; assert equal output after each action."""
    random = Random(seed)
    limits = ServerLimits(
        requests_in_flight_max=random.choice([1, 3, 64]), queued_bytes_max=random.choice([150, 400, 100_000])
    )
    fronted = ConnectedListener(limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastpath, "compiled", None)
        alone = ConnectedListener(limits)
        await alone.start_and_initialize()
    sides = [fronted, alone]
    await fronted.start_and_initialize()
    sent = [random_requests(random) for _ in range(CLIENTS)]
    for _ in range(STEPS_A_SEED):
        perform_step(random, sides, sent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fastpath, "compiled", compiled)
            await run_pending_callbacks()
        assert fronted.observed_results() == alone.observed_results()
    for side in sides:
        side.one.log.blocking = False
        side.one.log.release_appends()
        await run_pending_callbacks()
        for at in range(CLIENTS):
            side.protocols[at].connection_lost(None)
        assert side.one.listener.held_bytes == 0
        await side.one.close()


@pytest.mark.parametrize("first_seed", range(0, 200, SEEDS_AT_A_TIME))
def test_compiled_connections_equal_general_ones(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_AT_A_TIME):
        asyncio.run(compare_with_seed(seed))
