"""Compare the time of an audit of a live topic with Spark with the time of only reading the topic."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from coordinator.cluster.kafka.broker_results import NO_NODE
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.engines import Engine
from coordinator.recovery.sources.base import LogCut, LogRange
from coordinator.recovery.sources.topic import TopicSource
from coordinator.recovery.tasks import NamedOutput
from protocol.errors import ErrorCode
from protocol.record_batch import batch_size_at
from tests.benchmarks.state_logs import TOPIC
from tests.kafka.broker import Broker
from tests.kafka.jars import RELEASES, SHIPPED_BROKER_JVM, fetch_jars

_TOPIC = "states"
_ATTEMPTS_MAX = 1_000


class AuditCost(NamedTuple):
    """The time of an audit with Spark, and of reading the topic with the same tasks."""

    audit_s: float
    read_s: float
    findings: int

    @property
    def extra_time_ratio(self) -> float:
        """The additional time of the audit as a fraction of the reading time."""
        return self.audit_s / self.read_s - 1


def read_and_discard(source: TopicSource, log_range: LogRange) -> Iterator[NamedOutput]:
    """Read the records of a range and do nothing with them."""
    for _ in source.read(log_range):
        pass
    yield from ()


def measure_audit(engine: Engine, log: Path, folder: Path) -> AuditCost:
    """Load a log into a topic, read and audit the topic twice, and return the second times."""
    broker = Broker(fetch_jars(RELEASES[-1]), folder, jvm=SHIPPED_BROKER_JVM)
    broker.start()
    try:
        folders = sorted(log.glob(f"{TOPIC}-*"), key=_partition_number)
        asyncio.run(_produce_batches(broker.bootstrap, [_read_batches(each) for each in folders]))
        source = TopicSource(_TOPIC, broker.bootstrap)
        read_s = audit_s = 0.0
        findings = 0
        for _ in range(2):
            began_s = time.perf_counter()
            engine.run(partial(read_and_discard, source), source.plan(LogCut()).ranges)
            read_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            found = audit(engine, source, AuditOptions(), with_states=False)
            severities = found.findings.column("severity").to_pylist()
            findings = sum(severity != "info" for severity in severities)
            audit_s = time.perf_counter() - began_s
    finally:
        broker.kill()
    return AuditCost(audit_s, read_s, findings)


async def _produce_batches(bootstrap: str, waiting: Sequence[Iterator[bytes]]) -> None:
    """Produce the record batches of all partitions; each request has one batch of each partition."""
    brokers = Brokers(bootstrap, _TOPIC, request_timeout_s=60)
    await brokers.connect()
    await brokers.create_topic(len(waiting), 1, {"retention.ms": "-1"})
    left: dict[int, bytes] = {}
    failures = 0
    while failures < _ATTEMPTS_MAX:
        left |= {p: batch for p, each in enumerate(waiting) if p not in left and (batch := next(each, b""))}
        if not left:
            break
        node = brokers.leader(0)
        if node != NO_NODE:
            answers = await brokers.produce(node, "load", list(left.items()), 60_000)
            for partition, answer in answers.items():
                if answer.error_code == ErrorCode.NONE:
                    del left[partition]
        if left:
            failures += 1
            # Refresh the metadata, because a new topic has no leaders yet.
            brokers.refresh_soon()
            await asyncio.sleep(0.1)
    assert not left
    await brokers.close()


def _partition_number(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _read_batches(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.glob("*.log")):
        data, at = path.read_bytes(), 0
        while (size := batch_size_at(data, at)) is not None:
            # The broker assigns the base offset, and accepts only 0.
            yield bytes(8) + data[at + 8 : at + size]
            at += size
