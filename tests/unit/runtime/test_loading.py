"""A shard that cannot be loaded: other shards load, and this shard loads after the repair."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.client.rpcs import INITIALIZE, WRITE
from coordinator.log.base import LoggedBatch, StateLog
from coordinator.log.kafka import kafka_log
from coordinator.log.kafka.replay import keep_valid_records
from coordinator.log.memory import MemoryLog
from coordinator.serve.runtime import Runtime, RuntimeLimits
from protocol.record_batch import encode_batch
from tests.builders import make_initialize, make_write
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.loop import run
from tests.unit.coroutine_tests import wait_until
from tests.unit.runtime.runtime_without_jobs import make_runtime
from tests.unit.runtime.topic_runtimes import TOPIC, elect_shard, make_kafka_log, run_replica, shard_status

pytestmark = pytest.mark.run_with(function=run)

SHARDS = 5
DAMAGED = 2
# The retry pauses exceed the duration of any test, so a failed shard is retried only on request.
LIMITS = RuntimeLimits(reload_backoff_first_s=1_000, reload_backoff_max_s=1_000)
NO_KEY = encode_batch(0, 1, [(b"", b"value")])


@asynccontextmanager
async def run_runtime(
    log: StateLog, limits: RuntimeLimits = LIMITS, *, elect_all: bool = True
) -> AsyncIterator[Runtime]:
    runtime = make_runtime(log, SHARDS, limits=limits)
    await runtime.start(elect_all=elect_all)
    try:
        yield runtime
    finally:
        await runtime.stop()


def shard_statuses(runtime: Runtime) -> list[str]:
    return [view.status for view in runtime.shard_views()]


ALL_BUT_DAMAGED = ["FAILED" if shard == DAMAGED else "ACTIVE" for shard in range(SHARDS)]


async def make_damaged_topic() -> tuple[KafkaInMemory, bytes]:
    """Return a topic with a batch whose CRC is wrong, and the correct batch."""
    fake = KafkaInMemory()
    async with run_runtime(make_kafka_log(fake, SHARDS)) as runtime:
        await wait_until(lambda: shard_statuses(runtime) == ["ACTIVE"] * SHARDS)
    batches = fake.topics[TOPIC][DAMAGED].batches
    good = batches[0]
    batches[0] = good[:-1] + bytes([good[-1] ^ 1])
    return fake, good


async def test_damaged_partition_fails_only_its_own_shard(caplog: pytest.LogCaptureFixture) -> None:
    fake, _ = await make_damaged_topic()
    caplog.clear()
    async with run_runtime(make_kafka_log(fake, SHARDS)) as runtime:
        await wait_until(lambda: shard_statuses(runtime) == ALL_BUT_DAMAGED)
        assert f"{TOPIC}-{DAMAGED}" in runtime.health()[0]
        # Another shard can reload without waiting for the damaged one.
        runtime._loader.request_load(runtime._runners[0])
        assert shard_statuses(runtime)[0] == "LOADING"
        await wait_until(lambda: shard_statuses(runtime)[0] == "ACTIVE")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    # Each error line names only the damaged shard.
    assert said
    assert all(
        one.startswith(f"loading 1 shards failed: {TOPIC}-{DAMAGED} at log offset 0 is damaged")
        for one in said
    )


async def test_election_does_not_wait_for_a_shard_that_cannot_be_loaded() -> None:
    fake, _ = await make_damaged_topic()
    async with run_runtime(make_kafka_log(fake, SHARDS), elect_all=False) as runtime:
        runtime.elect(DAMAGED)
        await wait_until(lambda: shard_statuses(runtime)[DAMAGED] == "FAILED")
        runtime.elect(0)
        await wait_until(lambda: shard_statuses(runtime)[0] == "ACTIVE")


async def test_repaired_shard_is_loaded_and_its_next_backoff_is_the_first() -> None:
    fake, good = await make_damaged_topic()
    limits = RuntimeLimits(reload_backoff_first_s=100, reload_backoff_max_s=1_000)
    async with run_runtime(make_kafka_log(fake, SHARDS), limits) as runtime:
        batches = fake.topics[TOPIC][DAMAGED].batches
        # Attempts after 0, 100, 300 and 700 s fail.
        await asyncio.sleep(900)
        assert shard_statuses(runtime) == ALL_BUT_DAMAGED
        damaged, batches[0] = batches[0], good
        await asyncio.sleep(700)
        assert shard_statuses(runtime) == ["ACTIVE"] * SHARDS
        batches[0] = damaged
        runtime._loader.request_load(runtime._runners[DAMAGED])
        await wait_until(lambda: shard_statuses(runtime) == ALL_BUT_DAMAGED)
        batches[0] = good
        await asyncio.sleep(150)
        assert shard_statuses(runtime) == ["ACTIVE"] * SHARDS


async def test_record_that_cannot_be_replayed_fails_only_its_own_shard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog(SHARDS)
    log._batches[DAMAGED].append(NO_KEY)
    log._end_offsets[DAMAGED] = 1
    async with run_runtime(log) as runtime:
        await wait_until(lambda: shard_statuses(runtime) == ALL_BUT_DAMAGED)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said.startswith(f"shard {DAMAGED} cannot be replayed: a record of the state log has no key")


async def test_other_callbacks_run_often_while_large_batches_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep, checked_bytes, largest_bytes = keep_valid_records, 0, 0

    def count_bytes(batch: bytes, *args: Any) -> list[bytes]:
        nonlocal checked_bytes
        checked_bytes += len(batch)
        return keep(batch, *args)

    monkeypatch.setattr(kafka_log, "keep_valid_records", count_bytes)
    async with run_replica(KafkaInMemory(), is_elected=True) as driver:
        partitions = range(1_000)
        await driver.send_request(INITIALIZE, *(make_initialize(partition=each) for each in partitions))
        for n in range(8):
            await driver.send_request(
                WRITE, *(make_write(partition=each, start_offset=n) for each in partitions)
            )
        driver.runtime.resign(0)
        await driver.wait_until(lambda: shard_status(driver) == "CLOSED")
        loading = asyncio.create_task(elect_shard(driver))
        while not loading.done():
            await asyncio.sleep(0)
            largest_bytes, checked_bytes = max(largest_bytes, checked_bytes), 0
        assert 0 < largest_bytes < 160 << 10 < driver.log.size_bytes() / 4


@pytest.mark.parametrize("together", [[DAMAGED], [0, 1, DAMAGED, 3]])
async def test_other_shards_do_not_wait_for_a_partition_without_leader(
    together: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    fake = KafkaInMemory()
    log = make_kafka_log(fake, SHARDS, append_timeout_s=300.0)
    own, read = log.acquire_ownership, log.read
    claimed: list[int] = []
    all_are_claimed = asyncio.Event()
    read_together: list[int] = []

    async def own_and_wait_for_all(partition: int, *args: Any) -> int:
        owner_epoch = await own(partition, *args)
        claimed.append(partition)
        if len(claimed) == len(together):
            all_are_claimed.set()
        await all_are_claimed.wait()
        return owner_epoch

    def read_while_the_leader_is_lost(partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        if DAMAGED in partitions and not read_together:
            read_together.extend(partitions)
            fake.set_leader(DAMAGED, -1)
            log._cluster.refresh_soon()
        return read(partitions)

    log.acquire_ownership = own_and_wait_for_all  # type: ignore[method-assign]
    log.read = read_while_the_leader_is_lost  # type: ignore[method-assign]
    async with run_runtime(log, elect_all=False) as runtime:
        for shard in together:
            runtime.elect(shard)
        await asyncio.sleep(1)
        assert sorted(read_together) == together
        runtime.elect(4)
        # Much shorter than the time for which a request waits for a loading shard.
        await asyncio.sleep(5)
        active = {shard for shard, status in enumerate(shard_statuses(runtime)) if status == "ACTIVE"}
        assert active == {*together, 4} - {DAMAGED}
        assert runtime.health() == [f"1 of {len(together) + 1} shards are loading."]
        fake.set_leader(DAMAGED, 1)
        await asyncio.sleep(5)
        assert runtime.health() == []
    assert [record for record in caplog.records if record.levelno == logging.ERROR] == []
