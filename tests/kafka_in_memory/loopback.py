"""Serve a broker on a loopback socket."""

import asyncio

from tests.kafka_in_memory.broker import Broker, Sender


async def serve(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection in order, until the client closes it."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            length = await reader.readexactly(4)
            frame = length + await reader.readexactly(int.from_bytes(length))
            answered: asyncio.Future[tuple[bytes, float]] = loop.create_future()
            broker.serve(Sender("client"), frame, lambda *answer, to=answered: to.set_result(answer))
            response, wait_s = await answered
            await asyncio.sleep(wait_s)
            writer.write(response)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()
