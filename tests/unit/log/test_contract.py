"""The contract of every log: in memory, a journal (real or simulated disk), a topic (real or in memory).

In a topic, each opening of the log claims the state partitions, and each claim record takes one offset.
Therefore the same records have greater offsets in a topic than in the other logs. The difference is
`LogUnderTest.claims`, the number of claims per state partition.
"""

import asyncio
from collections.abc import Sequence
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogError, LogUnavailable
from coordinator.log.base import AppendReporter, SharedLog, StateLog
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.log.memory import MemoryLog
from coordinator.process.clock import SystemClock
from protocol.record_batch import decode_batches
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.unit.log.environments import (
    STATE_PARTITIONS,
    LogEnvironment,
    RealDiskEnvironment,
    Records,
    SimulatedEnvironment,
    append,
    append_durably,
    append_error,
    prune_log,
    read_all,
)
from tests.unit.log.kafka_logs import loop_time

pytestmark = pytest.mark.run_with(fixture="log_under_test")

_topics = count()


class LogUnderTest:
    """A log of one type: memory, journal or topic. `log` returns a log for the next process."""

    def __init__(self, kind: str, folder: Path, bootstrap: str | None) -> None:
        self._memory = MemoryLog(STATE_PARTITIONS) if kind == "memory" else None
        self.world: LogEnvironment = RealDiskEnvironment(folder) if "real" in kind else SimulatedEnvironment()
        self._sync = "os" if "os" in kind else "always"
        self._shared = kind.startswith("topic")
        self._topic = f"contract-{next(_topics)}"
        self._bootstrap = bootstrap
        self._fake = KafkaInMemory()
        self._openings = 0

    def log(self) -> StateLog:
        if self._shared:
            topic_config = TopicConfig(self._topic, STATE_PARTITIONS, replication_factor=1, min_isr=1)
            return KafkaLog(
                self._make_cluster(),
                topic_config,
                owner="contract",
                clock=SystemClock(),
                limits=KafkaLogLimits(lease_s=0.1),
                monotonic=loop_time,
            )
        return self._memory if self._memory is not None else self.world.journal(self._sync)

    def _make_cluster(self) -> Brokers:
        if self._bootstrap is None:
            return self._fake.new_client(self._topic)
        return Brokers(self._bootstrap, self._topic)

    async def open_as_coordinator(self) -> StateLog:
        """Open the log as a coordinator does: claim all state partitions if needed, and read the log."""
        log = self.log()
        await log.open()
        self._openings += 1
        if isinstance(log, SharedLog):
            await asyncio.gather(*(log.acquire_ownership(partition) for partition in range(STATE_PARTITIONS)))
            await read_all(log)
            await asyncio.sleep(max(map(log.earlier_leases_left_s, range(STATE_PARTITIONS))))
        return log

    @property
    def claims(self) -> int:
        """The number of claim records in each state partition."""
        return self._openings if self._shared else 0

    def run(self, test: Any) -> None:
        self.world.run(test)


@pytest.fixture(
    params=[
        "memory",
        "journal, real",
        "journal, real, os",
        "journal, simulated",
        "journal, simulated, os",
        "topic, in memory",
        pytest.param("topic, real", marks=pytest.mark.broker),
    ]
)
def log_under_test(request: pytest.FixtureRequest, tmp_path: Path) -> LogUnderTest:
    bootstrap = None
    if request.param == "topic, real":
        bootstrap = request.getfixturevalue("built_in").broker.bootstrap
    return LogUnderTest(request.param, tmp_path, bootstrap)


def one_record(value: bytes = b"value") -> Records:
    return [(b"key", value)]


async def open_log(log_under_test: LogUnderTest) -> StateLog:
    return await log_under_test.open_as_coordinator()


