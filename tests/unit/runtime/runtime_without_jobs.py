"""A runtime without periodic jobs."""

from typing import Any

from coordinator.clock import Clock, SystemClock
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.runtime import Runtime, RuntimeLimits
from coordinator.shard import SnapshotPolicy
from coordinator.topics import AllTopics

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
