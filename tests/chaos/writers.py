"""Who writes to the books: a steady probe of each shard, and those who ask a coordinator whatever it owns.

A probe finds its coordinator as brokers do, and measures for how long no write succeeds. The stubborn ask one
coordinator directly for anything: one that is not the owner, does not know that it is not any more, or does
not run. Their requests wait in the buffers of one that is stopped and are there when it goes on.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from time import monotonic

from coordinator.client import (
    ONCE,
    ConnectionLimits,
    CoordinatorUnavailable,
    ShareCoordinatorClient,
)
from tests.chaos.write_ledger import WriteLedger

# How often a writer writes. That is the load, and the finest gap that a probe sees.
PACE_S = 0.1
# A probe asks somebody else after this; the stubborn wait until a coordinator that was stopped goes on.
PROBE_LIMITS = ConnectionLimits(connect_s=1, request_s=1)
STUBBORN_LIMITS = ConnectionLimits(connect_s=1, request_s=90)
STUBBORN_READS = 0.3


class Gate:
    """Lets everybody write, or nobody."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def __aenter__(self) -> None:
        await self._open.wait()
        self._inside += 1
        self._empty.clear()

    async def __aexit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    async def close(self) -> None:
        """Let nobody in, and wait until those who are inside have got their answers."""
        self._open.clear()
        await self._empty.wait()

    def open(self) -> None:
        """Let everybody in again."""
        self._open.set()


class Probe:
    """A steady writer of one shard, and the longest time in which none of its writes succeeded."""

    def __init__(self, book: WriteLedger, addresses: Sequence[str], gate: Gate) -> None:
        self.book = book
        self.successes = 0
        self._client = ShareCoordinatorClient(
            ",".join(addresses), retry=ONCE, limits=PROBE_LIMITS, client_id="probe"
        )
        self._gate = gate
        self._last_success_s = monotonic()
        self._longest_s = 0.0

    def begin(self) -> None:
        """Measure from now on."""
        self._last_success_s, self._longest_s = monotonic(), 0.0

    @property
    def longest_gap_s(self) -> float:
        """The longest time without a success since `begin`, that which goes on now too."""
        return max(self._longest_s, monotonic() - self._last_success_s)

    async def run(self) -> None:
        """Write until cancelled."""
        async with self._client as client:
            await self._open(client)
            while True:
                async with self._gate:
                    try:
                        await self.book.write(client)
                    except CoordinatorUnavailable:
                        pass
                    else:
                        self._longest_s = self.longest_gap_s
                        self._last_success_s = monotonic()
                        self.successes += 1
                await asyncio.sleep(PACE_S)

    async def _open(self, client: ShareCoordinatorClient) -> None:
        while True:
            try:
                return await self.book.open(client)
            except CoordinatorUnavailable:
                await asyncio.sleep(PACE_S)


async def send_to_wrong_coordinator(
    books: Sequence[WriteLedger], port: int, gate: Gate, dice: random.Random
) -> None:
    """Write to and read from any book at one coordinator until cancelled."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            ShareCoordinatorClient(
                ("127.0.0.1", port), direct=True, retry=ONCE, limits=STUBBORN_LIMITS, client_id="stubborn"
            )
        )
        while True:
            book = dice.choice(books)
            async with gate:
                try:
                    if book.is_open and dice.random() < STUBBORN_READS:
                        await book.read(client)
                    elif book.is_open:
                        await book.write(client)
                except CoordinatorUnavailable:
                    pass
            await asyncio.sleep(PACE_S)
