"""Coordinators over a log in a topic, which they can share; each has one shard by default."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.process.clock import SystemClock
from coordinator.serve.runtime import RuntimeLimits
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.unit.log.kafka_logs import loop_time
from tests.unit.runtime.test_runtime import STATE_PARTITIONS, RuntimeDriver

TOPIC = "state"
LIMITS = RuntimeLimits(reload_backoff_first_s=0.01)


class FakeLease:
    """The freshness of the lease, and the shards that another process has claimed."""

    def __init__(self) -> None:
        self.fresh = True
        self.taken: list[int] = []


def make_kafka_log(
    fake: KafkaInMemory,
    state_partitions: int = STATE_PARTITIONS,
    *,
    monotonic: Callable[[], float] = loop_time,
    **limits: float,
) -> KafkaLog:
    """Return a log in the topic; `limits` are those of `KafkaLogLimits`."""
    return KafkaLog(
        fake.new_client(TOPIC),
        TopicConfig(TOPIC, state_partitions),
        owner="test",
        clock=SystemClock(),
        limits=KafkaLogLimits(**{"append_timeout_s": 3.0, **limits}),  # type: ignore[arg-type]
        monotonic=monotonic,
    )


@asynccontextmanager
async def run_replica(
    fake: KafkaInMemory,
    limits: RuntimeLimits = LIMITS,
    lease: FakeLease | None = None,
    *,
    is_elected: bool = False,
    **log: Any,
) -> AsyncIterator[RuntimeDriver]:
    """Run a coordinator that owns no shard until it is elected; `log` is passed to `make_kafka_log`."""
    lease = lease or FakeLease()
    driver = RuntimeDriver(
        make_kafka_log(fake, **log),  # type: ignore[arg-type]
        limits,
        may_claim=lambda: lease.fresh,
        on_fenced=lease.taken.append,
    )
    await driver.runtime.start(elect_all=False)
    try:
        if is_elected:
            await elect_shard(driver)
        yield driver
    finally:
        await driver.runtime.stop()


async def elect_shard(driver: RuntimeDriver, **more: bool) -> RuntimeDriver:
    """Elect the shard, and wait until it is served."""
    driver.runtime.elect(0, **more)
    await driver.wait_until(lambda: shard_status(driver) == "ACTIVE")
    return driver


def shard_status(driver: RuntimeDriver) -> str:
    return driver.runtime.shard_views()[0].status


def owner_epoch(driver: RuntimeDriver) -> int:
    return driver.runtime.shard_views()[0].owner_epoch