async def test_observer_gets_the_batches_of_durable_appends(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    observed: list[tuple[bytes | None, bytes | None]] = []

    def record_batches(batches: Sequence[bytes], prefix_bytes: int) -> None:
        for data in batches:
            (batch,) = decode_batches(data[prefix_bytes:])
            observed.extend((record.key, record.value) for record in batch.records)

    assert isinstance(log, AppendReporter)
    log.observe_appends(record_batches)
    await append_durably(log, 1, [(b"key", b"value"), (b"deleted", None)])
    assert observed == [(b"key", b"value"), (b"deleted", None)]
    await log.close()


async def test_new_log_is_empty_and_healthy(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    assert await read_all(log) == {}
    ends = [log.end_offset(partition) for partition in range(STATE_PARTITIONS)]
    assert ends == [log_under_test.claims] * STATE_PARTITIONS
    assert [log.start_offset(partition) for partition in range(STATE_PARTITIONS)] == [0] * STATE_PARTITIONS
    assert log.health() is None
    assert log.prune_offsets_freeing_storage(0) == {}
    assert (log.lease_left_s(0) < inf) is isinstance(log, SharedLog)
    await log.close()


async def test_offsets_are_consecutive_within_each_state_partition(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    at = log_under_test.claims
    assert await append_durably(log, 0, one_record(b"a")) == at
    assert await append_durably(log, 0, [(b"k1", b"b"), (b"k2", None), (b"k3", b"")]) == at + 1
    assert await append_durably(log, 3, one_record(b"other")) == at
    assert await append_durably(log, 0, one_record(b"c")) == at + 4
    ends = [log.end_offset(partition) - at for partition in range(STATE_PARTITIONS)]
    assert ends == [5, 0, 0, 1, 0]
    found = await read_all(log)
    assert {
        partition: [(offset - at, key, value) for offset, key, value in records]
        for partition, records in found.items()
    } == {
        0: [(0, b"key", b"a"), (1, b"k1", b"b"), (2, b"k2", None), (3, b"k3", b""), (4, b"key", b"c")],
        3: [(0, b"key", b"other")],
    }
    await log.close()


async def test_appends_to_several_state_partitions_run_concurrently(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    for turn in range(20):
        results = await asyncio.gather(
            *(append(log, partition, one_record(b"%d" % turn)) for partition in range(STATE_PARTITIONS))
        )
        assert results == [(log_under_test.claims + turn, None)] * STATE_PARTITIONS
    found = await read_all(log)
    assert found == {
        partition: [(log_under_test.claims + turn, b"key", b"%d" % turn) for turn in range(20)]
        for partition in range(STATE_PARTITIONS)
    }
    await log.close()


async def test_done_callback_may_append(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    finished = asyncio.get_running_loop().create_future()
    offsets: list[int] = []

    def append_next(base_offset: int, error: LogError | None) -> None:
        assert error is None
        offsets.append(base_offset)
        if len(offsets) < 50:
            log.append(2, one_record(), 1, append_next)
        else:
            finished.set_result(None)

    log.append(2, one_record(), 1, append_next)
    await finished
    assert offsets == list(range(log_under_test.claims, log_under_test.claims + 50))
    await log.close()


async def test_append_without_records_changes_no_records(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    end = await append_durably(log, 1, one_record()) + 1
    before = await read_all(log)
    renewals = 1 if isinstance(log, SharedLog) else 0
    end += renewals
    assert await append(log, 1, []) == (end, None)
    assert log.end_offset(1) == end
    assert await read_all(log) == before
    assert await append_durably(log, 1, one_record()) == end
    await log.close()


async def test_exception_in_done_callback_does_not_affect_other_appends(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    loop = asyncio.get_running_loop()
    failures: list[Any] = []
    loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))

    called = asyncio.Event()

    def raise_in_callback(base_offset: int, error: LogError | None) -> None:
        called.set()
        raise RuntimeError("a caller's mistake")

    log.append(0, one_record(), 1, raise_in_callback)
    assert await append(log, 1, one_record()) == (log_under_test.claims, None)
    await called.wait()
    assert await append(log, 0, one_record()) == (log_under_test.claims + 1, None)
    assert [str(failure) for failure in failures] == ["a caller's mistake"]
    await log.close()


async def test_read_returns_only_the_requested_state_partitions(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    for partition in range(STATE_PARTITIONS):
        await append_durably(log, partition, one_record())
    assert sorted(await read_all(log, range(1, 3))) == [1, 2]
    assert await read_all(log, range(0)) == {}
    await log.close()


async def test_read_ends_at_the_end_offset_at_which_it_began(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    for turn in range(100):
        await append_durably(log, turn % 3, one_record(bytes(500)))
    seen = 0
    async for chunk in log.read(range(3)):
        seen += len(chunk)
        await append_durably(log, 0, one_record(bytes(500)))
    assert seen == 100
    assert log.end_offset(0) > 34
    await log.close()


async def test_large_log_is_read_in_ordered_chunks(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    for turn in range(60):
        await append_durably(log, turn % 2, [(b"k", bytes([turn]) * 50_000)])
    offsets: dict[int, list[int]] = {0: [], 1: []}
    chunks = 0
    async for chunk in log.read({0, 1}):
        chunks += 1
        for state_partition, batch in chunk:
            offsets[state_partition].append(int.from_bytes(batch[:8]))
    assert chunks > 1
    expected = list(range(log_under_test.claims, log_under_test.claims + 30))
    assert offsets == {0: expected, 1: expected}
    await log.close()


async def test_append_may_exceed_a_segment_or_batch(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    records: Records = [(b"k%d" % index, bytes(1000)) for index in range(300)]
    at = await append_durably(log, 0, one_record())
    assert await append_durably(log, 0, records) == at + 1
    assert await append_durably(log, 0, one_record()) == at + 301
    await log.close()
    log = await open_log(log_under_test)
    assert [offset - at for offset, _, _ in (await read_all(log))[0]] == list(range(302))
    await log.close()


async def test_appended_records_exist_after_a_reopen(log_under_test: LogUnderTest) -> None:
    expected: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {0: [], 4: []}
    for turn in range(4):
        log = await open_log(log_under_test)
        assert await read_all(log) == {partition: found for partition, found in expected.items() if found}
        for partition in (0, 4):
            for _ in range(30):
                value = b"%d" % turn * 40
                base_offset = await append_durably(log, partition, one_record(value))
                expected[partition].append((base_offset, b"key", value))
        await log.close()
    gap = 1 if log_under_test.claims else 0
    assert [offset for offset, _, _ in expected[4]] == [n + gap * (n // 30 + 1) for n in range(120)]


async def test_record_with_a_timestamp_far_in_the_future_is_stored(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    at, error = await append(log, 0, one_record(), timestamp_ms=4_102_444_800_000)
    assert error is None
    assert await read_all(log) == {0: [(at, b"key", b"value")]}
    await log.close()


async def test_close_completes_pending_appends_and_refuses_later_ones(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    told: list[tuple[int, LogError | None]] = []
    for partition in range(STATE_PARTITIONS):
        log.append(partition, one_record(), 1, lambda *outcome: told.append(outcome))
    at = log_under_test.claims
    await log.close()
    assert told == [(at, None)] * STATE_PARTITIONS
    assert isinstance(await append_error(log, 0, one_record()), LogUnavailable)
    assert log.health() is not None
    await log.close()
    log = await open_log(log_under_test)
    assert log.end_offset(0) == log_under_test.claims + 1
    await log.close()


async def test_prune_advances_the_start_offset_and_keeps_later_records(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    for turn in range(40):
        await append_durably(log, 0, [(b"%d" % turn, bytes(400)), (b"more", None)])
    at = log_under_test.claims
    log.prune(0, at + 61)
    assert log.start_offset(0) == at + 61
    log.prune(0, 3)
    assert log.start_offset(0) == at + 61
    kept = [offset - at for offset, _, _ in (await read_all(log))[0] if offset >= at + 61]
    assert kept == list(range(61, 80))
    log.prune(0, 1000)
    assert log.start_offset(0) == log.end_offset(0) == at + 80
    assert await append_durably(log, 0, one_record()) == at + 80
    assert (at + 80, b"key", b"value") in (await read_all(log))[0]
    await log.close()


async def test_pruning_frees_storage_and_offsets_continue(log_under_test: LogUnderTest) -> None:
    log = await open_log(log_under_test)
    for partition in (0, 1):
        for _ in range(60):
            await append_durably(log, partition, one_record(bytes(500)))
    full_bytes = log.size_bytes()
    at = log_under_test.claims
    # Storage is freed in the background, at the latest with the next appends. A failed deletion is repeated.
    for _ in range(3):
        await prune_log(log, 0, at + 60)
        await prune_log(log, 1, at + 55)
        await append_durably(log, 2, one_record())
    await log.close()
    log = await open_log(log_under_test)
    assert log.size_bytes() < full_bytes / 2
    end = 60 + log_under_test.claims + (1 if isinstance(log, SharedLog) else 0)
    assert [log.end_offset(0), log.end_offset(1)] == [end, end]
    assert log.start_offset(0) <= at + 60
    assert log.start_offset(1) <= at + 55
    found = await read_all(log)
    assert [offset - at for offset, _, _ in found[1] if offset >= at + 55] == list(range(55, 60))
    assert await append_durably(log, 0, one_record()) == end
    await log.close()
