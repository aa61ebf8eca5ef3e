"""Open state logs in topics of a real Kafka."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.cluster.kafka.brokers import Brokers
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.process.clock import SystemClock
from tests.unit.log.environments import read_all
from tests.unit.log.kafka_logs import wait_for_leases

# The limits are generous, because other tests may slow the broker down.
LIMITS = KafkaLogLimits(
    request_timeout_s=20, append_timeout_s=60, start_timeout_s=60, close_timeout_s=60, lease_s=0.3
)

_topics = itertools.count()


def new_topic(what: str) -> str:
    """Return a unique topic name."""
    return f"{what}-{next(_topics)}"


@asynccontextmanager
async def topic_log(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    *,
    replicas: int = 1,
    own: bool = True,
) -> AsyncIterator[KafkaLog]:
    """Open the log of a topic. Unless `own` is False, claim all state partitions and read them."""
    log = KafkaLog(
        Brokers(bootstrap, topic, request_timeout_s=LIMITS.request_timeout_s),
        TopicConfig(topic, partitions, replication_factor=replicas, min_isr=(replicas + 1) // 2),
        owner="test",
        clock=SystemClock(),
        limits=LIMITS,
    )
    try:
        await log.open()
        if own:
            await asyncio.gather(*map(log.acquire_ownership, range(partitions)))
            await read_all(log, range(partitions))
            await wait_for_leases(log, *range(partitions))
        yield log
    finally:
        await log.close()
