"""Write under failures: a probe for each shard, and stubborn writers that use a fixed coordinator.

A probe looks up the coordinator as brokers do, and measures the time without a successful write. A stubborn
writer sends all requests to one coordinator, which may not own the share-partition or may not run. Requests
to a suspended coordinator stay in its buffers until it continues.
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

# The seconds between two writes of a writer, which determine the load and the resolution of a probe.
PACE_S = 0.1
# A probe tries another coordinator after these timeouts. A stubborn writer waits for a suspended coordinator.
PROBE_LIMITS = ConnectionLimits(connect_s=1, request_s=1)
STUBBORN_LIMITS = ConnectionLimits(connect_s=1, request_s=90)
STUBBORN_READS = 0.3


class WriterGate:
    """A gate for writes: each write runs in its `async with` block, which waits while the gate is closed."""

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
        """Block new writers, and wait until all writers in progress have their responses."""
        self._open.clear()
        await self._empty.wait()

    def open(self) -> None:
        """Allow writers again."""
        self._open.set()


class WriteGapProbe:
    """A writer of one shard that measures the longest time without a successful write."""

    def __init__(self, book: WriteLedger, addresses: Sequence[str], gate: WriterGate) -> None:
        self.book = book
        self.successes = 0
        self._client = ShareCoordinatorClient(
            ",".join(addresses), retry=ONCE, limits=PROBE_LIMITS, client_id="probe"
        )
        self._gate = gate
        self._last_success_s = monotonic()
        self._longest_s = 0.0

    def restart_measurement(self) -> None:
        """Restart the measurement."""
        self._last_success_s, self._longest_s = monotonic(), 0.0

    @property
    def longest_gap_s(self) -> float:
        """The longest time without a success since `restart_measurement`, including the current gap."""
        return max(self._longest_s, monotonic() - self._last_success_s)

    async def run(self) -> None:
        """Write until cancelled."""
        async with self._client as client:
            await self._initialize_state(client)
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

    async def _initialize_state(self, client: ShareCoordinatorClient) -> None:
        while True:
            try:
                return await self.book.open(client)
            except CoordinatorUnavailable:
                await asyncio.sleep(PACE_S)


async def send_to_fixed_coordinator(
    books: Sequence[WriteLedger], port: int, gate: WriterGate, rng: random.Random
) -> None:
    """Write to and read from random ledgers at one coordinator until cancelled."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            ShareCoordinatorClient(
                ("127.0.0.1", port), direct=True, retry=ONCE, limits=STUBBORN_LIMITS, client_id="stubborn"
            )
        )
        while True:
            book = rng.choice(books)
            async with gate:
                try:
                    if book.is_open and rng.random() < STUBBORN_READS:
                        await book.read(client)
                    elif book.is_open:
                        await book.write(client)
                except CoordinatorUnavailable:
                    pass
            await asyncio.sleep(PACE_S)
