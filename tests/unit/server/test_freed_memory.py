"""The memory of many closed connections is returned to the system.

Few closed connections cause no trim of the heap.
"""

import asyncio
import os
import platform

import pytest

from coordinator.process import freed_memory
from coordinator.process.freed_memory import CLOSED_MIN, INTERVAL_S, HeapTrimmer, trim_heap
from coordinator.serve.relay import listener as relay_listener
from coordinator.serve.server import ServerLimits, listener
from tests.benchmarks.machine import resident_bytes
from tests.unit.relay.fake_peers import LIMITS, run_relay
from tests.unit.server.wire import serve_coordinator

BLOCK_BYTES, BLOCKS = 4_096, 20_000


def count_closed_connections(memory: HeapTrimmer, count: int) -> None:
    """Report `count` closed connections."""
    for _ in range(count):
        memory.record_closed_connection()


def test_many_closed_connections_are_followed_by_two_trims() -> None:
    memory = HeapTrimmer()
    count_closed_connections(memory, CLOSED_MIN)
    assert [memory.is_due(at * INTERVAL_S) for at in range(1, 5)] == [True, True, False, False]


def test_few_closed_connections_are_not_followed_by_a_trim() -> None:
    memory = HeapTrimmer()
    for at in range(1, 10):
        count_closed_connections(memory, CLOSED_MIN - 1)
        assert not memory.is_due(at * INTERVAL_S)


def test_trims_have_a_minimum_interval() -> None:
    memory = HeapTrimmer()
    count_closed_connections(memory, CLOSED_MIN)
    assert memory.is_due(100.0)
    count_closed_connections(memory, CLOSED_MIN)
    assert not memory.is_due(100.0 + INTERVAL_S - 0.1)
    assert memory.is_due(100.0 + INTERVAL_S)


@pytest.fixture
def heap_trimmed(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that a trim of the heap sets. The limits are so low that one connection leads to a trim."""
    heap_trimmed = asyncio.Event()
    for module in (listener, relay_listener):
        monkeypatch.setattr(module, "trim_heap", heap_trimmed.set)
    monkeypatch.setattr(freed_memory, "CLOSED_MIN", 1)
    monkeypatch.setattr(freed_memory, "INTERVAL_S", 0.0)
    return heap_trimmed


async def test_listener_trims_the_heap_after_many_connections(heap_trimmed: asyncio.Event) -> None:
    async with serve_coordinator(ServerLimits(sweep_s=0.001)) as served:
        client = await served.connect()
        client.writer.close()
        await asyncio.wait_for(heap_trimmed.wait(), 60)


async def test_relay_collects_and_trims_the_heap_after_many_connections(
    heap_trimmed: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the trim, the relay kept 247 MB after 1 000 TLS connections with half a frame each."""
    collected = asyncio.Event()
    monkeypatch.setattr(relay_listener.gc, "collect", collected.set)
    async with run_relay(limits=LIMITS._replace(sweep_s=0.001)) as here:
        (await here.connect_peer()).close_connection()
        await asyncio.wait_for(heap_trimmed.wait(), 60)
        assert collected.is_set()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can trim its heap")
def test_free_memory_between_allocations_in_use_is_returned() -> None:
    blocks: list[bytes | None] = [os.urandom(BLOCK_BYTES) for _ in range(BLOCKS)]
    kept = blocks[:: BLOCKS // 100]
    blocks.clear()
    before = resident_bytes(os.getpid())
    trim_heap()
    assert before - resident_bytes(os.getpid()) > BLOCKS * BLOCK_BYTES // 2
    assert len(kept) == 100
