"""What clients hold together is bounded: where there is no room, nobody is read on."""

import asyncio
from struct import pack
from typing import Any, cast

from coordinator.metrics import Metrics
from coordinator.server import ServerLimits
from coordinator.server.connection import Connection
from coordinator.server.room import Room


class Wire(asyncio.Transport):
    """A transport that only knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False


class Together:
    """Connections that share a room."""

    def __init__(self, bytes_max: int) -> None:
        self.room = Room(bytes_max)

    def connect(self) -> tuple[Connection, Wire]:
        connection = Connection(cast(Any, None), cast(Any, self), Metrics(), ServerLimits())
        wire = Wire()
        connection.connection_made(wire)
        return connection, wire

    def opened(self, connection: Connection) -> bool:
        return True

    def closed(self, connection: Connection) -> None:
        pass


def test_nobody_is_read_on_while_clients_hold_what_they_may() -> None:
    async def scenario() -> None:
        clients = Together(bytes_max=50_000)
        (first, its_wire), (second, other_wire) = clients.connect(), clients.connect()
        begun = pack(">i", 60_000) + bytes(29_996)
        first.data_received(begun)
        assert (clients.room.full, its_wire.is_read) == (False, True)
        second.data_received(begun)
        assert (clients.room.full, other_wire.is_read) == (True, False)
        # Who could be read on until now notices with its next bytes.
        first.data_received(bytes(10_000))
        assert not its_wire.is_read
        assert clients.room.held_bytes == 70_000
        first.connection_lost(None)
        assert clients.room.held_bytes == 30_000
        await asyncio.sleep(0)
        assert other_wire.is_read

    asyncio.run(scenario())
