"""A runtime without periodic jobs."""

from typing import Any

from coordinator.cluster.topics import AllTopics
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.process.clock import Clock, SystemClock
from coordinator.serve.runtime import Runtime, RuntimeLimits
from coordinator.shard import SnapshotPolicy

_LONG_MS = 3_600_000


def make_runtime(
    log: StateLog,
    state_partitions: int,
    *,
    clock: Clock | None = None,
    limits: RuntimeLimits | None = None,
    **ownership: Any,
) -> Runtime:
    """Return a runtime whose periodic jobs do not run during a test."""
    return Runtime(
        log=log,
        clock=clock or SystemClock(),
        topics=AllTopics(),
        metrics=Metrics(),
        policy=SnapshotPolicy(),
        limits=limits or RuntimeLimits(),
        state_partitions=state_partitions,
        cold_interval_ms=_LONG_MS,
        prune_interval_ms=_LONG_MS,
        **ownership,
    )
